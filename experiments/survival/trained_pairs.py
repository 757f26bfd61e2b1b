"""Tables 4b, 4c, 5 and 8, their like for Qwen-style models, Tables 10 to 12: initializations against trained models.

A family's models are trained once, for the first of its tables; the others find them trained.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bornbiased_jax.experiments._shared.baselines import against_null, reef_features
from bornbiased_jax.experiments._shared.lineage import BASELINES, baseline_scores
from bornbiased_jax.experiments.base import SCALES, Context, Entry, Experiment, Record, each
from bornbiased_jax.experiments.survival import persistence, persistence_tables
from bornbiased_jax.experiments.survival.persistence import ModelLocation
from bornbiased_jax.experiments.survival.settings import COST, FAMILIES, PRECISION, larger, settings, shared_cost
from bornbiased_jax.lineage.baselines import Score
from bornbiased_jax.lineage.outputs import embedding_moments
from bornbiased_jax.lineage.paper import iclr_test, paper_test
from bornbiased_jax.lineage.permutation import permutation_test
from bornbiased_jax.lineage.verdict import Verdict
from bornbiased_jax.probes.inputs import random_inputs
from bornbiased_jax.report.tables import Claim


def tested(settings: Entry, base: ModelLocation, suspect: ModelLocation, moments: tuple[float, float]) -> Entry:
    """Run every test on one pair; the suspect's progress stands alongside.

    Returns:
        ``base``, ``suspect`` (seed and step), ``progress`` of the suspect, and by test: ``permutation`` (tokens),
        ``paper`` and ``iclr`` (shared vectors, as published), ``paper_tokens`` and ``iclr_tokens``.
    """
    outputs = {
        kind: [persistence.outputs(settings, model, kind, moments) for model in (base, suspect)]
        for kind in persistence.KINDS
    }
    return {
        "base": _name(base),
        "suspect": _name(suspect),
        "progress": persistence.progress_of(suspect),
        "permutation": brief(permutation_test(*outputs["tokens"])),
        "paper": brief(paper_test(*outputs["gaussian"])),
        "paper_tokens": brief(paper_test(*outputs["tokens"])),
        "iclr": brief(iclr_test(*outputs["gaussian"])),
        "iclr_tokens": brief(iclr_test(*outputs["tokens"])),
    }


def brief(verdict: Verdict) -> Entry:
    """Return what a table shows of a verdict."""
    detail_names = ("log10_p_t", "log10_p_u")
    return {
        "verdict": verdict.verdict,
        "reason": verdict.reason,
        "p": verdict.p_value,
        "log10_p": verdict.log10_p,
        "z": verdict.z,
        **{name: verdict.detail[name] for name in detail_names if name in verdict.detail},
    }


def _name(model: ModelLocation) -> Entry:
    return {"run": Path(model["run"]).name, "seed": model["seed"], "step": model["step"]}


def own_and_other(context: Context) -> Entry:
    """Compare initializations with trained models of the base run: the same seed (Table 4b) and another (Table 4c)."""
    settings = context.settings
    run, seeds = persistence.base_run(context), settings["seeds"]
    moments = persistence.initial_moments(settings)
    pairs = []
    for initial, trained in each(list(itertools.product(seeds, seeds)), "pairs", "pairs", context.quiet):
        base, suspect = persistence.initialization(run, initial), persistence.last(run, trained)
        pairs.append(tested(settings, base, suspect, moments))
    return {"facts": persistence.facts_of(run), "pairs": pairs}


def apart(context: Context) -> Entry:
    """Compare the trained models of the base run, two seeds at a time; find what shared vectors contribute.

    Returns:
        ``facts``, ``pairs`` (see :func:`tested`), and ``shared``: by kind of pair (unrelated models and related ones) a
        list, with the seeds ``base`` and ``suspect`` and what :func:`pass_through` computes.
    """
    settings = context.settings
    run, seeds = persistence.base_run(context), settings["seeds"]
    pairs = []
    for first, second in itertools.combinations(seeds, 2):
        base, suspect = persistence.last(run, first), persistence.last(run, second)
        pairs.append(tested(settings, base, suspect, embedding_moments(persistence.load(base))))
    vectors_ND = last_vectors(settings)
    shared: dict[str, list[Entry]] = {}
    for kind, base, suspect in each(kinds_of_pairs(context), "shared vectors", "pairs", context.quiet):
        moments = embedding_moments(persistence.load(base))
        base_ND, suspect_ND = (persistence.outputs(settings, model, "gaussian", moments) for model in (base, suspect))
        alike = pass_through(base_ND, suspect_ND, vectors_ND)
        shared.setdefault(kind, []).append({"base": base["seed"], "suspect": suspect["seed"], **alike})
    return {"facts": persistence.facts_of(run), "pairs": pairs, "shared": shared}


def kinds_of_pairs(context: Context) -> list[tuple[str, ModelLocation, ModelLocation]]:
    """Return (kind, base, suspect): models of two seeds, then an initialization's and a trained model's relatives."""
    settings = context.settings
    run, seeds, options = persistence.base_run(context), settings["seeds"], settings["continued"]
    initial, trained = (
        {seed: locate(run, seed) for seed in seeds} for locate in (persistence.initialization, persistence.last)
    )
    # Of two models of one kind either may be the base.
    both = list(itertools.combinations(seeds, 2))
    further = [persistence.continued_run(context, role) for role in ("stories", "code")]
    base = trained[options["seed"]]
    return [
        *(("two initializations", initial[first], initial[second]) for first, second in both),
        *(
            ("an initialization and a trained model", initial[first], trained[second])
            for first, second in itertools.permutations(seeds, 2)
        ),
        *(("two trained models", trained[first], trained[second]) for first, second in both),
        *(("a base and a distractor", base, persistence.last(place, options["distractor"])) for place in further),
        *(("an initialization and its own trained model", initial[seed], trained[seed]) for seed in seeds),
        *(("a base and its descendant", base, persistence.last(place, options["seed"])) for place in further),
    ]


def last_vectors(settings: Entry) -> np.ndarray:
    """Draw the vector at the last position of each input, [N, D], of mean 0 and standard deviation 1."""
    probe = settings["probe"]
    inputs = random_inputs("gaussian", probe["num_inputs"], probe["seq_len"], persistence.model_config(settings))
    starts = range(0, inputs.num_inputs, _DRAWN)
    lasts = [inputs.batch(start, min(start + _DRAWN, inputs.num_inputs))[:, -1] for start in starts]
    return np.concatenate([np.asarray(last_BD) for last_BD in lasts])


def pass_through(base_ND: np.ndarray, suspect_ND: np.ndarray, vectors_ND: np.ndarray) -> Entry:
    """Compute what outputs on shared vectors have in common, with and without the vectors themselves.

    A residual stream carries its input to the end, so that coordinate j of either model's output has a part of
    coordinate j of the last vector that both were given. Without it: each coordinate less its least-squares fit by
    that coordinate of the vector, as it was given and at unit norm, as norms in either model scale it.

    Args:
        base_ND: outputs of one model.
        suspect_ND: of the other model.
        vectors_ND: the last vector of each input.

    Returns:
        Means over coordinates of correlations over the inputs: ``own`` of either model's outputs with the vectors,
        ``correlation`` of the outputs, and ``product`` of the two own ones, which it would be if they had nothing else
        in common; ``paper``, Algorithm 1, and without the vectors ``paper_without`` and ``permutation_without``.
    """
    unit_ND = _unit_columns(vectors_ND)
    normed_ND = _unit_columns(vectors_ND / np.linalg.norm(vectors_ND, axis=1, keepdims=True))
    # Two orthogonal directions for each coordinate: the vector, and what its norm adds.
    directions = (unit_ND, _unit_columns(_without(normed_ND, unit_ND)))
    units = [_unit_columns(outputs_ND) for outputs_ND in (base_ND, suspect_ND)]
    own_D = [(unit_ND * outputs_ND).sum(axis=0) for outputs_ND in units]
    rests = [
        functools.reduce(_without, directions, outputs_ND.astype(np.float64)) for outputs_ND in (base_ND, suspect_ND)
    ]
    return {
        "own": [float(values_D.mean()) for values_D in own_D],
        "correlation": float((units[0] * units[1]).sum(axis=0).mean()),
        "product": float((own_D[0] * own_D[1]).mean()),
        "paper": brief(paper_test(base_ND, suspect_ND)),
        "paper_without": brief(paper_test(*rests)),
        "permutation_without": brief(permutation_test(*rests)),
    }


def _without(x_ND: np.ndarray, unit_ND: np.ndarray) -> np.ndarray:
    """Take from each coordinate its part along a unit vector over the inputs."""
    return x_ND - unit_ND * (unit_ND * x_ND).sum(axis=0)


def _unit_columns(x_ND: np.ndarray) -> np.ndarray:
    """Center each coordinate and scale it to unit norm, float64: products sum to correlations."""
    centered_ND = x_ND - x_ND.mean(axis=0, dtype=np.float64)
    norms_D = np.linalg.norm(centered_ND, axis=0)
    unit_ND: np.ndarray = centered_ND / np.where(norms_D > 0, norms_D, 1.0)
    return unit_ND


def compared(settings: Entry, base: ModelLocation, suspect: ModelLocation, text_run: Path) -> dict[str, Score]:
    """Compute every baseline on one pair; REEF reads the held-out text of a run."""
    cfg = persistence.model_config(settings)
    base_params, suspect_params = persistence.load(base), persistence.load(suspect)
    read = persistence.sentences(text_run, settings)
    features = reef_features(cfg, base_params, read), reef_features(cfg, suspect_params, read)
    return baseline_scores(cfg, base_params, cfg, suspect_params, features)


def baselines_of_initializations(context: Context) -> Entry:
    """Compute baselines on every initialization and trained model of the base run, pairs of one seed and of two.

    Returns:
        ``facts``, and ``own``: for each seed its ``progress`` and by baseline ``score``, ``same_at_0.8``, and where
        the score lies among those of pairs of different seeds (``p_value``, ``z``, ``null_mean``, ``null_std``);
        ``other``: those scores.
    """
    settings = context.settings
    run, seeds = persistence.base_run(context), settings["seeds"]
    scores_by_pair: dict[tuple[int, int], dict[str, Score]] = {}
    for initial, trained in each(list(itertools.product(seeds, seeds)), "baselines", "pairs", context.quiet):
        base, suspect = persistence.initialization(run, initial), persistence.last(run, trained)
        scores_by_pair[initial, trained] = compared(settings, base, suspect, run)
    by_name = {
        name: np.array([np.nan if scores[name].value is None else scores[name].value
                        for pair, scores in scores_by_pair.items() if pair[0] != pair[1]], np.float64)
        for name in BASELINES
    }  # fmt: skip
    own_rows = [
        {
            "seed": seed,
            "progress": persistence.progress_of(persistence.last(run, seed)),
            **{name: against_null(scores_by_pair[seed, seed][name], by_name[name]) for name in BASELINES},
        }
        for seed in seeds
    ]
    other_scores = {name: [float(value) for value in values if np.isfinite(value)] for name, values in by_name.items()}
    return {"facts": persistence.facts_of(run), "own": own_rows, "other": other_scores}


def continued(context: Context) -> Entry:
    """Compare the base model with its descendant and a distractor's, after further training on each corpus."""
    settings = context.settings
    options = settings["continued"]
    base = persistence.last(persistence.base_run(context), options["seed"])
    moments = embedding_moments(persistence.load(base))
    pairs = []
    for role in ("stories", "code"):
        run = persistence.continued_run(context, role)
        for seed in (options["seed"], options["distractor"]):
            suspect = persistence.last(run, seed)
            scores = compared(settings, base, suspect, persistence.base_run(context))
            pairs.append(
                {
                    "role": role,
                    "source": persistence.facts_of(run)["source"],
                    "tokens": persistence.facts_of(run)["tokens"],
                    "related": seed == options["seed"],
                    **tested(settings, base, suspect, moments),
                    **{name: score.to_json() for name, score in scores.items()},
                }
            )
    return {"facts": persistence.facts_of(Path(base["run"])), "pairs": pairs}


