"""How long an initialization stays plain in the weights: every matrix against its own, by checkpoint.

No paper's table. Stated before any number was seen:

- **Measured.** z of the trace of each matrix's cross-Gram between an initialization and what became of it (the test
  ``weights`` with labels ``coordinates``, signed), over all log-spaced checkpoints and seeds: every matrix of every
  block, each kind with its blocks summed, and all summed. Rows of the embedding and the head are those of ids that
  occur in the training text: rows that no gradient reached would speak for the initialization alone. As a control
  every trained model is held against the initialization of the next seed.
  Whole matrices are read and no fingerprints: these keep a single matrix at two numbers a coordinate, too few to tell
  how much of it is left, and their tables are of all tokens.
- **Fitted.** Form, clock, window, check and extrapolation are those of :mod:`.decay_fit`, to means over seeds.
- **What would refute.** "The initialization survives in the weights": a kind of matrix whose z at the last checkpoint
  is below 4 in any seed. "Its decay is a power law of tokens": a held-out check that fails. "The matrices differ": the
  same order of z at the end in no two runs. Another initialization beyond |z| = 5 would refute the test.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.experiments.base import SCALES, Context, Entry, Experiment, Record, each, variants
from bornbiased_jax.experiments.survival import run_folder, settings
from bornbiased_jax.experiments.survival.decay_fit import MIN_POINTS, TENFOLD, check, fit
from bornbiased_jax.experiments.survival.run_folder import RunFolder
from bornbiased_jax.model.model import head_path
from bornbiased_jax.parameters import parameter_table
from bornbiased_jax.report.numbers import fixed, integer, mean_std, significant
from bornbiased_jax.report.tables import Cells, Claim, Table, tabulate
from bornbiased_jax.schemes import GROUPS
from bornbiased_jax.stats.permutations import moments

_TINY = 1e-30
_VOCABULARY = ("embed", "head")


def cross_grams(
    initial: Checkpoint, now: Checkpoint, ids_I: np.ndarray
) -> Iterator[tuple[str, str | None, np.ndarray]]:
    """Yield every matrix of both models: its name, its kind in blocks, cosines of coordinates [D, D].

    Rows have unit norm, so that scales moved between matrices change nothing; those of the embedding and the head are
    of the tokens ``ids_I``. Matrices of zeros are left out.
    """
    for module, layer in _matrices(initial.cfg):
        initial_nD, lived_nD = (_rows(model, module, layer, ids_I) for model in (initial, now))
        if initial_nD.any() and lived_nD.any():
            cross_DD = initial_nD.T @ lived_nD
            cross_DD /= _column_norms(initial_nD)[:, None]
            cross_DD /= _column_norms(lived_nD)
            yield (module, None, cross_DD) if layer is None else (f"blocks/{layer + 1}/{module}", module, cross_DD)


def trace_z(scores_nn: np.ndarray) -> float:
    """Compute the trace's standard deviations above its mean over permutations; NaN where it cannot vary."""
    mean, variance = moments(scores_nn)
    if not variance > 1e-6 * float(np.vdot(scores_nn, scores_nn)) / len(scores_nn):
        return float("nan")
    return (float(np.trace(scores_nn, dtype=np.float64)) - float(mean)) / float(variance) ** 0.5


def _matrices(cfg: ModelConfig) -> list[tuple[str, int | None]]:
    """List matrices by module and block, counted from 0: tables first, blocks in the order of groups, the head last."""
    rows = [row for row in parameter_table(cfg).values() if row.is_stacked and row.is_matrix]
    rows = [row for row in rows if row.reads_residual or row.writes_residual]
    modules = [row.module.removeprefix("blocks/") for row in sorted(rows, key=lambda row: GROUPS.index(row.group))]
    tables = ["embed", "positions"] if "positions/embedding" in parameter_table(cfg) else ["embed"]
    blocks = [(module, layer) for module in modules for layer in range(cfg.num_layers)]
    return [*((table, None) for table in tables), *blocks, ("head", None)]


