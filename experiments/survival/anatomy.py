"""What of an initialization the output test sees: hybrids of two, and blocks with the embedding held the same.

Finding 7 taken apart; no paper's table. Stated before any number of these runs was seen:

- **Hybrids.** A trained model is held against its own initialization with the embedding, the blocks, or one of
  attention, MLP, norms and head from another initialization (the next seed's). z of the permutation test's trace on
  random ids (outputs of the final norm at the last position), by checkpoint and seed. Norms are ones in every
  initialization, and the head comes after the outputs: their rows must equal the own initialization's, as a control.
- **Ids.** Uniform over the vocabulary; those that occur in the training text; those that do not (where there are 16 or
  more); held-out text. The tables by step are of uniform ids, as in the published test.
- **Blocks.** The trained embedding is put under the own initialization's blocks, and under those of fresh
  initializations. Their traces against the trained model: the own one's distance from the mean of the fresh in standard
  deviations, and the exact rank p = (1 + #{fresh ≥ own})/(K + 1).
- **What would refute.** "The trace in the outputs is the embedding's": own blocks under another's embedding beyond
  z = 4 in any seed at any step, or own embedding under another's blocks below 80% of the own initialization's z after
  training (mean over seeds). "Blocks leave a trace of their own": a rank p above 1/(K + 1) at the last step in more
  than one seed of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from bornbiased_jax import progress
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.experiments.base import SCALES, Context, Entry, Experiment, Record, by_scale, variants
from bornbiased_jax.experiments.survival import run_folder, settings
from bornbiased_jax.experiments.survival.decay import trace_z
from bornbiased_jax.experiments.survival.run_folder import RunFolder
from bornbiased_jax.init import init_seed
from bornbiased_jax.lineage.outputs import last_outputs
from bornbiased_jax.parameters import Params, flatten, parameter_table, unflatten
from bornbiased_jax.probes.inputs import Inputs, from_tokens
from bornbiased_jax.report.numbers import fixed, integer, percent, value_range
from bornbiased_jax.report.tables import Cells, Claim, Table, tabulate
from bornbiased_jax.stats.ranks import unit_ranks

PARTS = ("embedding", "attention", "MLP", "norms", "head")
BLOCKS = ("attention", "MLP", "norms")
"""What a block is made of; the final norm counts among the norms."""

HYBRIDS: dict[str, tuple[str, ...]] = {
    "own birth": (),
    "another's embedding": ("embedding",),
    "another's blocks": BLOCKS,
    "another birth": PARTS,
    "another's attention": ("attention",),
    "another's MLP": ("MLP",),
    "another's norms": ("norms",),
    "another's head": ("head",),
}
"""What is tested against a trained model -> the parts that come from another initialization; the rest is its own."""


def part_of(path: str) -> str:
    """Return the part that a parameter belongs to.

    Example:
        >>> [part_of(path) for path in ("embed/embedding", "blocks/attention_norm/scale", "blocks/mlp/up/kernel")]
        ['embedding', 'norms', 'MLP']

    Raises:
        KeyError: a path of no known part.
    """
    first, *rest = path.split("/")
    module = rest[0] if first == "blocks" else first
    if module.endswith("_norm"):
        return "norms"
    return {"embed": "embedding", "positions": "embedding", "attention": "attention", "mlp": "MLP", "head": "head"}[
        module
    ]


def transplant(receiver: Params, donor: Params, parts: Iterable[str]) -> Params:
    """Replace these parts of the receiver by the donor's, both of one architecture."""
    parts = set(parts)
    receiver_leaves, donor_leaves = flatten(receiver), flatten(donor)
    return unflatten(
        {path: donor_leaves[path] if part_of(path) in parts else leaf for path, leaf in receiver_leaves.items()}
    )


