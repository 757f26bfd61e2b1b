"""Neurons in token space under every change: z of small sketches of a model that was fine-tuned, changed and rotated.

Several models of one architecture are trained apart on one text, and the first two are fine-tuned twice each on
another, both with the defaults of ``bornbiased pretrain``. One fine-tune is changed in the ways that follow, then
rotated, so that no coordinate corresponds any more, and compared with its own base and with the other bases.

Expected, of an independent implementation in NumPy on four models made alike, one of each row: z of neurons in token
space within 10% of :data:`EXPECTED`, or above.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.derive import damage
from bornbiased_jax.derive.damage import Model
from bornbiased_jax.experiments._shared.lineage import derived
from bornbiased_jax.experiments._shared.training import in_memory, token_batches
from bornbiased_jax.experiments.base import Context, Entry, Experiment, Record, each
from bornbiased_jax.experiments.lineage import settings
from bornbiased_jax.experiments.lineage.sketched import sketch
from bornbiased_jax.experiments.lineage.unrelated_models import cached_run, packed, stacked, unpacked
from bornbiased_jax.lineage.battery import Options
from bornbiased_jax.lineage.evidence import COORDINATES, RAW_NEURONS, TOKEN_NEURONS
from bornbiased_jax.lineage.fingerprint_file import save_fingerprint
from bornbiased_jax.lineage.fingerprints import Fingerprint, Settings
from bornbiased_jax.lineage.weights_verdict import auto_verdict, single_verdict
from bornbiased_jax.parameters import Params
from bornbiased_jax.record import jsonable
from bornbiased_jax.report.numbers import fixed, integer, mean_std, percent
from bornbiased_jax.report.tables import Cells, Claim, Table, tabulate
from bornbiased_jax.training import begin, fit, load_data

PUBLISHED_K = Settings().dim
EVIDENCE = (TOKEN_NEURONS, RAW_NEURONS, COORDINATES)
CUT = "vocabulary cut to three quarters"
CHANGES = {
    "none": (),
    "pruned by half": ("prune:0.5",),
    "4 bits": ("round:4",),
    "noise of a tenth of a standard deviation": ("noise:0.1",),
    "noise of one standard deviation": ("noise:1",),
    "half merged with another model": (),
    "SLERP 0.3 to another model": (),
    "second block dropped": ("drop-layers:2",),
    "blocks 2 and 3 repeated": ("repeat-layers:2-3",),
    "a block inserted, scales moved": ("insert-layer:5", "rescale:5"),
    CUT: (),
    "last tenth of embedding rows × 1,000": ("unused-rows:1000",),
    "coordinates and heads permuted": ("renumber:5", "heads:5"),
    "neurons permuted": ("permute:5",),
}
"""Change -> how ``bornbiased derive`` writes it, before the rotation."""
EXPECTED = {
    "none": 216,
    "pruned by half": 201,
    "4 bits": 213,
    "noise of a tenth of a standard deviation": 213,
    "noise of one standard deviation": 105,
    "half merged with another model": 54,
    "SLERP 0.3 to another model": 175,
    "second block dropped": 164,
    "blocks 2 and 3 repeated": 216,
    "a block inserted, scales moved": 216,
    CUT: 183,
    "last tenth of embedding rows × 1,000": 216,
    "coordinates and heads permuted": 216,
}
"""Change -> the z that was expected at k = 16; that of permuted neurons is chance."""
MIXTURES: dict[str, tuple[Callable[[Model, Model, float, str], Params], float]] = {
    "half merged with another model": (damage.merge, 0.5),
    "SLERP 0.3 to another model": (damage.slerp, 0.3),
}
Pair = tuple[int, int]
_BASES, _ORDER = 400, 7
_ROTATION = "rotate:9"
_OPTIONS = Options(num_permutations=999)


def run(context: Context) -> Entry:
    """Train bases and fine-tunes, change one of them, and compare by fingerprints."""
    settings = context.settings
    cfg = preset(settings["model"], **settings["changes"])
    seeds = range(_BASES, _BASES + settings["bases"])
    bases = cached_run(context, "token_space/bases", cfg, settings["corpora"][0], _ORDER, seeds)
    # Two fine-tunes of each of two bases, numbered after the bases.
    tuned = [(place, copy) for number in (0, 1) for place, copy in enumerate(_tuned(context, cfg, bases[:2], number))]
    models = [*bases, *(copy for _, copy in tuned)]
    pairs = [
        (base, number, base == place)
        for number, (place, _) in enumerate(tuned, len(bases))
        for base in range(len(bases))
    ]
    related = [(base, number) for base, number, is_own in pairs if is_own]
    unrelated = list(itertools.combinations(range(len(bases)), 2))
    unrelated += [(base, number) for base, number, is_own in pairs if not is_own]
    dims = each(settings["dims"], "token space", "dimensions", context.quiet)
    rows = [
        _row_of_dim(dim, [_sketch((cfg, params), dim) for params in models], related, unrelated, context.work)
        for dim in dims
    ]
    # The second base is in the mixtures.
    base, *others = (_sketch((cfg, params), PUBLISHED_K) for params in [bases[0], *bases[2:]])
    suspects = list(changed_models((cfg, tuned[0][1]), (cfg, bases[1])))
    changes = each(suspects, "token space", "changes", context.quiet)
    return {
        "dims": rows,
        "changes": [{"change": name, **_row_of_change(suspect, base, others)} for name, suspect in changes],
    }


def _tuned(context: Context, cfg: ModelConfig, bases: Sequence[Params], number: int) -> list[Params]:
    """Train bases further on the other text; fine-tunes of two numbers see it in other orders."""
    settings = context.settings
    schedule = {**settings["schedule"], "steps": settings["further"]}
    run = in_memory(cfg, settings["corpora"][1], schedule, range(len(bases)), data_seed=number)

    def compute(_folder: Path) -> np.ndarray:
        state, step = begin(run)
        state = state._replace(params=jax.tree.map(jnp.asarray, stacked(bases)))
        return packed(fit(state, step, token_batches(run, load_data(run).train))[0].params)

    identity = jsonable(
        [number, len(bases), settings["schedule"], settings["further"], settings["corpora"], cfg.to_dict()]
    )
    weights_SP = context.cached("token_space/tuned", identity, compute)
    return [unpacked(cfg, weights_P) for weights_P in weights_SP]


def changed_models(model: Model, other: Model) -> Iterator[tuple[str, Model]]:
    """Yield a model after each change, by name.

    Args:
        model: what is changed.
        other: of another initialization, for mixtures.
    """
    cfg, params = model
    for name, texts in CHANGES.items():
        changed = model
        if name in MIXTURES:
            mix, weight = MIXTURES[name]
            changed = cfg, mix(model, other, weight, "the other model")
        elif name == CUT:
            changed = damage.resize_vocabulary(cfg, params, 3 * cfg.vocab_size // 4)
        yield name, derived(changed, *texts, seed=0)


def _row_of_dim(
    dim: int, prints: Sequence[Fingerprint], related: Sequence[Pair], unrelated: Sequence[Pair], work: Path
) -> Entry:
    """Take z of related and unrelated pairs of numbered models by sketches of one dimension, and the size of a file."""
    z = {
        kind: [
            {name: single_verdict(prints[base], prints[suspect], name, _OPTIONS).z for name in EVIDENCE}
            for base, suspect in pairs
        ]
        for kind, pairs in (("related", related), ("unrelated", unrelated))
    }
    size = save_fingerprint(work / f"token_space_{dim}.safetensors", prints[0]).stat().st_size
    return {"dim": dim, "bytes": size, **z}


def _row_of_change(suspect: Model, base: Fingerprint, others: Sequence[Fingerprint]) -> Entry:
    """Compare a changed model, rotated, with its base and with the others; and not rotated, in coordinates."""
    rotated = _sketch(derived(suspect, _ROTATION, seed=0), PUBLISHED_K)
    verdict = auto_verdict(base, rotated, _OPTIONS)
    return {
        "z": single_verdict(base, rotated, TOKEN_NEURONS, _OPTIONS).z,
        "z_in_coordinates": single_verdict(base, _sketch(suspect, PUBLISHED_K), RAW_NEURONS, _OPTIONS).z,
        "agreement": verdict.detail["agreement"],
        "verdict": verdict.verdict,
        "z_unrelated": [single_verdict(other, rotated, TOKEN_NEURONS, _OPTIONS).z for other in others],
    }


def _sketch(model: Model, dim: int) -> Fingerprint:
    return sketch(Checkpoint.from_params(*model), Settings(dim=dim, neurons=None, token_labels="ids"))


def tables(record: Record) -> Sequence[Table]:
    """Show every change; then related and unrelated pairs by the dimension of sketches."""
    result = record["result"]
    rows = []
    for row in result["changes"]:
        cells: Cells = {
            "z after the rotation": (fixed(0), row["z"]),
            "expected": (fixed(0), EXPECTED.get(row["change"])),
            "largest z of other bases": (fixed(1), max(row["z_unrelated"])),
            "z in coordinates, not rotated": (fixed(0), row["z_in_coordinates"]),
            "agreement of two matchings": (percent(0), row["agreement"]),
            "verdict": row["verdict"],
        }
        rows.append(([row["change"]], cells))
    note = (
        "A fine-tune of a base, changed as the row says and then rotated, against the base: z of neurons in token "
        f"space at k = {PUBLISHED_K}. Expected: of an independent implementation on four models made alike. In "
        "coordinates: neurons of the changed model before the rotation. Verdict: by all evidence, after the rotation."
    )
    changes = tabulate("Neurons in token space after a change", ["change"], rows, note, first_screen=True)
    rows = []
    for row in result["dims"]:
        cells = {"bytes": (integer, row["bytes"])}
        for name in EVIDENCE:
            related, unrelated = ([pair[name] for pair in row[kind]] for kind in ("related", "unrelated"))
            cells[f"{name}, least related"] = (fixed(0), min(related))
            cells[f"{name}, unrelated"] = (fixed(1), mean_std(unrelated))
            cells[f"{name}, largest unrelated"] = (fixed(1), max(unrelated))
        rows.append(([row["dim"]], cells))
    first = result["dims"][0]
    note = (
        f"{len(first['related'])} fine-tunes with their bases, and {len(first['unrelated'])} pairs of two "
        "initializations: mean ± standard deviation of z over pairs."
    )
    return [changes, tabulate("z by the dimension of sketches", ["k"], rows, note)]


def claims(record: Record) -> Sequence[Claim]:
    """State how far z lies from what was expected, and the largest z of other bases."""
    changes = record["result"]["changes"]
    ratios = {row["change"]: row["z"] / EXPECTED[row["change"]] for row in changes if row["change"] in EXPECTED}
    least = min(ratios, key=lambda name: ratios[name])
    others = [z for row in changes for z in row["z_unrelated"]]
    return [
        Claim(f"Least z over the expected one, of {len(ratios)} changes ({least})", ratios[least], format=fixed(2)),
        Claim(f"Largest z of {len(others)} other bases against changed models", max(others), format=fixed(1)),
        Claim(
            "Changed models called same-lineage",
            sum(row["verdict"] == "same-lineage" for row in changes) * 1.0,
            format=integer,
        ),
    ]


def headline(record: Record) -> str:
    """State how many changes are found, and the least z against what was expected."""
    changes = record["result"]["changes"]
    num_related = sum(row["verdict"] == "same-lineage" for row in changes)
    ratios = [row["z"] / EXPECTED[row["change"]] for row in changes if row["change"] in EXPECTED]
    return (
        f"{num_related} of {len(changes)} changed and rotated fine-tunes are called same-lineage; z of neurons in "
        f"token space is {fixed(2)(min(ratios))} to {fixed(2)(max(ratios))} of what was expected."
    )


EXPERIMENT = Experiment(
    name="token_space",
    title="Neurons in token space after every change",
    description=(
        "How far small sketches of neurons in token space see through changes of a fine-tuned model: pruning, "
        "rounding, noise, mixtures, blocks, vocabulary, and a rotation of the residual stream on top of each."
    ),
    settings=settings.TOKEN_SPACE,
    cost={"laptop": "eight minutes on two cores that did other work as well", "paper": "not measured: for a GPU"},
    run=run,
    tables=tables,
    claims=claims,
    headline=headline,
)