# Inputs that are drawn at once.
_DRAWN = 100
PValues = Mapping[tuple[int, int], tuple[float, float]]
"""Seeds of base and suspect -> p of the t-test and of the U-test."""

TRAINERS = {"llama": "table4b", "qwen": "table10"}

# (initialization, trained) -> (t-test, U-test) as printed.
OWN_LLAMA = {
    (42, 42): (2.20e-8, 6.28e-8),
    (123, 123): (7.09e-6, 1.37e-5),
    (1000, 1000): (5.58e-4, 2.81e-3),
    (2000, 2000): (4.00e-10, 1.27e-9),
}
OWN_QWEN = {
    (123, 123): (7.36e-15, 3.38e-13),
    (1000, 1000): (4.41e-13, 2.01e-11),
    (42, 42): (1.06e-24, 2.05e-19),
    (2000, 2000): (4.87e-24, 1.92e-20),
}
# The text of Section 6.1.2 lists other seeds (theory/ERRATA.md).
OTHER_LLAMA = {
    (123, 1000): (0.385, 0.486),
    (1000, 2000): (0.035, 0.096),
    (42, 123): (0.426, 0.337),
    (2000, 42): (0.388, 0.287),
}
OTHER_QWEN = {
    (123, 1000): (0.286, 0.254),
    (1000, 123): (0.036, 0.040),
    (42, 2000): (0.026, 0.043),
    (2000, 42): (0.112, 0.123),
}
# (corpus, descendant) -> t-test, U-test, Intrinsic, REEF, PCS, ICS as printed. Those on The Stack have no counterpart
# here: it is behind a license that each user accepts.
CONTINUED_LLAMA = {
    ("stories", True): (0.0, 7.77e-89, 1.000, 0.759, 0.999, 0.996),
    ("stories", False): (0.943, 0.902, 0.950, 0.658, 0.332, 0.012),
}
CONTINUED_QWEN = {
    ("stories", True): (8.49e-214, 5.09e-71, 1.000, 0.957, 0.999, 0.996),
    ("stories", False): (0.256, 0.065, 0.913, 0.199, 0.328, 0.039),
}
# Seed -> Intrinsic, REEF, PCS, ICS as printed.
BASELINES_LLAMA = {
    42: (-0.021, 0.375, 0.580, 0.196),
    123: (0.149, 0.369, 0.581, 0.188),
    1000: (-0.252, 0.381, 0.581, 0.188),
    2000: (-0.337, 0.331, 0.581, 0.188),
}


