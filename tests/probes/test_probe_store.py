"""Probes by way of a store: the same numbers, whoever computes them and however they are cut."""

import numpy as np
import pytest
from jax.sharding import AbstractMesh

from bornbiased_jax import model as models
from bornbiased_jax import progress
from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.chunk_store import Chunk, Store, task_of
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.executors import local
from bornbiased_jax.probes.chunks import FUNCTION, Pass
from bornbiased_jax.probes.inputs import from_tokens, gaussian, random_tokens
from bornbiased_jax.probes.measure import RANGE_OPERATIONS, Batches, input_ranges, order_inputs
from bornbiased_jax.probes.run import ProbeOptions, probe
from bornbiased_jax.probes.subject import from_weights, untrained
from bornbiased_jax.store import compute_in_worker
from tests.fixtures.engines import elsewhere
from tests.tiers import nightly_except

CFG = preset("gpt2-tiny", num_layers=2, d_model=16, num_heads=2, d_ff=32, vocab_size=40)
INITIALIZATIONS = untrained(CFG)
N, T = 50, 6
TEXT = from_tokens(np.random.default_rng(0).integers(0, 40, (N, T)), 40)
INPUTS = {"tokens": random_tokens(N, T, 40), "gaussian": gaussian(N, T, 16), "text": TEXT}


def probed(folder, inputs="tokens", seeds=(1, 2, 3), **options):
    return call(INITIALIZATIONS, seeds, INPUTS[inputs], batch_size=8, resume=folder, **options)


def call(subject, seeds, inputs, *, resume=None, engine=local, advance=None, **options):
    return list(
        probe(subject, list(seeds), inputs, ProbeOptions(**options), resume=resume, engine=engine, advance=advance)
    )


def chunks_of(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*.npz")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", nightly_except([{}, {"mode": "vmap"}, {"mode": "map", "chunk": 3}], {"mode": "vmap"})
)
def test_a_finished_probe_is_extended_to_what_one_made_at_once_is(tmp_path, options):
    probed(tmp_path / "parts", seeds=[3], **options)
    ticks = []
    extended = probed(tmp_path / "parts", seeds=range(5), advance=ticks.append, **options)
    assert sum(ticks) == 4 * N
    assert extended == probed(tmp_path / "whole", seeds=range(5), **options)
    assert chunks_of(tmp_path / "parts") == chunks_of(tmp_path / "whole")


@pytest.mark.slow
def test_killed_probe_resumes(tmp_path):
    ticks = []

    def stop(count):
        ticks.append(count)
        if sum(ticks) > 2 * N:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        probed(tmp_path, seeds=range(4), chunk=1, advance=stop)
    assert len(chunks_of(tmp_path)) == 2
    ticks.clear()
    told = []
    bar = progress.Bar(lambda n, kept: told.append((n, kept)))
    probed(tmp_path, seeds=range(4), chunk=1, advance=bar)
    assert [sum(n for n, kept in told if kept is before) for before in (True, False)] == [2 * N, 2 * N]
    told.clear()
    probed(tmp_path, seeds=range(4), chunk=1, advance=bar, engine=elsewhere)
    assert sum(n for n, kept in told if kept) == 4 * N == sum(n for n, _ in told)


@pytest.mark.slow
@pytest.mark.parametrize("inputs", nightly_except(INPUTS, "gaussian", "text"))
def test_ranges_of_inputs_add_up(tmp_path, inputs):
    """To float32's rounding of sums over 50 unit vectors; what is counted agrees exactly.

    A worker that gets text alone makes the same files.
    """
    full, ticks = probed(tmp_path / "whole", inputs, intra=True), []
    cut = probed(tmp_path / "cut", inputs, intra=True, range_size=16, advance=ticks.append)
    assert sum(ticks) == 3 * N and len(chunks_of(tmp_path / "cut")) >= 9
    for first, second in zip(full, cut, strict=True):
        for name, value in first["contraction"].items():
            np.testing.assert_allclose(second["contraction"][name], value, rtol=0, atol=1e-4, err_msg=name)
        assert {**first, "contraction": None} == {**second, "contraction": None}
    assert probed(tmp_path / "there", inputs, intra=True, range_size=16, engine=elsewhere) == cut
    assert chunks_of(tmp_path / "there") == chunks_of(tmp_path / "cut")


@pytest.mark.slow
def test_other_processes_open_a_checkpoint_by_its_reference(tmp_path):
    name = "gpt2-tiny,num_layers=2,d_model=16,num_heads=2,d_ff=32,vocab_size=40"
    opened = open_checkpoint(f"seed:5@{name}")
    subject = from_weights(opened.cfg, opened.params(), opened.digest(), opened.reference)
    options = {"batch_size": 8, "range_size": 16}
    here = list(call(subject, [0], TEXT, resume=tmp_path / "here", **options))
    (whole,) = call(subject, [0], TEXT, batch_size=8)
    assert here[0]["preference"] == whole["preference"] and len(chunks_of(tmp_path / "here")) > 1
    assert list(call(subject, [0], TEXT, resume=tmp_path / "there", engine=elsewhere, **options)) == here
    assert chunks_of(tmp_path / "here") == chunks_of(tmp_path / "there")
    other = subject._replace(reference=f"seed:6@{name}")
    with pytest.raises(InputError, match="see the same files"):
        list(call(other, [0], TEXT, resume=tmp_path / "other", engine=elsewhere, **options))