def _rows(model: Checkpoint, module: str, layer: int | None, ids_I: np.ndarray) -> np.ndarray:
    """Read one matrix as unit rows over residual coordinates: [n, D] float32, the scale of its norm folded in."""
    cfg, table = model.cfg, parameter_table(model.cfg)
    is_centered, scale_D, is_reader = cfg.norm == "layernorm", None, True
    if module in ("embed", "positions"):
        rows_nD = np.array(model.read(f"{module}/embedding"))
        # The first norm takes out the mean, if one stands before the first sublayer.
        is_centered &= cfg.norm_position == "pre"
    elif module == "head":
        head = model.read(head_path(cfg))
        rows_nD = np.array(head if cfg.tie_embeddings else head.T)
        scale_D = _scale(model, "final_norm", None)
    else:
        row = table[f"blocks/{module}/kernel"]
        kernel, is_reader = model.read(row.path, layer), row.reads_residual
        # The rows of experts one after the other.
        rows_nD = np.array(np.swapaxes(kernel, -1, -2) if is_reader else kernel).reshape(-1, cfg.d_model)
        scale_D = None if row.norm is None else _scale(model, row.norm, layer)
        is_centered &= not is_reader or row.norm is not None
    if is_centered and not is_reader:
        rows_nD -= rows_nD.mean(axis=1, keepdims=True, dtype=np.float64)
    if scale_D is not None:
        rows_nD *= scale_D
    if is_centered and is_reader:
        rows_nD -= rows_nD.mean(axis=1, keepdims=True, dtype=np.float64)
    if module in _VOCABULARY:
        rows_nD = rows_nD[ids_I]
    if module == "head":
        # A vector added to every column changes no probability.
        rows_nD -= rows_nD.mean(axis=0, dtype=np.float64)
    return rows_nD / np.maximum(np.linalg.norm(rows_nD, axis=1, keepdims=True), _TINY)


def _scale(model: Checkpoint, norm: str, layer: int | None) -> np.ndarray | None:
    path = f"{norm}/scale"
    return model.read(path, layer) if path in parameter_table(model.config) else None


def _column_norms(rows_nD: np.ndarray) -> np.ndarray:
    norms_D = np.linalg.norm(rows_nD, axis=0)
    return np.where(norms_D > 0, norms_D, np.float32(1.0))


ALL = "all"
CLOCKS = ("tokens", "summed learning rate")


def run(context: Context) -> Entry:
    """Measure every run of the settings, or the one that ``--data`` names."""
    return {"runs": {name: life(run, context.quiet) for name, run in run_folder.runs_of(context).items()}}


def life(run: RunFolder, quiet: bool) -> Entry:
    """Compute z of every matrix at every checkpoint, fits and their checks.

    Returns:
        ``facts``, ``num_seen_ids``, ``steps`` [C] (from 0), ``clocks``: name -> [C], ``z``, ``z_squared`` and
        ``cosine``: matrix -> [S][C], ``other``: matrix -> [S] at the last checkpoint, ``fits``: matrix -> see
        :func:`fitted`.
    """
    ids_I = run.seen_ids
    steps = [0, *(step for step in run.steps if step > 0)]
    initializations = [
        Checkpoint.from_params(run.cfg, run.initialization(seed), seed=seed, is_initial=True) for seed in run.seeds
    ]
    series: dict[str, dict[str, list[list[float]]]] = {"z": {}, "z_squared": {}, "cosine": {}}
    second: dict[str, list[float]] = {}
    checkpoints = list(itertools.product(enumerate(initializations), steps))
    for (index, initial), step in each(checkpoints, "decay", "checkpoints", quiet):
        now = initial if step == 0 else Checkpoint.from_params(run.cfg, run.at(run.seeds[index], step))
        for matrix, values in by_matrix(initial, now, ids_I).items():
            for measure, value in values.items():
                series[measure].setdefault(matrix, [[] for _ in initializations])[index].append(value)
        if step == steps[-1]:
            unrelated = initializations[(index + 1) % len(initializations)]
            for matrix, values in by_matrix(unrelated, now, ids_I).items() if len(initializations) > 1 else ():
                second.setdefault(matrix, []).append(values["z"])
    # The decay is fitted by tokens and by summed learning rate.
    clocks = {
        "tokens": [float(run.tokens(step)) for step in steps],
        "summed learning rate": [run.summed_rate(step) for step in steps],
    }
    return {
        "facts": run.facts(),
        "num_seen_ids": len(ids_I),
        "steps": steps,
        "clocks": clocks,
        **series,
        "other": second,
        "fits": {matrix: fitted(clocks, z_SC, run.cfg.d_model) for matrix, z_SC in series["z"].items()},
    }


