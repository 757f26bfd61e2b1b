"""Mixtures of known models: merges and schedules come back, unrelated models leave a residual."""

import json

import numpy as np
import pytest

from bornbiased_jax import results
from bornbiased_jax.checkpoints import export_hugging_face
from bornbiased_jax.cli.main import run
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import init_seed
from bornbiased_jax.lineage.mixture import ILL_CONDITIONED, mixture
from bornbiased_jax.lineage.scan import Base
from bornbiased_jax.parameters import flatten, parameter_table, unflatten

SIZES = dict(num_layers=4, num_heads=2, d_model=64, d_ff=96, vocab_size=128)
SMALL = "llama-tiny," + ",".join(f"{name}={value}" for name, value in SIZES.items())
CFG = preset("llama-tiny", **SIZES)
SCHEDULE = np.array([0.1, 0.3, 0.5, 0.7], np.float32)


def combined(*terms):
    """A sum of models, each with its weight: a number, or one for each block."""

    def scaled(weight, path, leaf):
        if np.ndim(weight) == 0:
            return np.float32(weight) * leaf
        blocks = weight if path.startswith("blocks/") else np.float32(0.0)
        return blocks.reshape(-1, *[1] * (leaf.ndim - 1)) * leaf if path.startswith("blocks/") else blocks * leaf

    return {path: sum(scaled(weight, path, model[path]) for weight, model in terms) for path in terms[0][1]}


