"""Power of fingerprints: z against numbers a vector, neurons, width and training, alongside its formula.

The analysis, fixed before any number. At each width initial weights of several seeds are trained on one text and, from
the same initial weights, on another. Related pairs: the two models of one seed after equally many steps. Unrelated
pairs: models of two seeds, after all steps. z is that of a whole model, for sketches of k numbers, of all neurons or of
the first quarter of each block.

Formula, for neurons in token space: z ≈ ρ √(n m k′), 1/k′ = 1/k + 1/d, with n neurons in all, m = 3 matrices, d the
effective rank of the token space, (tr C)² / tr C² of the second moments C of the embedding's unit rows, and ρ the mean
cosine of the two models' neurons in the whole token space, over matrices. Nothing in it is fitted.

Agreement of two matchings on unrelated pairs, at the published k = 16: the largest by width is what verdicts hold a
pair against (``bornbiased_jax.lineage.matching``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from bornbiased_jax import model as models
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.experiments.base import Context, Entry, Experiment, Record, each
from bornbiased_jax.experiments.lineage import settings
from bornbiased_jax.experiments.lineage.descendants_families import batches_of, cached_fit, fit, tuning_loss
from bornbiased_jax.experiments.lineage.sketched import matched, sketch
from bornbiased_jax.lineage.battery import Options
from bornbiased_jax.lineage.evidence import COORDINATES, RAW_NEURONS, TOKEN_NEURONS
from bornbiased_jax.lineage.fingerprints import Settings
from bornbiased_jax.lineage.weights_verdict import single_verdict
from bornbiased_jax.parameters import Params
from bornbiased_jax.report.numbers import fixed, integer, mean_std, percent
from bornbiased_jax.report.tables import Cells, Claim, Table, tabulate

EVIDENCE = (TOKEN_NEURONS, RAW_NEURONS, COORDINATES)
PUBLISHED_K = Settings().dim
_NUM_MATRICES = 3
# z needs moments alone.
_OPTIONS = Options(num_permutations=9, matches_neurons=False)


def run(context: Context) -> Entry:
    """Train models of every width, and take z of related pairs and agreements of unrelated ones."""
    settings = context.settings
    rows: list[Entry] = []
    agreements = []
    for width, neurons in each(settings["widths"], "power", "widths", context.quiet):
        changes = {**settings["changes"], "d_model": width, "d_ff": neurons}
        cfg = preset(settings["model"], **changes)
        trained = [_trained(context, cfg, text) for text in settings["corpora"]]
        for place, step in enumerate(settings["marks"]):
            pairs = list(zip(*(by_step[place] for by_step in trained), strict=True))
            rows += [{"width": width, "step": step, **row} for row in related_rows(cfg, pairs, settings["dims"])]
        last = [[by_step[-1][seed] for by_step in trained] for seed in range(settings["seeds"])]
        agreements.append({"width": width, "neurons": neurons, **unrelated(cfg, last)})
    return {"z": rows, "unrelated": agreements}


def _trained(context: Context, cfg: ModelConfig, text: str) -> list[list[Params]]:
    """Train all seeds on one text: parameters by mark, then by seed."""
    settings = context.settings
    marks, seeds, rate = list(settings["marks"]), settings["seeds"], settings["learning_rate"]

    def make() -> Mapping[int, Params]:
        initial_S = jax.vmap(lambda seed: models.init_seed(cfg, seed))(np.arange(seeds, dtype=np.uint32))
        return fit(tuning_loss(cfg), initial_S, None, batches_of(settings, cfg, text, marks[-1]), rate, marks)

    return cached_fit(context, "power/models", [text, marks, seeds, settings["schedule"], rate], cfg, make)


def related_rows(cfg: ModelConfig, pairs: Sequence[Sequence[Params]], dims: Sequence[int]) -> Sequence[Entry]:
    """Take z of every piece of evidence on related pairs, for every k, and for a quarter of the neurons."""
    rows = []
    for dim, neurons in [*((dim, cfg.d_ff) for dim in dims), (PUBLISHED_K, cfg.d_ff // 4)]:
        settings = Settings(dim=dim, neurons=neurons, token_labels="ids")
        prints = [tuple(sketch(Checkpoint.from_params(cfg, params), settings) for params in pair) for pair in pairs]
        z = {name: [single_verdict(base, suspect, name, _OPTIONS).z for base, suspect in prints] for name in EVIDENCE}
        num_neurons = cfg.num_layers * neurons
        formula = [predicted_z(cfg, base, suspect, num_neurons, dim) for base, suspect in pairs]
        rows.append({"dim": dim, "neurons": neurons, "z": z, "formula": formula})
    # What the formula was given.
    rank = [effective_rank(np.asarray(pair[0]["embed"]["embedding"])) for pair in pairs]
    cosine = [mean_cosine(cfg, base, suspect) for base, suspect in pairs]
    return [{**row, "effective_rank": rank, "cosine": cosine} for row in rows]


def predicted_z(cfg: ModelConfig, base: Params, suspect: Params, num_neurons: int, dim: int) -> float:
    """Compute ρ √(n m k′) of a pair; see the module."""
    rank = effective_rank(np.asarray(base["embed"]["embedding"]))
    numbers = dim * rank / (dim + rank)
    return mean_cosine(cfg, base, suspect) * math.sqrt(num_neurons * _NUM_MATRICES * numbers)


def effective_rank(table_VD: np.ndarray) -> float:
    """Compute (tr C)² / tr C² of the second moments of a table's unit rows."""
    unit_VD = _unit(table_VD)
    moments_DD = unit_VD.T @ unit_VD
    return float(np.trace(moments_DD) ** 2 / np.square(moments_DD).sum())