def hybrids_of(cfg: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Return those of :data:`HYBRIDS` whose parts an architecture has."""
    have = {part_of(path) for path in parameter_table(cfg)}
    return {name: parts for name, parts in HYBRIDS.items() if not parts or have & set(parts)}


UNIFORM, SEEN, UNSEEN, TEXT = "uniform ids", "seen ids", "unseen ids", "held-out text"
OWN, OTHERS_EMBEDDING, OTHERS_BLOCKS, OTHER = "own birth", "another's embedding", "another's blocks", "another birth"
MAIN = (OWN, OTHERS_EMBEDDING, OTHERS_BLOCKS, OTHER)
MIN_IDS = 16
# Seeds far from those that people choose, and from those of other references.
_FIRST_FRESH = 3_600_000_000


def run(context: Context) -> Entry:
    """Analyze every run of the settings, or the one that ``--data`` names."""
    runs = run_folder.runs_of(context)
    return {"runs": {name: anatomy(run, context.settings, context.quiet) for name, run in runs.items()}}


def anatomy(run: RunFolder, settings: Entry, quiet: bool) -> Entry:
    """Measure hybrids and blocks of one run.

    Returns:
        ``facts``, ``steps`` [C], ``probes``: name -> ``num_inputs`` and ``num_ids``, ``z``: probe -> hybrid -> [S][C],
        ``blocks``: ``num_fresh``, ``contrast`` and ``p`` [S][C].
    """
    steps = run.some_steps(settings["num_checkpoints"])
    inputs_by_probe = probes(run, settings["num_inputs"], min(settings["seq_len"], run.config.context))
    initializations = [run.initialization(seed) for seed in run.seeds]
    hybrids = hybrids_of(run.cfg)
    lives = [run.life(seed, initial, steps) for seed, initial in zip(run.seeds, initializations, strict=True)]
    total = len(initializations) * (
        len(inputs_by_probe) * (len(hybrids) + len(steps)) + (settings["num_fresh"] + 2) * (len(steps) - 1)
    )
    z: dict[str, dict[str, list[list[float]]]] = {}
    with progress.bar(total, "anatomy", unit="models", quiet=quiet) as advance:

        def ranks(params: Params, inputs: Inputs) -> np.ndarray:
            advance()
            return unit_ranks(last_outputs(run.cfg, params, inputs))

        # Every checkpoint against every hybrid of its initialization.
        for probe, inputs in inputs_by_probe.items():
            z[probe] = {name: [] for name in hybrids}
            for index, (initial, life) in enumerate(zip(initializations, lives, strict=True)):
                donor = initializations[(index + 1) % len(initializations)]
                bases = {name: ranks(transplant(initial, donor, parts), inputs) for name, parts in hybrids.items()}
                suspects = [ranks(params, inputs) for params in life]
                for name, base_DN in bases.items():
                    z[probe][name].append([trace_z(base_DN @ suspect_DN.T) for suspect_DN in suspects])
        blocks = blocks_alone(run, initializations, lives, inputs_by_probe[UNIFORM], settings["num_fresh"], ranks)
    return {
        "facts": run.facts(),
        "steps": steps,
        "probes": {
            name: {"num_inputs": inputs.num_inputs, "num_ids": inputs.source.get("num_ids")}
            for name, inputs in inputs_by_probe.items()
        },
        "z": z,
        "blocks": blocks,
    }


def blocks_alone(
    run: RunFolder,
    initializations: Sequence[Params],
    lives: Sequence[Sequence[Params]],
    inputs: Inputs,
    num_fresh: int,
    ranks: Callable[[Params, Inputs], np.ndarray],
) -> Entry:
    """Compare own blocks with freshly initialized ones, all under the trained embedding, after every step but 0."""
    fresh = [init_seed(run.cfg, _FIRST_FRESH + index) for index in range(num_fresh)]
    contrast: list[list[float]] = []
    p: list[list[float]] = []
    for initial, life in zip(initializations, lives, strict=True):
        contrast.append([])
        p.append([])
        for params in life[1:]:
            suspect_DN = ranks(params, inputs)
            hybrid = transplant(initial, params, ("embedding",))
            own_trace = float(np.vdot(ranks(hybrid, inputs), suspect_DN))
            traces = [float(np.vdot(ranks(transplant(hybrid, donor, BLOCKS), inputs), suspect_DN)) for donor in fresh]
            contrast[-1].append((own_trace - float(np.mean(traces))) / float(np.std(traces, ddof=1)))
            p[-1].append((1 + sum(trace >= own_trace for trace in traces)) / (num_fresh + 1))
    return {"num_fresh": num_fresh, "contrast": contrast, "p": p}


def pools(run: RunFolder) -> dict[str, np.ndarray]:
    """Return the ids that inputs are drawn from, by name; pools of few ids are left out."""
    every_V = np.arange(run.cfg.vocab_size)
    ids = {UNIFORM: every_V, SEEN: run.seen_ids, UNSEEN: np.setdiff1d(every_V, run.seen_ids)}
    return {name: ids_I for name, ids_I in ids.items() if len(ids_I) >= MIN_IDS}


def probes(run: RunFolder, num_inputs: int, seq_len: int) -> dict[str, Inputs]:
    """Draw inputs by name: ids from the whole vocabulary, from what training saw, from the rest, and held-out text."""
    vocab = run.cfg.vocab_size
    inputs_by_probe = {}
    for name, ids_I in pools(run).items():
        number = (UNIFORM, SEEN, UNSEEN).index(name)
        drawn_NT = np.random.default_rng([0x1D5, number]).choice(ids_I, (num_inputs, seq_len))
        inputs_by_probe[name] = from_tokens(drawn_NT, vocab, source=name, num_ids=len(ids_I))
    rows_NT = run.held_out_rows(num_inputs, seq_len)
    inputs_by_probe[TEXT] = from_tokens(rows_NT, vocab, source=TEXT, num_ids=len(np.unique(rows_NT)))
    return inputs_by_probe


def _at(run: Entry, probe: str, hybrid: str, place: int = -1) -> list[float]:
    return [z_C[place] for z_C in run["z"][probe][hybrid]]


def tables(record: Record) -> Sequence[Table]:
    """Tabulate hybrids by step, part by part, by ids; blocks alone."""
    return [_by_step(record), _by_part(record), _by_ids(record), _blocks(record)]


def _by_step(record: Record) -> Table:
    runs = record["result"]["runs"]
    rows = [
        ([name, step], {hybrid: value_range(_at(run, UNIFORM, hybrid, place)) for hybrid in MAIN})
        for name, run in runs.items()
        for place, step in enumerate(run["steps"])
    ]
    note = (
        "Smallest and largest z over seeds, by the permutation test between a model at a step and its "
        "initialization, whole or with that part taken from another seed's; N = "
        f"{record['settings']['num_inputs']:,}, T = {record['settings']['seq_len']}, uniform ids. "
        f"{run_folder.about(runs)}."
    )
    return tabulate("The output test against hybrid initializations", ["run", "step"], rows, note)


def _by_part(record: Record) -> Table:
    rows = []
    for name, run in record["result"]["runs"].items():
        parts = [hybrid for hybrid in run["z"][UNIFORM] if hybrid not in MAIN]
        places = sorted({len(run["steps"]) // 2, len(run["steps"]) - 1})
        for place in places:
            values = {hybrid: value_range(_at(run, UNIFORM, hybrid, place)) for hybrid in (OWN, *parts)}
            rows.append(([name, run["steps"][place]], values))
    note = (
        "Smallest and largest z over seeds with one part of the own initialization replaced by another seed's. Norms "
        "are ones in every initialization, and the head comes after what the test reads: their columns are controls, "
        "which must equal the first."
    )
    return tabulate("Part by part", ["run", "step"], rows, note)


def _by_ids(record: Record) -> Table:
    rows = []
    for name, run in record["result"]["runs"].items():
        for probe, facts in run["probes"].items():
            values = {"different ids": (integer, facts["num_ids"]), "N": (integer, facts["num_inputs"])}
            rows.append(([name, probe], values | {hybrid: value_range(_at(run, probe, hybrid)) for hybrid in MAIN}))
    note = "Smallest and largest z over seeds, on N inputs made of the ids named."
    return tabulate("By ids, after the last step", ["run", "ids"], rows, note)


def _blocks(record: Record) -> Table:
    rows = []
    for name, run in record["result"]["runs"].items():
        blocks = run["blocks"]
        for place, step in enumerate(run["steps"][1:]):
            contrast, p = ([values_C[place] for values_C in blocks[key]] for key in ("contrast", "p"))
            measured: Cells = {
                "contrast": value_range(contrast),
                "rank p, by seed": ", ".join(fixed(3)(value) for value in p),
                "fresh initializations": (integer, blocks["num_fresh"]),
            }
            rows.append(([name, step], measured))
    note = (
        "The trained embedding is put under the own initialization's blocks and under those of K fresh "
        "initializations, and each hybrid is compared with the trained model. Contrast: by how many standard "
        "deviations of the fresh ones the own trace exceeds their mean, smallest and largest over seeds. Rank p: (1 "
        "+ number of fresh traces that reach the own one)/(K + 1), which is exact."
    )
    return tabulate("Blocks under the trained embedding", ["run", "step"], rows, note)


def claims(record: Record) -> Sequence[Claim]:
    """State what the embedding and the blocks leave each in the outputs."""
    statements = []
    for name, run in record["result"]["runs"].items():
        largest = max(value for z_C in run["z"][UNIFORM][OTHERS_EMBEDDING] for value in z_C)
        fraction = float(np.mean(_at(run, UNIFORM, OTHERS_BLOCKS)) / np.mean(_at(run, UNIFORM, OWN)))
        blocks = run["blocks"]
        least = 1 / (blocks["num_fresh"] + 1)
        statements += [
            Claim(f"{name}: least z of a trained model against its own initialization", min(_at(run, UNIFORM, OWN)),
                  format=fixed(1)),
            Claim(f"{name}: largest z of own blocks under another's embedding, any step", largest, format=fixed(1)),
            Claim(f"{name}: fraction of the own initialization's z that own embedding under another's blocks has, "
                  "after training", fraction, format=percent(0)),
            Claim(f"{name}: seeds of {len(blocks['p'])} whose own blocks rank first of {blocks['num_fresh'] + 1} under "
                  "the trained embedding, after training", sum(p_C[-1] <= least * (1 + 1e-9) for p_C in blocks["p"]),
                  format=integer),
        ]  # fmt: skip
    return statements


_SIZES = by_scale(num_inputs=(60, 600, 2_000), seq_len=(8, 32, 64), num_checkpoints=(3, 6, 8), num_fresh=(4, 19, 99))

EXPERIMENT = Experiment(
    name="anatomy",
    title="What the outputs retain of an initialization: its embedding",
    paper="Finding 7",
    description=(
        "A trained model is compared with initializations put together from two: its own with another's embedding or "
        "blocks, and part by part; then own blocks with fresh ones under the trained embedding, ranked, which is exact."
    ),
    settings={scale: {"runs": runs, **_SIZES[scale]} for scale, runs in settings.anatomy_runs().items()},
    cost={
        "laptop": "up to 27 minutes on two busy cores; shares its runs with decay and table4b",
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
    anatomy_of_run=dict(
        title="What the outputs of a longer run retain of an initialization",
        settings={"laptop": {name: size for name, size in EXPERIMENT.settings["laptop"].items() if name != "runs"}},
        cost={"laptop": "minutes on two cores, the run not counted"},
    ),
)