def by_matrix(initial: Checkpoint, now: Checkpoint, ids_I: np.ndarray) -> dict[str, dict[str, float]]:
    """Compute by matrix z of the trace and of the trace of squares (the default test's), and the mean diagonal cosine.

    Matrices are "embed", "head", "blocks/1/mlp/up" …, "mlp/up" (blocks summed) and "all".
    """
    sums: dict[str, np.ndarray] = {}
    counts: Counter[str] = Counter()
    values_by_matrix = {}
    for matrix, kind, cross_DD in cross_grams(initial, now, ids_I):
        values_by_matrix[matrix] = _values(cross_DD)
        for name in (ALL,) if kind is None else (ALL, kind):
            sums[name] = sums.get(name, 0.0) + cross_DD.astype(np.float64)
            counts[name] += 1
    return values_by_matrix | {name: _values(cross_DD / counts[name]) for name, cross_DD in sums.items()}


def _values(cross_DD: np.ndarray) -> dict[str, float]:
    return {
        "z": trace_z(cross_DD),
        "z_squared": trace_z(np.square(cross_DD)),
        "cosine": float(np.diagonal(cross_DD).mean(dtype=np.float64)),
    }


def fitted(clocks: Mapping[str, Sequence[float]], z_SC: Sequence[Sequence[float]], width: int) -> Entry:
    """Fit the decay of one matrix: by clock the fit and its check, and what it comes to at ten times the tokens.

    Returns:
        Clock -> the fields of :class:`.decay_fit.Decay` and the items of :func:`.decay_fit.check`, None for a run too
        short to be fitted; ``tenfold``: z at ten times the tokens of the last checkpoint, None where the check by
        tokens fails.
    """
    z_C = np.mean(z_SC, axis=0)
    tokens_C = np.asarray(clocks["tokens"])
    window_C = (tokens_C > 0) & (tokens_C <= tokens_C[-1] / TENFOLD)
    beyond_C = tokens_C > tokens_C[-1] / TENFOLD
    fits: dict[str, Any] = {clock: None for clock in CLOCKS} | {"tenfold": None}
    if window_C.sum() < MIN_POINTS:
        return fits
    for clock in CLOCKS:
        x_C = np.asarray(clocks[clock])
        decay = fit(x_C[window_C], z_C[window_C], ceiling=z_C[0], width=width, farthest=x_C[-1])
        checked = check(decay, x_C[beyond_C], z_C[beyond_C], carried=float(z_C[window_C][-1]))
        fits[clock] = {**dataclasses.asdict(decay), **checked}
    if fits["tokens"]["holds"]:
        farthest = TENFOLD * tokens_C[-1]
        again = fit(tokens_C[1:], z_C[1:], ceiling=z_C[0], width=width, farthest=farthest)
        fits["tenfold"] = float(again.z(farthest))
    return fits


def _kinds(run: Entry) -> list[str]:
    """List embedding, each kind of matrix with its blocks summed, head, all."""
    names = [name for name in run["z"] if not name.startswith(("blocks/", "head", ALL))]
    return [*names, *(name for name in ("head", ALL) if name in run["z"])]


def _last(run: Entry, matrix: str, measure: str = "z") -> list[float]:
    return [z_C[-1] for z_C in run[measure][matrix]]


