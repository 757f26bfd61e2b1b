"""The anatomy of an initialization: hybrids are what they say, the form of the decay, both experiments when small."""

import json

import numpy as np
import pytest

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.digests import digest
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.experiments.base import Context
from bornbiased_jax.experiments.results import leaves
from bornbiased_jax.experiments.survival import anatomy, decay, persistence, run_folder
from bornbiased_jax.experiments.survival.anatomy import BLOCKS, HYBRIDS, PARTS, hybrids_of, part_of, transplant
from bornbiased_jax.experiments.survival.decay import trace_z
from bornbiased_jax.experiments.survival.decay_fit import check, fit, z_of_cosine
from bornbiased_jax.experiments.survival.run_folder import read_run_folder
from bornbiased_jax.init import init_seed
from bornbiased_jax.lineage.outputs import last_outputs
from bornbiased_jax.lineage.permutation import permutation_test
from bornbiased_jax.model import apply
from bornbiased_jax.parameters import flatten, parameter_table
from bornbiased_jax.probes.inputs import random_tokens
from bornbiased_jax.record import jsonable
from bornbiased_jax.training import PretrainConfig
from tests.experiments.smoke import check_shown, committed

pytestmark = pytest.mark.slow

SMALL = preset("llama-tiny", num_layers=2, num_heads=2, num_kv_heads=2, d_model=32, d_ff=64, vocab_size=64)


@pytest.fixture(scope="module")
def initializations():
    return init_seed(SMALL, 1), init_seed(SMALL, 2)


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    settings = anatomy.EXPERIMENT.settings["smoke"]
    runs = {"bytes": dict(settings["runs"]["bytes"])}
    runs["bytes"]["schedule"] = {**runs["bytes"]["schedule"], "steps": 40}
    work = tmp_path_factory.mktemp("out") / "anatomy"
    return Context(scale="smoke", settings=jsonable({**settings, "runs": runs}), work=work, quiet=True)


@pytest.fixture(scope="module")
def run(context):
    return run_folder.runs_of(context)["bytes"]


def record_of(context, result):
    record = {"settings": context.settings, "scale": "smoke", "data": None, "result": result, "status": "complete"}
    return json.loads(json.dumps(jsonable(record), allow_nan=False))


# Hybrids.


@pytest.mark.parametrize("options", [{}, {"qk_norm": True}, {"head_norm": True, "output_gate": "elementwise"},
                                     {"sink_logit": "learned"}])  # fmt: skip
@pytest.mark.parametrize("name", ["llama-tiny", "gpt2-tiny", "qwen-tiny"])
def test_every_parameter_has_a_part(name, options):
    cfg = preset(name, **options)
    parts = {part_of(path) for path in parameter_table(cfg)}
    assert parts == set(PARTS) - ({"head"} if cfg.tie_embeddings else set())
    assert set(hybrids_of(cfg)) == set(HYBRIDS) - ({"another's head"} if cfg.tie_embeddings else set())


def test_a_hybrid_has_the_parts_it_says_of_the_other_untrained_model(initializations):
    own, other = initializations
    for parts in HYBRIDS.values():
        for path, leaf in flatten(transplant(own, other, parts)).items():
            origin = other if part_of(path) in parts else own
            assert leaf is flatten(origin)[path]


def test_own_parts_alone_are_untrained_model(initializations):
    own, other = initializations
    ids = np.arange(24, dtype=np.int32).reshape(2, 12)
    whole, none, norms = (
        np.asarray(apply(SMALL, params, ids).logits_BTV)
        for params in (own, transplant(own, other, ()), transplant(own, other, ("norms",)))
    )
    np.testing.assert_array_equal(none, whole)
    # Norms are ones in every initialization.
    np.testing.assert_array_equal(norms, whole)
    assert digest(transplant(own, other, PARTS)) == digest(other)


def test_the_output_test_sees_the_embedding_and_hardly_the_blocks(initializations):
    own, other = initializations
    inputs = random_tokens(200, 8, SMALL.vocab_size)
    suspect_ND = last_outputs(SMALL, own, inputs)

    def z(parts):
        return permutation_test(last_outputs(SMALL, transplant(own, other, parts), inputs), suspect_ND).z

    whole = z(())
    assert whole > 20
    assert abs(z(("embedding",))) < 4
    assert z(BLOCKS) > 0.8 * whole


# The form of the decay.


def test_z_follows_the_cosine_as_the_form_says():
    rng = np.random.default_rng(3)
    n, width = 600, 96
    base_nD, noise_nD = (rng.standard_normal((n, width)) for _ in range(2))
    unit = base_nD / np.linalg.norm(base_nD, axis=0)
    ceiling = trace_z(unit.T @ unit)
    for cosine in (0.9, 0.5, 0.1):
        mixed = cosine * base_nD + np.sqrt(1 - cosine**2) * noise_nD
        measured = trace_z(unit.T @ (mixed / np.linalg.norm(mixed, axis=0)))
        assert measured == pytest.approx(float(z_of_cosine(cosine, width, ceiling)), abs=3)


