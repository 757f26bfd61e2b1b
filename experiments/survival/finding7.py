"""Finding 7: whether the tokens that an initialization prefers are still preferred by the model trained from it.

Stated before any number of these runs was seen:

- **Preferred tokens.** N random sequences are answered at their last position. The preferred tokens of an
  initialization are the K that have the largest logit most often, ties by mean logit.
- **Ids.** Three vocabularies, each for inputs and for the tokens that may be preferred: every id, ids that occur in the
  training text (the main one), ids that do not, whose rows of the embedding no gradient reaches.
- **Position.** Of a model and an initialization: the mean rank of the initialization's preferred tokens by the model's
  mean logit, 0 for the last of the vocabulary and 1 for the first; and their mean logit, in standard deviations over
  the vocabulary. Training moves every model toward the same frequencies of the text, so a position alone says nothing:
  own initializations are compared with other seeds'.
- **Statistic.** The sum over trained models of the position of their own initialization's preferred tokens, by rank,
  against permutations of the seeds. All seeds are trained on the same text in the same order, so the test is exact:
  8 seeds are enumerated, more are drawn, and a proven bound stands where no draw reaches the sum. The gap is the mean
  position of own less that of other seeds'.
- **Parts.** The same with preferred tokens of initializations whose embedding, blocks or head come from an unrelated
  seed, another one for each: what a part carries is lost with it.
- **What would refute.** "The preference survives training": p above 0.01 at the last checkpoint, on ids that occur in
  the text. "The blocks carry it": another's blocks leave more than half of the gap at initialization. "What survives is
  the blocks'": p at most 0.01 with another's blocks at the last checkpoint, on those ids, or above it with another's
  embedding.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from bornbiased_jax import progress
from bornbiased_jax.experiments.base import SCALES, Context, Entry, Experiment, Record, by_scale, variants
from bornbiased_jax.experiments.survival import run_folder, settings
from bornbiased_jax.experiments.survival.anatomy import BLOCKS, SEEN, UNSEEN, hybrids_of, pools, probes, transplant
from bornbiased_jax.experiments.survival.run_folder import RunFolder
from bornbiased_jax.init import init_seed
from bornbiased_jax.lineage.outputs import last_outputs
from bornbiased_jax.model import logits_of
from bornbiased_jax.parameters import Params
from bornbiased_jax.probes.inputs import Inputs
from bornbiased_jax.report.numbers import fixed, from_log10, integer, percent
from bornbiased_jax.report.tables import Cells, Claim, Table, tabulate
from bornbiased_jax.stats.certified import certified_p

OWN = "own initialization"
BASES: dict[str, tuple[str, ...]] = {
    OWN: (),
    "another's embedding": ("embedding",),
    "another's blocks": BLOCKS,
    "another's head": ("head",),
}
"""Whose preferred tokens are looked up -> the parts of the own initialization that an unrelated seed replaces."""

# Seeds far from those that people choose, and from those of other references.
_FIRST_DONOR = 3_700_000_000


def run(context: Context) -> Entry:
    """Measure every run of the settings."""
    runs = run_folder.runs_of(context)
    return {"runs": {name: survival(folder, context.settings, context.quiet) for name, folder in runs.items()}}


def survival(run: RunFolder, settings: Entry, quiet: bool) -> Entry:
    """Compute positions of preferred tokens along the checkpoints of one run.

    Returns:
        ``facts``, ``steps`` [C], ``vocabularies``: name -> ``num_ids``, ``num_preferred`` and ``bases``: base -> a list
        over steps of :func:`compared`.
    """
    steps = run.some_steps(settings["num_checkpoints"])
    ids_by_vocabulary = pools(run)
    inputs_by_vocabulary = probes(run, settings["num_inputs"], min(settings["seq_len"], run.config.context))
    initializations = [run.initialization(seed) for seed in run.seeds]
    donors = [init_seed(run.cfg, _FIRST_DONOR + index) for index in range(len(run.seeds))]
    vocabularies = {}
    # A tied head is the embedding.
    bases = {base: parts for base, parts in BASES.items() if parts == () or base in hybrids_of(run.cfg)}
    total = len(ids_by_vocabulary) * len(run.seeds) * (len(steps) + len(bases))
    with progress.bar(total, "finding7", unit="models", quiet=quiet) as advance:

        def logits(params: Params, inputs: Inputs, ids_I: np.ndarray) -> np.ndarray:
            advance()
            return np.asarray(logits_of(run.cfg, params, jnp.asarray(last_outputs(run.cfg, params, inputs))))[:, ids_I]

        for name, ids_I in ids_by_vocabulary.items():
            inputs = inputs_by_vocabulary[name]
            # Preferred tokens of every initialization, whole and with parts of an unrelated one.
            preferred_SK = {
                base: np.stack([
                    preferred(logits(transplant(initial, donor, parts), inputs, ids_I), settings["num_preferred"])
                    for initial, donor in zip(initializations, donors, strict=True)
                ])
                for base, parts in bases.items()
            }  # fmt: skip
            by_base: dict[str, list[Entry]] = {base: [] for base in bases}
            for step in steps:
                # Mean logits of all seeds at this checkpoint.
                models = [
                    run.life(seed, initial, [step])[0] for seed, initial in zip(run.seeds, initializations, strict=True)
                ]
                mean_SI = np.stack([logits(params, inputs, ids_I).mean(axis=0) for params in models])
                for base, tokens_SK in preferred_SK.items():
                    by_base[base].append(compared(mean_SI, tokens_SK, settings["num_permutations"]))
            vocabularies[name] = {
                "num_ids": len(ids_I), "num_preferred": settings["num_preferred"], "bases": by_base
            }  # fmt: skip
    return {"facts": run.facts(), "steps": steps, "vocabularies": vocabularies}


def preferred(logits_NI: np.ndarray, count: int) -> np.ndarray:
    """Return the tokens that have the largest logit most often, ties by mean logit: [K] places.

    Example:
        >>> preferred(np.array([[0, 1, 2, 0], [0, 3, 2, 0], [5, 1, 2, 0]]), 3).tolist()
        [2, 0, 1]
    """
    wins_I = np.bincount(logits_NI.argmax(axis=1), minlength=logits_NI.shape[1])
    return np.lexsort((-logits_NI.mean(axis=0), -wins_I))[:count]


def compared(mean_SI: np.ndarray, tokens_SK: np.ndarray, num_permutations: int) -> Entry:
    """Compare positions of own preferred tokens with those of other seeds'.

    Args:
        mean_SI: mean logits of each seed's model.
        tokens_SK: preferred tokens of each seed's initialization, or of one with replaced parts.
        num_permutations: of the seeds, drawn where there are more than eight.

    Returns:
        By "rank" and by "logit": ``own`` and ``others`` [S] by trained model, ``gap``, ``z``, ``log10_p``.

    Example:
        >>> mean_SI = np.eye(5)
        >>> by_rank = compared(mean_SI, np.arange(5)[:, None], 99)["rank"]
        >>> by_rank["own"], round(10 ** by_rank["log10_p"] * 120)
        ([1.0, 1.0, 1.0, 1.0, 1.0], 1)
    """
    num_ids = mean_SI.shape[1]
    rank_SI = mean_SI.argsort(axis=1, kind="stable").argsort(axis=1) / (num_ids - 1)
    standard_SI = (mean_SI - mean_SI.mean(axis=1, keepdims=True)) / mean_SI.std(axis=1, keepdims=True)
    return {
        "rank": _own_against_others(rank_SI[:, tokens_SK].mean(axis=-1), num_permutations),
        "logit": _own_against_others(standard_SI[:, tokens_SK].mean(axis=-1), num_permutations),
    }


def _own_against_others(position_SS: np.ndarray, num_permutations: int) -> Entry:
    """Test the diagonal of [trained model, initialization] against permutations of the seeds."""
    own_S = np.diagonal(position_SS)
    others_S = (position_SS.sum(axis=1) - own_S) / (len(position_SS) - 1)
    test = certified_p(position_SS, num_permutations=num_permutations)
    return {
        "own": own_S.tolist(),
        "others": others_S.tolist(),
        "gap": float(np.mean(own_S - others_S)),
        "z": test.z,
        "log10_p": test.log10_p,
    }


def _entries(run: Entry, vocabulary: str) -> Sequence[Entry]:
    entries: list[Entry] = run["vocabularies"][vocabulary]["bases"][OWN]
    return entries


def tables(record: Record) -> Sequence[Table]:
    """Tabulate positions by step; by vocabulary after the last step; by part."""
    return [_by_step(record), _by_vocabulary(record), _by_part(record)]


def _measured(entry: Entry) -> Entry:
    by_rank, by_logit = entry["rank"], entry["logit"]
    return {
        "rank, own": (fixed(3), float(np.mean(by_rank["own"]))),
        "rank, other seeds'": (fixed(3), float(np.mean(by_rank["others"]))),
        "own above others": f"{int(np.sum(np.greater(by_rank['own'], by_rank['others'])))} of {len(by_rank['own'])}",
        "z": (fixed(1), by_rank["z"]),
        "p": (from_log10(2), by_rank["log10_p"]),
        "logit, own": (fixed(2), float(np.mean(by_logit["own"]))),
        "logit, other seeds'": (fixed(2), float(np.mean(by_logit["others"]))),
        "p by logit": (from_log10(2), by_logit["log10_p"]),
    }


def _by_step(record: Record) -> Table:
    runs = record["result"]["runs"]
    rows = [
        ([name, step], _measured(entry))
        for name, run in runs.items()
        for step, entry in zip(run["steps"], _entries(run, SEEN), strict=True)
    ]
    settings = record["settings"]
    note = (
        f"Where the {settings['num_preferred']} tokens that an initialization prefers stand in the models trained "
        "from it (own) and from other seeds: their mean rank by mean logit, 1 for the first of the vocabulary and 0 "
        "for the last, and their mean logit, in standard deviations over the vocabulary; means over seeds. p: of the "
        "sum of own ranks (or logits) among permutations of the seeds, which is exact; where none of "
        f"{settings['num_permutations']:,} reaches the sum, the smaller of a proven bound and one over their number. "
        f"Ids that occur in the training text; N = {settings['num_inputs']:,}, T = {settings['seq_len']}. "
        f"{run_folder.about(runs)}."
    )
    return tabulate("Own and other seeds' preferred tokens along training", ["run", "step"], rows, note)


def _by_vocabulary(record: Record) -> Table:
    rows = [
        (
            [name, vocabulary],
            {
                "different ids": (integer, entries["num_ids"]),
                "gap at initialization": (fixed(3), entries["bases"][OWN][0]["rank"]["gap"]),
                "gap after training": (fixed(3), entries["bases"][OWN][-1]["rank"]["gap"]),
                "left": (percent(0), _left(entries["bases"][OWN])),
                "z": (fixed(1), entries["bases"][OWN][-1]["rank"]["z"]),
                "p": (from_log10(2), entries["bases"][OWN][-1]["rank"]["log10_p"]),
            },
        )
        for name, run in record["result"]["runs"].items()
        for vocabulary, entries in run["vocabularies"].items()
    ]
    note = (
        "Gap: mean rank of own preferred tokens less that of other seeds'; left: the fraction of it after training. "
        "Inputs and preferred tokens are both of the ids named."
    )
    return tabulate("By ids, after the last step", ["run", "ids"], rows, note)


def _left(entries: Sequence[Entry]) -> float:
    """Return the fraction of the gap that is left after the last step."""
    return float(entries[-1]["rank"]["gap"] / entries[0]["rank"]["gap"])


def _by_part(record: Record) -> Table:
    rows = []
    for name, run in record["result"]["runs"].items():
        for vocabulary, content in run["vocabularies"].items():
            for base, entries in content["bases"].items():
                first, last = entries[0]["rank"], entries[-1]["rank"]
                measured: Cells = {
                    "gap at initialization": (fixed(3), first["gap"]),
                    "z at initialization": (fixed(1), first["z"]),
                    "gap after training": (fixed(3), last["gap"]),
                    "z after training": (fixed(1), last["z"]),
                    "p after training": (from_log10(2), last["log10_p"]),
                }
                rows.append(([name, vocabulary, base], measured))
    note = (
        "The same with the preferred tokens of initializations of which one part comes from an unrelated seed, "
        "another one for each model; gap, z and p by rank."
    )
    return tabulate("What carries the preference", ["run", "ids", "preferred tokens of"], rows, note)


def claims(record: Record) -> Sequence[Claim]:
    """State what is left of the preference after training, on ids that occur in the text and on others."""
    statements = []
    for name, run in record["result"]["runs"].items():
        for vocabulary in (SEEN, UNSEEN):
            if vocabulary not in run["vocabularies"]:
                continue
            entries = _entries(run, vocabulary)
            last, seeds = entries[-1]["rank"], len(run["facts"]["seeds"])
            where = f"{name}, {vocabulary}, {seeds} seeds, after {run['facts']['tokens']:,} tokens"
            statements += [
                Claim(f"{where}: mean rank of own preferred tokens", float(np.mean(last["own"])), format=fixed(3)),
                Claim(f"{where}: of other seeds' preferred tokens", float(np.mean(last["others"])), format=fixed(3)),
                Claim(f"{where}: fraction left of the gap at initialization", _left(entries), format=percent(0)),
                Claim(f"{where}: p, seeds permuted", last["log10_p"], format=from_log10(2)),
            ]  # fmt: skip
    return statements


_RUNS = settings.anatomy_runs()
_BYTES = {**_RUNS["laptop"]["bytes"], "seeds": list(range(100, 116))}
# GPT-2's preference is strong from the start.
_GPT2 = {"num_layers": 4, "d_model": 96, "num_heads": 4, "d_ff": 384, "vocab_size": 256, "init": "normal-0.02"}
_PIECES = {**_RUNS["laptop"]["BPE"], "seeds": list(range(100, 108))}
_SIZES = by_scale(
    num_inputs=(60, 1_000, 2_000),
    seq_len=(8, 32, 64),
    num_checkpoints=(3, 8, 8),
    num_preferred=(2, 8, 8),
    num_permutations=(99, 99_999, 99_999),
)

EXPERIMENT = Experiment(
    name="finding7",
    title="Whether the preference survives training: own against other seeds' preferred tokens",
    paper="Finding 7",
    description=(
        "The tokens that an initialization prefers are looked up in the model trained from it and in those trained "
        "from other seeds, by rank and by mean logit; seeds are permuted, which is exact. Initializations with a part "
        "of an unrelated seed's show what carries the preference."
    ),
    settings={
        "smoke": {"runs": _RUNS["smoke"], **_SIZES["smoke"]},
        "laptop": {
            "runs": {"bytes": _BYTES, "GPT-2, bytes": {**_BYTES, "model": "gpt2-tiny", "changes": _GPT2}},
            **_SIZES["laptop"],
        },
        "paper": {"runs": _RUNS["paper"], **_SIZES["paper"]},
    },
    cost={
        "laptop": "half an hour on two cores that did other work as well, most of it training",
        "paper": "not measured: for a GPU",
    },
    precision=settings.PRECISION,
    run=run,
    takes_data=SCALES,
    claims=claims,
    tables=tables,
)

EXPERIMENTS = variants(
    EXPERIMENT,
    finding7_bpe=dict(
        title="Whether the preference survives training on pieces of words",
        settings={
            "smoke": EXPERIMENT.settings["smoke"],
            "laptop": {"runs": {"BPE": _PIECES}, **_SIZES["laptop"]},
        },
        cost={"laptop": "a quarter of an hour on two cores, most of it training"},
    ),
)