def mean_cosine(cfg: ModelConfig, base: Params, suspect: Params) -> float:
    """Compute the mean cosine of two models' neurons in the whole token space, over blocks and matrices."""
    cosines = []
    for block in range(cfg.num_layers):
        for base_FV, suspect_FV in zip(*(_in_token_space(params, block) for params in (base, suspect)), strict=True):
            cosines.append(float((_unit(base_FV) * _unit(suspect_FV)).sum(axis=1).mean()))
    return float(np.mean(cosines))


def _in_token_space(params: Params, block: int) -> list[np.ndarray]:
    """Return gate, up and down of a block, a row a neuron, by their products with every token: [F, V] each."""
    mlp = params["blocks"]["mlp"]
    embedding_VD = _unit(np.asarray(params["embed"]["embedding"]))
    scale_D1 = np.asarray(params["blocks"]["mlp_norm"]["scale"])[block][:, None]
    head_VD = _unit((np.asarray(params["head"]["kernel"]) * np.asarray(params["final_norm"]["scale"])[:, None]).T)
    readers = [(embedding_VD @ (scale_D1 * np.asarray(mlp[name]["kernel"])[block])).T for name in ("gate", "up")]
    return [*readers, np.asarray(mlp["down"]["kernel"])[block] @ (head_VD - head_VD.mean(axis=0)).T]


def _unit(rows_nD: np.ndarray) -> np.ndarray:
    unit_nD: np.ndarray = rows_nD / np.linalg.norm(rows_nD, axis=1, keepdims=True)
    return unit_nD


def unrelated(cfg: ModelConfig, by_seed: Sequence[Sequence[Params]]) -> Entry:
    """Take z and the agreement of two matchings on every pair of models of two seeds."""
    settings = Settings(dim=PUBLISHED_K, neurons=cfg.d_ff, token_labels="ids")
    prints = [[sketch(Checkpoint.from_params(cfg, params), settings) for params in texts] for texts in by_seed]
    z: dict[str, list[float | None]] = {name: [] for name in EVIDENCE}
    agreements = []
    for first, second in itertools.combinations(prints, 2):
        for base, suspect in itertools.product(first, second):
            for name in EVIDENCE:
                z[name].append(single_verdict(base, suspect, name, _OPTIONS).z)
            matching = matched(base, suspect)
            assert matching is not None
            agreements.append(matching.agreement)
    return {"num_pairs": len(agreements), "z": z, "agreement": agreements, "largest_agreement": max(agreements)}