def recognized(record: Record) -> Sequence[Claim]:
    """Count initializations found by each baseline: at 0.8, and among the scores of other seeds."""
    own_rows = record["result"]["own"]
    statements = []
    for name in BASELINES:
        at_threshold = sum(bool(row[name]["same_at_0.8"]) for row in own_rows)
        above_z = sum((row[name]["z"] or 0.0) > 5 for row in own_rows)
        words = persistence_tables.NAMES[name]
        text = f"{at_threshold} of {len(own_rows)} at 0.8; {above_z} of {len(own_rows)} with z > 5"
        statements.append(Claim(f"Initializations recognized in their trained models by {words}", text))
    return statements


def _experiment(
    name: str,
    family: str,
    title: str,
    description: str,
    run: Callable[[Context], Entry],
    cost: Mapping[str, str],
    **shown: Callable[[Record], Any],
) -> Experiment:
    return Experiment(
        name=name,
        title=title,
        paper=name.replace("table", "Table "),
        description=description,
        settings=settings(family),
        cost=cost,
        precision=PRECISION,
        takes_precision=False,
        run=run,
        takes_data=SCALES,
        **shown,
    )


def _same_seed(name: str, family: str, numbers: PValues, **shown: Callable[[Record], Any]) -> Experiment:
    title = "An initialization and its own trained model"
    return _experiment(
        name,
        family,
        f"An initialization is found in the model trained from it: {FAMILIES[family]}",
        "Models of several seeds are trained at once on the same text in the same order. Each is then held against its "
        "own initialization with every test of this project, on random tokens and on the published shared vectors.\n\n"
        "Every p stands next to how far the weights moved and next to the held-out loss: a model that was not trained "
        "would of course be recognized.",
        own_and_other,
        COST,
        tables=lambda record: [persistence_tables.initialization_table(record, title, numbers)],
        claims=functools.partial(persistence_tables.initialization_claims, same_seed=True),
        **shown,
    )