POINTS = np.array([2.0**k for k in range(13)])
WINDOW = POINTS <= POINTS[-1] / 10


def fitted(z, farthest=POINTS[-1]):
    return fit(POINTS[WINDOW], z[WINDOW], ceiling=80.0, width=128, farthest=farthest)


@pytest.mark.parametrize(("scale", "exponent"), [(20.0, 0.3), (5.0, 0.8), (100.0, 1.5)])
def test_a_known_decay_is_recovered_and_predicted(scale, exponent):
    z = z_of_cosine((1 + POINTS / scale) ** -exponent, 128, 80.0)
    fit = fitted(z)
    assert fit.determined
    assert fit.scale == pytest.approx(scale, rel=0.05) and fit.exponent == pytest.approx(exponent, rel=0.05)
    checked = check(fit, POINTS[~WINDOW], z[~WINDOW], carried=z[WINDOW][-1])
    assert checked["holds"] and checked["worst"] < 0.05
    assert checked["carried_worst"] > 1


@pytest.mark.parametrize("shape", ["freezes", "collapses"])
def test_another_decay_is_refused_on_the_held_out_decade(shape):
    z = z_of_cosine((1 + POINTS / 20.0) ** -0.8, 128, 80.0)
    z[~WINDOW] = z[WINDOW][-1] if shape == "freezes" else z[WINDOW][-1] / 100
    checked = check(fitted(z), POINTS[~WINDOW], z[~WINDOW], carried=z[WINDOW][-1])
    assert not checked["holds"] and checked["worst"] > 1
    assert (checked["carried_worst"] <= 1) == (shape == "freezes")


def test_nothing_is_said_of_more_than_tenfold_nor_fitted_to_two_points():
    z = z_of_cosine((1 + POINTS / 20.0) ** -0.5, 128, 80.0)
    decay = fitted(z, farthest=1000.0)
    decay.z([1000.0])
    with pytest.raises(InputError, match="at most 1e"):
        decay.z([1001.0])
    with pytest.raises(InputError, match="2 checkpoints"):
        fit(POINTS[:2], z[:2], ceiling=80.0, width=128, farthest=10.0)
    with pytest.raises(InputError, match="nothing to lose"):
        fit(POINTS, z, ceiling=0.0, width=128, farthest=10.0)


def test_constant_curve_leaves_fit_undetermined():
    assert not fitted(np.full_like(POINTS, 80.0)).determined


def test_untrained_model_is_at_its_ceiling_against_itself_and_at_zero_against_another(initializations):
    own, other = (Checkpoint.from_params(SMALL, params) for params in initializations)
    ids = np.arange(SMALL.vocab_size)
    same, apart = decay.by_matrix(own, own, ids), decay.by_matrix(own, other, ids)
    rows = {"embed": 64, "head": 64, "attention": 32, "mlp": 64}
    assert set(same) == set(apart) and len(same) == 2 + 2 * 7 + 7 + 1
    for matrix, values in same.items():
        assert values["cosine"] == pytest.approx(1.0, abs=1e-5)
        count = next((n for part, n in rows.items() if part in matrix), 64)
        # Off the diagonal of ones the D² − D cosines of n rows have variance 1/n: the more blocks, the less.
        least = 31 / np.sqrt(1 + 32 / count)
        assert 0.9 * least < values["z"] < 32
        assert abs(apart[matrix]["z"]) < 4.5


def test_the_fit_does_not_see_what_is_held_out():
    steps = np.array([0.0, *POINTS])
    clocks = {"tokens": steps.tolist(), "summed learning rate": (steps**0.5).tolist()}
    z = z_of_cosine((1 + steps / 20.0) ** -0.5, 128, 80.0)
    changed = np.where(steps > steps[-1] / 10, 0.1 * z, z)
    kept, other = (decay.fitted(clocks, [list(z_C), list(z_C)], 128) for z_C in (z, changed))
    for clock in clocks:
        assert (kept[clock]["scale"], kept[clock]["exponent"]) == (other[clock]["scale"], other[clock]["exponent"])
        assert len(kept[clock]["measured"]) == (POINTS > POINTS[-1] / 10).sum() == 4
    assert kept["tokens"]["holds"] and not other["tokens"]["holds"]
    assert kept["tenfold"] == pytest.approx(float(z_of_cosine((1 + 40960 / 20.0) ** -0.5, 128, 80.0)), rel=0.02)
    assert other["tenfold"] is None


# The experiments.