def tables(record: Record) -> Sequence[Table]:
    """Show z against k, neurons, width and steps; then unrelated pairs."""
    rows = []
    for row in record["result"]["z"]:
        cells: Cells = {name: (fixed(0), mean_std(row["z"][name])) for name in EVIDENCE}
        cells["formula, neurons in token space"] = (fixed(0), mean_std(row["formula"]))
        cells["effective rank"] = (fixed(0), mean_std(row["effective_rank"]))
        cells["ρ"] = (fixed(2), mean_std(row["cosine"]))
        rows.append(([row["width"], row["neurons"], row["step"], row["dim"]], cells))
    note = (
        "z of two models trained from one initialization on two texts, mean ± standard deviation over seeds, with k "
        "numbers kept of each vector. Formula: ρ √(n m k′) with 1/k′ = 1/k + 1/d, for n neurons of m = 3 matrices, "
        "from the effective rank d of the token space and the mean cosine ρ of the two models' neurons."
    )
    related = tabulate("z of related pairs", ["D", "neurons a block", "steps", "k"], rows, note, first_screen=True)
    rows = []
    for entry in record["result"]["unrelated"]:
        cells = {name: (fixed(1), max(entry["z"][name])) for name in EVIDENCE}
        cells["largest agreement of matchings"] = (percent(1), entry["largest_agreement"])
        rows.append(([entry["width"], entry["neurons"], entry["num_pairs"]], cells))
    note = (
        "Models of two seeds: the largest z over pairs, and the largest fraction of neurons that two independent "
        "matchings pair alike; k = 16."
    )
    return [related, tabulate("Unrelated pairs", ["D", "neurons a block", "pairs"], rows, note)]


def claims(record: Record) -> Sequence[Claim]:
    """State how far the formula is from what was measured, and the largest z of unrelated pairs."""
    result = record["result"]
    ratios = [
        measured / expected
        for row in result["z"]
        for measured, expected in zip(row["z"][TOKEN_NEURONS], row["formula"], strict=True)
    ]
    largest = max(max(entry["z"][name]) for entry in result["unrelated"] for name in EVIDENCE)
    pairs = sum(entry["num_pairs"] for entry in result["unrelated"])
    return [
        Claim(
            f"z of neurons in token space over its formula, median of {integer(len(ratios))} pairs and settings",
            float(np.median(ratios)),
            theory=1.0,
            format=fixed(2),
        ),
        Claim(
            f"Largest z of {pairs} unrelated pairs, of three pieces of evidence each",
            largest,
            format=fixed(1),
        ),
    ]


def headline(record: Record) -> str:
    """State the range of the formula's ratio to what was measured."""
    rows: Sequence[Entry] = record["result"]["z"]
    ratios = [float(np.mean(row["z"][TOKEN_NEURONS]) / np.mean(row["formula"])) for row in rows]
    least = min(float(np.min(row["z"][TOKEN_NEURONS])) for row in rows)
    return (
        f"z of neurons in token space is {fixed(2)(min(ratios))} to {fixed(2)(max(ratios))} of its formula, which "
        f"nothing was fitted to; the least z of a related pair is {fixed(0)(least)}."
    )


EXPERIMENT = Experiment(
    name="power",
    title="Power of fingerprints",
    description=(
        "How far a related pair stands out, against the numbers that a fingerprint keeps of each neuron, how many "
        "neurons it keeps, the width of the model and the steps of training since the shared initialization.\n\n"
        "A formula with the measured effective rank of the token space and the measured cosine of neurons stands "
        "alongside."
    ),
    settings=settings.POWER,
    cost={"laptop": "one to five minutes on two cores", "paper": "not measured: for a GPU"},
    run=run,
    tables=tables,
    claims=claims,
    headline=headline,
)