def _unrelated_pairs(name: str, family: str, numbers: PValues) -> Experiment:
    title = "An initialization and another seed's trained model"
    return _experiment(
        name,
        family,
        f"The same text in the same order does not make two seeds one: {FAMILIES[family]}",
        "The models of the table before, each held against the initializations of the other seeds: all pairs, of which "
        "the paper printed four. A test that calls these one lineage sees the shared data, the shared inputs or the "
        "shared architecture, not the initialization.",
        own_and_other,
        shared_cost(TRAINERS[family]),
        tables=lambda record: [persistence_tables.initialization_table(record, title, numbers)],
        claims=functools.partial(persistence_tables.initialization_claims, same_seed=False),
    )


def _continued(name: str, family: str, numbers: Mapping[tuple[str, bool], tuple[float, ...]]) -> Experiment:
    return _experiment(
        name,
        family,
        f"Further training on other text: {FAMILIES[family]}",
        "A model trained on prose is trained on with stories and with code. A distractor, another seed trained on the "
        "same prose in another order, gets the same further training. Which of the two descends from the base?\n\n"
        "The built-in stories come from a small grammar; --data 'stories=FILE' names others, such as TinyStories, and "
        "--data 'FILE;stories=FILE;code=FILE' all three corpora.",
        continued,
        {
            "laptop": f"2 min on two cores; the base models are those of {TRAINERS[family]}",
            "paper": "not measured: for a GPU",
        },
        tables=lambda record: [persistence_tables.continued_table(record, numbers)],
        claims=persistence_tables.continued_claims,
    )