@pytest.mark.nightly
def test_the_anatomy_of_a_small_run(context, run):
    result = {"runs": {"bytes": anatomy.anatomy(run, context.settings, quiet=True)}}
    record = record_of(context, result)
    one = record["result"]["runs"]["bytes"]
    assert one["steps"] == [0, 4, 40] and set(one["z"]) == {"uniform ids", "seen ids", "unseen ids", "held-out text"}
    assert one["probes"]["seen ids"]["num_ids"] + one["probes"]["unseen ids"]["num_ids"] == 256
    z = {hybrid: np.asarray(z_SC) for hybrid, z_SC in one["z"]["uniform ids"].items()}
    for control in ("another's norms", "another's head"):
        np.testing.assert_allclose(z[control], z["own birth"], rtol=1e-6)
    assert z["own birth"].min() > 8 and z["another's embedding"].max() < 4 and z["another birth"].max() < 4
    assert (z["another's blocks"] > 0.8 * z["own birth"]).all()
    blocks = one["blocks"]
    assert np.shape(blocks["p"]) == np.shape(blocks["contrast"]) == (2, 2)
    assert all(value == 1 / 5 for value in np.ravel(blocks["p"])) and np.min(blocks["contrast"]) > 0
    check_shown(anatomy.EXPERIMENT, record)


@pytest.mark.nightly
def test_the_decay_of_a_run_that_is_named(context, run, tmp_path):
    named = Context(scale="laptop", settings={}, work=tmp_path / "w", data=str(run.folder), quiet=True)
    result = decay.EXPERIMENTS["decay_of_run"].run(named)
    record = record_of(context, result)
    [(name, one)] = record["result"]["runs"].items()
    assert name == "bytes" and one["steps"] == [0, 1, 2, 4, 8, 16, 32, 40]
    assert one["facts"]["tokens"] == 40 * 4 * 32
    assert one["facts"]["epochs"] == pytest.approx(one["facts"]["tokens"] / one["facts"]["data"]["train_tokens"])
    assert not [value for _, value in leaves(record["result"]) if isinstance(value, str) and value.startswith("/")]
    rate = one["clocks"]["summed learning rate"]
    # Two steps of warm-up to 3e-3.
    assert rate[:3] == pytest.approx([0.0, 1.5e-3, 4.5e-3]) and rate == sorted(rate)
    for matrix, z_SC in one["z"].items():
        assert np.shape(z_SC) == (2, 8)
        assert np.min(z_SC) > 4, matrix
        assert max(map(abs, one["other"][matrix])) < 5
        # Three points of the first decades; the rest is held out.
        assert len(one["fits"][matrix]["tokens"]["predicted"]) == 4
        assert (one["fits"][matrix]["tenfold"] is not None) == one["fits"][matrix]["tokens"]["holds"]
    check_shown(decay.EXPERIMENTS["decay_of_run"], record)


def test_runs_that_have_no_untrained_models_of_their_own_are_refused(context, run, tmp_path):
    with pytest.raises(InputError, match="no run is named"):
        anatomy.EXPERIMENTS["anatomy_of_run"].run(Context(scale="laptop", settings={}, work=tmp_path))
    content = {**run.content, "initial_digest": "0" * 64}
    (tmp_path / "run.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="began with given weights"):
        read_run_folder(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps(run.content))
    with pytest.raises(InputError, match="no checkpoint after its first step"):
        read_run_folder(tmp_path)
    config = run.content["config"]
    strange = {**run.content, "config": {**config, "model": {**config["model"], "init": "normal-0.02"}}}
    (tmp_path / "run.json").write_text(json.dumps(strange))
    (tmp_path / "checkpoints").symlink_to(run.folder / "checkpoints")
    with pytest.raises(InputError, match="it was initialized elsewhere"):
        read_run_folder(tmp_path).initialization(42)
    assert digest(run.initialization(42)) == digest(persistence.load(persistence.initialization(run.folder, 42)))


def test_a_step_has_the_tokens_of_its_sequences_however_they_are_accumulated(tmp_path):
    config = PretrainConfig(
        model=SMALL, data="builtin:prose", out=str(tmp_path), batch_size=8, accumulation=4, context=16
    )
    assert run_folder.RunFolder(tmp_path, config, [0, 3], {}).tokens(3) == 3 * 8 * 16 == 3 * config.tokens_per_step


# What the committed records say.


@pytest.mark.parametrize("run_name", ["bytes", "BPE"])
def test_the_record_of_the_outputs_has_the_embeddings_trace_alone(run_name):
    runs = committed("anatomy")["result"]["runs"]
    z = {hybrid: np.asarray(z_SC) for hybrid, z_SC in runs[run_name]["z"]["uniform ids"].items()}
    assert z["own birth"].min() > 4
    assert z["another's embedding"].max() < 4 and z["another birth"].max() < 4
    assert z["another's blocks"][:, -1].mean() > 0.8 * z["own birth"][:, -1].mean()


@pytest.mark.parametrize("run_name", ["bytes", "BPE"])
def test_the_record_of_the_weights_has_every_kind_of_matrix_above_chance(run_name):
    one = committed("decay")["result"]["runs"][run_name]
    for matrix, z_SC in one["z"].items():
        if not matrix.startswith("blocks/"):
            assert min(z_C[-1] for z_C in z_SC) > 4, matrix
        assert max(map(abs, one["other"][matrix])) < 5, matrix