def tables(record: Record) -> Sequence[Table]:
    """Tabulate what is left and how it fell, by kind; by block."""
    runs = record["result"]["runs"]
    rows = []
    for name, run in runs.items():
        for kind in _kinds(run):
            values, fits = _last(run, kind), run["fits"][kind]
            measured: Cells = {
                "z of the initialization itself": (fixed(1), float(np.mean([z_C[0] for z_C in run["z"][kind]]))),
                "z at the end": (fixed(1), mean_std(values)),
                "least z": (fixed(1), min(values)),
                "least z, squares": (fixed(1), min(_last(run, kind, "z_squared"))),
                "mean cosine": (fixed(3), float(np.mean(_last(run, kind, "cosine")))),
                "another initialization, largest |z|": (
                    fixed(1),
                    max(map(abs, run["other"][kind])) if run["other"] else None,
                ),
            }
            # The fitted form, where there are points enough.
            if fits["tokens"] is not None:
                fit, is_determined = fits["tokens"], fits["tokens"]["determined"]
                measured |= {
                    "τ, million tokens": (significant(2), fit["scale"] / 1e6 if is_determined else None),
                    "β": (fixed(2), fit["exponent"] if is_determined else None),
                    "worst miss": (fixed(2), fit["worst"]),
                    "carried forward": (fixed(2), fit["carried_worst"]),
                    "by summed rate": (fixed(2), fits[CLOCKS[1]]["worst"]),
                    "z at tenfold": (fixed(1), fits["tenfold"]),
                }
            rows.append(([name, kind], measured))
    seen = ", ".join(f"{name}: {integer(run['num_seen_ids'])}" for name, run in runs.items())
    note = (
        "z of each kind of matrix, its blocks summed, against the own initialization, by the signed trace: mean ± "
        "standard deviation over seeds; squares: by the default statistic. Of the embedding and the head only rows "
        f"of ids that occur in the training text are read ({seen}). The form (1 + x/τ)^(−β) of the cosine is fitted "
        "up to a tenth of the tokens and predicts z beyond; misses are in units of what is allowed (20% of the "
        "prediction, at least 2), so that above 1 the form fails. Carried forward: the same miss of the last fitted "
        "z as the prediction; by summed rate: of the form in summed learning rate. z at tenfold, at ten times the "
        f"tokens: only where the form holds. {run_folder.about(runs)}."
    )
    return [
        tabulate("An initialization in the weights, by kind of matrix", ["run", "matrix"], rows, note),
        _by_block(runs),
    ]


def _by_block(runs: Entry) -> Table:
    rows = []
    for name, run in runs.items():
        kinds = dict.fromkeys(matrix.split("/", 2)[2] for matrix in run["z"] if matrix.startswith("blocks/"))
        for kind in kinds:
            values = {
                f"block {layer}": (fixed(1), float(np.mean(_last(run, f"blocks/{layer}/{kind}"))))
                for layer in range(1, run["facts"]["model"]["num_layers"] + 1)
                if f"blocks/{layer}/{kind}" in run["z"]
            }
            rows.append(([name, kind], values))
    note = "z of each matrix against the own initialization after the last step, means over seeds."
    return tabulate("z at the end, block by block", ["run", "matrix"], rows, note)


def claims(record: Record) -> Sequence[Claim]:
    """State the least z at the end, and for how many matrices the form holds."""
    statements = []
    for name, run in record["result"]["runs"].items():
        least = {matrix: min(_last(run, matrix)) for matrix in _kinds(run)}
        weakest = min(least, key=lambda matrix: least[matrix])
        statements.append(
            Claim(
                f"{name}: least z of a kind of matrix against its own initialization after "
                f"{integer(run['facts']['tokens'])} tokens ({weakest})",
                least[weakest],
                format=fixed(1),
            )
        )
        # Matrices by themselves.
        single = [name for name in run["z"] if name.startswith(("blocks/", "embed", "positions", "head"))]
        for clock in CLOCKS:
            checked = [run["fits"][matrix][clock] for matrix in single if run["fits"][matrix][clock] is not None]
            of = f"{name}: matrices of {len(single)} whose last decade"
            statements.append(
                Claim(f"{of} the form predicts, by {clock}", sum(fit["holds"] for fit in checked),
                      format=integer)
            )  # fmt: skip
        if checked:
            carried = sum(fit["carried_worst"] <= 1 for fit in checked)
            statements.append(Claim(f"{of} no change would predict", carried, format=integer))
    return statements


EXPERIMENT = Experiment(
    name="decay",
    title="How long each matrix retains its initialization",
    description=(
        "Every matrix that touches the residual stream against the own initialization, at log-spaced checkpoints. A "
        "saturating power law, of the tokens and of the summed learning rate, is fitted to the first decades and held "
        "against the last."
    ),
    settings={scale: {"runs": runs} for scale, runs in settings.anatomy_runs().items()},
    cost={
        "laptop": "up to 18 minutes on two busy cores, training counted; shares a run with table4b",
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
    decay_of_run=dict(
        title="How long each matrix of a longer run retains its initialization",
        settings={"laptop": {}},
        cost={"laptop": "a minute on two cores, the run not counted"},
    ),
)