EXPERIMENTS = {
    "table4b": _same_seed("table4b", "llama", OWN_LLAMA, headline=persistence_tables.survival_headline),
    "table4c": _unrelated_pairs("table4c", "llama", OTHER_LLAMA),
    "table5": _continued("table5", "llama", CONTINUED_LLAMA),
    "table8": _experiment(
        "table8",
        "llama",
        "Published fingerprints on an initialization and its trained model",
        "Four fingerprints that read weights or representations, on an initialization and its trained model: at "
        "their published threshold of 0.8, and against the scores of an initialization and another seed's trained "
        "model.",
        baselines_of_initializations,
        shared_cost("table4b"),
        tables=lambda record: [persistence_tables.table_8(record, BASELINES_LLAMA)],
        claims=recognized,
    ),
    "trained_apart": dataclasses.replace(
        _experiment(
            "trained_apart",
            "llama",
            f"Two seeds' trained models: {FAMILIES['llama']}",
            "The trained models of the table before, each held against another seed's: trained on the same text in the "
            "same order, they share everything but the initialization, and no test should call them one lineage.\n\n"
            "Stated before any number was seen: Algorithm 1 on shared vectors, which called none of 544 such pairs of "
            "widths 64 and 96 one lineage (`court`), called both distractors of Table 5 descendants at width 256 "
            "(`table5_256_2m`). If those two are no exception, it calls at least half of the pairs of width 256 one "
            "lineage, and none of width 96.\n\n"
            "Stated when the first had come out so, and before pairs with initializations were looked at, but for two "
            "blocks of width 32: what makes models alike is the shared vector itself, which the residual stream "
            "carries to the output. Then, in every kind of pair, the correlation of two outputs is the product of each "
            "one's correlation with the vector; and once the vector is removed Algorithm 1 calls no pair one lineage, "
            "and no permutation p, corrected by Holm for all pairs of the record, is below 0.01.\n\n"
            "Stated when that had come out so, and before related models were looked at without the vector: it is a "
            "remedy. Algorithm 1 then still calls every initialization and its own trained model, and every base and "
            "its descendant (of Table 5), one lineage, so does the permutation test, and neither of the two calls a "
            "distractor one.",
            apart,
            {**shared_cost("table4b"), "laptop": "2 min on two cores; shares the models of table4b and table5"},
            tables=lambda record: [persistence_tables.apart_table(record), persistence_tables.shared_table(record)],
            claims=persistence_tables.apart_claims,
        ),
        paper="no paper's table",
    ),
    "table10": _same_seed("table10", "qwen", OWN_QWEN),
    "table11": _unrelated_pairs("table11", "qwen", OTHER_QWEN),
    "table12": _continued("table12", "qwen", CONTINUED_QWEN),
}
EXPERIMENTS |= larger(EXPERIMENTS)