def test_ranges_cover_all_inputs_and_part_no_last_token():
    last_N = np.repeat(np.arange(7), [3, 9, 1, 1, 20, 2, 14])
    batches = Batches(np.arange(50), last_N, 4)
    ranges = input_ranges(CFG, T, batches, 5)
    assert ranges[0][0] == 0 and ranges[-1][1] == 50
    for (_, stop), (start, _) in zip(ranges, ranges[1:], strict=False):
        assert stop == start and last_N[stop - 1] != last_N[stop]
    assert len(ranges) > 2
    assert input_ranges(CFG, T, batches) == [(0, 50)]
    with pytest.raises(InputError, match="at least 1"):
        input_ranges(CFG, T, batches, 0)


def test_a_range_of_a_large_model_is_as_many_operations_as_the_constant_says():
    cfg = preset("gpt2-nano")
    batches = Batches(np.arange(100_000), np.arange(100_000), 32)
    start, stop = input_ranges(cfg, 64, batches)[0]
    weights = models.count_parameters(models.parameter_shapes(cfg))
    assert stop - start == pytest.approx(RANGE_OPERATIONS / (2 * weights * 64), abs=32)


SETTINGS = Pass(INITIALIZATIONS, TEXT, order_inputs(TEXT, 8), False, "map", 1)


@pytest.mark.parametrize(
    "changed",
    [
        {"subject": untrained(CFG, fixed_embedding_seed=1)},
        {"subject": untrained(CFG.replace(norm_eps=1e-3))},
        {"inputs": INPUTS["tokens"]},
        {"batches": order_inputs(TEXT, 7)},
        {"intra": True},
        {"mode": "vmap"},
        {"at_once": 2},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_settings_that_change_last_digit_have_separate_tasks(changed):
    usual = task_of(FUNCTION, SETTINGS.settings())
    assert task_of(FUNCTION, SETTINGS._replace(**changed).settings()).key != usual.key
    assert task_of(FUNCTION, SETTINGS._replace().settings()).key == usual.key


def test_meshes_that_cut_sums_in_other_ways_have_separate_tasks(tmp_path, monkeypatch):
    """Along ``data`` sequences are cut, along ``fsdp`` sums of products too: other digits."""
    subject, settings = from_weights(CFG, models.init_seed(CFG, 0), "digest"), []

    def fulfill(request, *_):
        settings.append(request.settings)
        return iter([{}] * len(request.chunks))

    monkeypatch.setattr("bornbiased_jax.parallel.place_params", lambda cfg, params, mesh: params)
    monkeypatch.setattr("bornbiased_jax.store.fulfill", fulfill)
    for sizes in ((1, 2, 1), (1, 1, 2), (1, 2, 1)):
        mesh = AbstractMesh(sizes, ("seed", "data", "fsdp"))
        with pytest.raises(KeyError):
            list(probe(subject, [0], INPUTS["tokens"], ProbeOptions(batch_size=8), resume=tmp_path, mesh=mesh))
    assert settings[0] == settings[2] != settings[1]


@pytest.mark.slow
def test_inputs_that_are_not_those_of_the_task_are_refused(tmp_path):
    probed(tmp_path, "text", engine=elsewhere)
    (tasks,) = Store(tmp_path).tasks()
    other = tmp_path / "other.npy"
    np.save(other, (TEXT.tokens_NT + 1) % 40)
    chunk = Chunk(1, 0, N)
    (tasks.path / chunk.name).unlink()
    assert "digest" in compute_in_worker(str(tmp_path), tasks.task.key, [chunk], {"tokens": str(other)})


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (dict(engine=elsewhere), "a folder to resume in"),
        (dict(range_size=8), "a folder to resume in"),
        (dict(seeds=[], resume=True), "no seeds"),
        (dict(seeds=[-1], resume=True), "seed"),
        (
            dict(subject=from_weights(CFG, models.init_seed(CFG, 5), "d"), engine=elsewhere, resume=True),
            "their reference",
        ),
    ],
)
def test_bad_calls_are_refused(tmp_path, options, word):
    options = {"subject": INITIALIZATIONS, "seeds": [1], **options}
    options["resume"] = tmp_path if options.get("resume") else None
    with pytest.raises(InputError, match=word):
        list(call(options.pop("subject"), options.pop("seeds"), TEXT, **options))