def noise(base, fraction, seed):
    """Random numbers with a fraction of the standard deviation of each matrix of the base; none for vectors."""
    draws = np.random.default_rng(seed)
    return {
        path: np.float32(fraction * leaf.std()) * draws.standard_normal(leaf.shape, np.float32)
        for path, leaf in base.items()
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Hugging Face folders of a base, two fine-tunes, mixtures of them, and an unrelated model."""
    root = tmp_path_factory.mktemp("mixture")
    base, unrelated = (
        {path: np.asarray(leaf) for path, leaf in flatten(init_seed(CFG, seed)).items()} for seed in (1, 9)
    )
    first, second = (noise(base, 0.3, seed) for seed in (2, 3))
    merge = combined((1.0, base), (0.7, first), (0.3, second))
    draws = np.random.default_rng(7)
    coordinates, neurons = draws.permutation(64), draws.permutation(96)
    models = {
        "base": base,
        "first": combined((1.0, base), (1.0, first)),
        "second": combined((1.0, base), (1.0, second)),
        "merge": merge,
        "noisy": combined((1.0, merge), (1.0, noise(base, 0.1, 4))),
        "schedule": combined((1.0, base), (SCHEDULE, first), (1.0 - SCHEDULE, second)),
        "permuted": {path: permuted(path, leaf, coordinates, neurons) for path, leaf in merge.items()},
        "unrelated": unrelated,
    }
    for name, model in models.items():
        export_hugging_face(CFG, unflatten(model), root / name)
    return root


def permuted(path, leaf, coordinates, neurons):
    """The same function with coordinates and neurons in another order."""
    for axis, names in enumerate(parameter_table(CFG)[path].axes):
        order = {("residual",): coordinates, ("hidden",): neurons}.get(names)
        leaf = leaf if order is None else leaf.take(order, axis=axis)
    return leaf


def fit(folder, suspect, origin="base", bases=("first", "second")):
    return mixture(str(folder / suspect), str(folder / origin), [Base(name, str(folder / name)) for name in bases])


def test_a_merge_of_two_fine_tunes_gives_its_weights(folder):
    result = fit(folder, "merge")
    assert [row.coefficient for row in result.coefficients] == pytest.approx([0.7, 0.3], abs=5e-4)
    assert all(row.std < 5e-4 for row in result.coefficients) and result.residual < 1e-3
    assert result.condition_number < 1.1 and result.num_tensors == 4 * 7 + 2
    assert (result.left_out, result.undone) == ((), ())


def test_noise_moves_the_weights_of_a_merge_little_and_shows_as_residual(folder):
    result = fit(folder, "noisy")
    assert [row.coefficient for row in result.coefficients] == pytest.approx([0.7, 0.3], abs=0.01)
    assert all(0 < row.std < 0.02 for row in result.coefficients)
    # 0.1 sd of noise against a way of 0.3 · √(0.7² + 0.3²) sd.
    assert result.residual == pytest.approx(0.1 / np.hypot(0.1, 0.3 * np.hypot(0.7, 0.3)), abs=0.01)


def test_a_schedule_over_depth_shows_as_a_curve(folder):
    first, second = fit(folder, "schedule").coefficients
    assert [cell.block for cell in first.by_block] == [1, 2, 3, 4, None]
    assert [cell.coefficient for cell in first.by_block[:4]] == pytest.approx(list(SCHEDULE), abs=1e-3)
    assert [cell.coefficient for cell in second.by_block[:4]] == pytest.approx(list(1 - SCHEDULE), abs=1e-3)
    assert first.by_block[4].coefficient == pytest.approx(0.0, abs=1e-3) and first.std > 0.1


def test_base_and_unrelated_model_lie_alike_between_siblings_and_differ_in_the_residual(folder):
    """Both are 0.5 on the line from one fine-tune to the other: the residual tells them apart."""
    fits = [fit(folder, suspect, origin="first", bases=("second",)) for suspect in ("base", "unrelated")]
    coefficients = [result.coefficients[0].coefficient for result in fits]
    assert coefficients == pytest.approx([0.5, 0.5], abs=0.02)
    base, unrelated = (result.residual for result in fits)
    assert base == pytest.approx(np.sqrt(0.5), abs=0.02) and unrelated > 0.97


def test_permuted_coordinates_and_neurons_are_put_back_and_rotations_are_not(folder, tmp_path):
    result = fit(folder, "permuted")
    assert result.undone == ("coordinates", "neurons of 4 MLPs")
    assert [row.coefficient for row in result.coefficients] == pytest.approx([0.7, 0.3], abs=5e-4)
    assert run(["derive", str(folder / "merge"), "--change", "rotate:3", "--out", str(tmp_path / "rotated")]) == 0
    scan = results.scan(str(tmp_path / "rotated"), str(folder / "first"), mixture_base=str(folder / "base"))
    assert scan.mixture.residual > 0.9 and "it was rotated" in " ".join(scan.summary())


def test_nearly_equal_directions_are_said_and_equal_ones_refused(folder, tmp_path):
    assert run(["derive", str(folder / "first"), "--change", "noise:0.001", "--out", str(tmp_path / "near")]) == 0
    scan = results.scan(
        str(folder / "merge"), str(folder / "first"), str(tmp_path / "near"), mixture_base=str(folder / "base")
    )
    blocks = scan.figures()["mixture"].figure.axes[0].get_xticks()
    np.testing.assert_array_equal(blocks, np.round(blocks))
    assert scan.mixture.condition_number > ILL_CONDITIONED and "poorly determined" in " ".join(scan.summary())
    with pytest.raises(InputError, match="first and first have the same weights: leave one of them out"):
        fit(folder, "merge", bases=("first", "first"))
    with pytest.raises(InputError, match="base has the weights of the base"):
        fit(folder, "merge", bases=("first", "base"))


def test_exactly_dependent_directions_split_the_coefficient_and_give_finite_json(folder, tmp_path):
    """Numbers with few digits, of which a difference and its double are exact: the correlations are singular."""
    draws = np.random.default_rng(8)
    base = {path: np.round(512 * np.asarray(leaf)) / 512 for path, leaf in flatten(init_seed(CFG, 1)).items()}
    first = {path: draws.integers(-4, 5, leaf.shape).astype(np.float32) / 512 for path, leaf in base.items()}
    for name, weight in {"origin": 0.0, "half": 0.5, "one": 1.0, "two": 2.0}.items():
        export_hugging_face(CFG, unflatten(combined((1.0, base), (weight, first))), tmp_path / name)
    places = [str(tmp_path / name) for name in ("half", "one", "two")]
    scan = results.scan(*places, mixture_base=str(tmp_path / "origin"))
    assert json.loads(json.dumps(scan.to_json(), allow_nan=False))["condition_number"] == pytest.approx(1e6)
    assert "poorly determined" in " ".join(scan.summary())
    # Each direction, at unit length, has its part of the way.
    assert [row.coefficient for row in scan.mixture.coefficients] == pytest.approx([0.25, 0.125])


def test_directions_that_differ_by_rounding_split_the_coefficient_too(tmp_path):
    """A fine-tune and three tenths of it: what float32 rounds off is no direction to fit along."""
    base = {path: np.asarray(leaf) for path, leaf in flatten(init_seed(CFG, 1)).items()}
    first = noise(base, 0.3, 8)
    for name, weight in {"origin": 0.0, "third": 0.3, "one": 1.0, "half": 0.5}.items():
        export_hugging_face(CFG, unflatten(combined((1.0, base), (weight, first))), tmp_path / name)
    bases = [Base(name, str(tmp_path / name)) for name in ("third", "one")]
    result = mixture(str(tmp_path / "half"), str(tmp_path / "origin"), bases)
    # At unit length each direction has half of the way.
    assert [row.coefficient for row in result.coefficients] == pytest.approx([0.25 / 0.3, 0.25], rel=1e-3)


def test_matrices_of_another_shape_are_left_out_and_another_architecture_is_refused(folder):
    longer = SMALL.replace("vocab_size=128", "vocab_size=144")
    result = mixture(f"seed:4@{longer}", str(folder / "base"), [Base("first", str(folder / "first"))])
    assert result.left_out == ("language/embedding/embedding", "language/head/kernel")
    assert result.num_tensors == 4 * 7
    wide = SMALL.replace("d_model=64", "d_model=32").replace("d_ff=96", "d_ff=48")
    with pytest.raises(InputError, match="no matrix has one name and one shape"):
        mixture(f"seed:1@{wide}", f"seed:1@{SMALL}", [Base("b", f"seed:2@{longer.replace('d_ff=96', 'd_ff=64')}")])


@pytest.mark.slow
def test_the_command_adds_the_mixture_and_prints_the_trap(folder, tmp_path, capsys):
    names = [str(folder / name) for name in ("merge", "first", "second")]
    words = ["scan", *names, "--mixture", "--base", str(folder / "base"), "--quiet"]
    assert run([*words, "--json", str(tmp_path / "scan.json"), "--page", str(tmp_path / "page.html")]) == 0
    report = json.loads((tmp_path / "scan.json").read_text())
    assert {"suspect", "matches", "mixture", "residual", "condition_number", "origin"} <= set(report)
    assert [round(row["coefficient"], 3) for row in report["mixture"]] == [0.7, 0.3]
    assert set(report["mixture"][0]) == {"base", "coefficient", "std", "by_block"}
    printed = capsys.readouterr().out
    assert "lies nearer" in printed and "sibling" in printed and "never say which model" in printed
    assert "Coefficients by block" in (tmp_path / "page.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [[], ["--outputs", "--num-inputs", "8", "--seq-len", "4"]])
def test_a_stored_fingerprint_is_refused_in_one_sentence(folder, tmp_path, capsys, kind):
    stored = str(tmp_path / "a.fingerprint")
    assert run(["fingerprint", f"seed:1@{SMALL}", *kind, "--out", stored, "--quiet"]) == 0
    capsys.readouterr()
    for place in range(3):
        names = [str(folder / name) for name in ("merge", "first", "base")]
        names[place] = stored
        assert run(["scan", *names[:2], "--mixture", "--base", names[2], "--quiet"]) == 2
        refusal = "is a stored fingerprint, and mixtures are fitted to weights: name the checkpoint"
        assert refusal in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--mixture"], ["--base", f"seed:1@{SMALL}"]])
def test_mixture_and_base_are_given_together(refused, words):
    assert "give both options, or neither" in refused(["scan", f"seed:2@{SMALL}", f"seed:3@{SMALL}", *words])
