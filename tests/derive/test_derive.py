"""Descendants by ``bornbiased derive``: what each change does, what it leaves alone, and what it refuses."""

import itertools
import json
import shutil

import click
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bornbiased_jax import hardware
from bornbiased_jax.checkpoints import export_hugging_face, open_checkpoint
from bornbiased_jax.cli.derive import derive as command
from bornbiased_jax.cli.main import run
from bornbiased_jax.derive import damage
from bornbiased_jax.derive.changes import KINDS, ChangeContext, parse_change
from bornbiased_jax.derive.derive import derive, logit_difference
from bornbiased_jax.errors import InputError
from bornbiased_jax.parameters import flatten, unflatten
from tests.fixtures.configs import edit_config
from tests.tiers import nightly_except

SIZES = "num_layers=3,num_heads=4,d_model=16,d_ff=24,vocab_size=64"
LLAMA = f"seed:3@qwen-tiny,{SIZES},num_kv_heads=2"
GPT2 = f"seed:3@gpt2-tiny,{SIZES},positions=learned"
OLMO2 = f"seed:3@olmo2-tiny,{SIZES}"
QWEN2_MOE = f"seed:3@qwen2moe-tiny,{SIZES},num_kv_heads=2,shared_expert_width=20"
SYMMETRIES = ("rotate:5", "renumber:5", "negate:5", "permute:5", "rescale:5", "heads:5", "insert-layer:5")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Models whose scales and biases are no longer constant, as directories by their initialization's reference."""
    places = {}
    for name, reference in (("llama", LLAMA), ("gpt2", GPT2), ("olmo2", OLMO2)):
        opened = open_checkpoint(reference)
        draws = np.random.default_rng(1)
        flat = {}
        for path, leaf in flatten(opened.params()).items():
            noise = draws.standard_normal(leaf.shape).astype(np.float32)
            small = not path.endswith(("kernel", "embedding"))
            flat[path] = np.asarray(leaf) * 5 + np.float32(0.3) * noise * small
        places[name] = tmp_path_factory.mktemp("trained") / name
        export_hugging_face(opened.cfg, unflatten(flat), places[name], context=12)
    return places


def changed(place, *changes, **context):
    return derive(place, [parse_change(text) for text in changes], ChangeContext(**context))


REFUSED = {
    ("gpt2", "negate:5"): "negate:all",
    ("gpt2", "rescale:5"): "gated",
    ("olmo2", "rotate:5"): "pre-norm",
}


@pytest.mark.parametrize(
    ("name", "change"),
    nightly_except(
        itertools.product(["llama", "gpt2", "olmo2"], SYMMETRIES), *itertools.product(["llama"], SYMMETRIES), *REFUSED
    ),
)
def test_symmetries_preserve_the_function_or_are_refused(name, change, trained):
    if (name, change) in REFUSED:
        with pytest.raises(InputError, match=f"{change}.*{REFUSED[name, change]}"):
            changed(trained[name], change)
        return
    derived = changed(trained[name], change)
    assert derived.preserved and derived.logit_difference < 1e-3
    assert derived.digest != derived.base_digest


@pytest.mark.slow
def test_neurons_of_a_shared_expert_are_permuted_and_rescaled():
    derived = changed(QWEN2_MOE, "permute:5", "rescale:5")
    assert derived.preserved and derived.logit_difference < 1e-3
    before, after = flatten(open_checkpoint(QWEN2_MOE).params()), flatten(derived.params)
    # Rescaling alone changes no gate, permuting alone no sizes.
    gates, ups = (f"blocks/mlp/shared_expert/{name}/kernel" for name in ("gate", "up"))
    assert not np.array_equal(before[gates], after[gates])
    assert not np.allclose(np.sort(np.abs(before[ups]).sum(1)), np.sort(np.abs(after[ups]).sum(1)))


def test_layernorm_allows_the_negation_of_all(trained):
    derived = changed(trained["gpt2"], "negate:all")
    assert derived.logit_difference == 0.0 and derived.digest != derived.base_digest


def test_symmetries_in_a_row_on_the_written_directory(trained, tmp_path, capsys):
    changes = [word for change in (*SYMMETRIES, "resize-vocab:80", "unused-rows:1000") for word in ("--change", change)]
    place = str(tmp_path / "copy")
    assert run(["derive", str(trained["llama"]), *changes, "--out", place, "--json", str(tmp_path / "a.json")]) == 0
    facts = json.loads((tmp_path / "a.json").read_text())
    copy, parent = open_checkpoint(place), open_checkpoint(trained["llama"])
    assert (facts["digest"], facts["base_digest"]) == (copy.digest(), parent.digest())
    assert facts["function_preserved"] and "the same function" in capsys.readouterr().out
    assert (copy.cfg.vocab_size, copy.cfg.num_layers) == (80, 4)
    # By default both are evaluated at the same context.
    assert copy.info["context"] == parent.info["context"] == 12
    # Of 80 ids the last 8 count as unused, and the parent has the first 64.
    readers = [open_checkpoint(folder) for folder in (trained["llama"], place)]
    assert logit_difference(*readers, np.arange(64)) < 1e-3


@pytest.mark.slow
def test_ids_that_a_text_does_not_use(tmp_path):
    reference = LLAMA.replace("vocab_size=64", "vocab_size=256")
    (tmp_path / "book.txt").write_text("abc")
    call = ["derive", reference, "--change", "unused-rows:1000", "--text", str(tmp_path / "book.txt")]
    assert run([*call, "--out", str(tmp_path / "copy"), "--json", str(tmp_path / "a.json")]) == 0
    rows = [np.asarray(flatten(open_checkpoint(where).params())["embed/embedding"]) for where in (
        reference, str(tmp_path / "copy"))]  # fmt: skip
    factor = np.median(rows[1] / rows[0], axis=1)
    # Byte 0 ends every document.
    assert sorted(np.flatnonzero(factor < 2)) == [0, *map(ord, "abc")]
    assert json.loads((tmp_path / "a.json").read_text())["logit_difference"] < 1e-3


def test_a_cut_vocabulary_keeps_the_other_logits(trained):
    derived = changed(trained["llama"], "resize-vocab:40")
    assert derived.cfg.vocab_size == 40 and derived.preserved and derived.logit_difference < 1e-5
    # What is cut and put back as a mean is no longer the parent's.
    again = changed(trained["llama"], "resize-vocab:40", "resize-vocab:64")
    assert again.cfg.vocab_size == 64 and again.logit_difference < 1e-5


def test_a_broken_symmetry_is_noticed(trained, monkeypatch):
    from bornbiased_jax.derive import symmetries

    monkeypatch.setattr(symmetries, "negate", lambda cfg, params, signs_D: (cfg, damage.add_noise(params, 0.1, seed=0)))
    with pytest.raises(InputError, match="should leave the function alone"):
        changed(trained["llama"], "negate:5")


def test_noise_is_in_standard_deviations_and_seeded(trained):
    before = flatten(open_checkpoint(trained["llama"]).params())
    derived = changed(trained["llama"], "noise:0.5", seed=1)
    after = flatten(derived.params)
    assert not derived.preserved and derived.logit_difference is None
    for path, leaf in before.items():
        leaf = np.asarray(leaf)
        if path.endswith(("kernel", "embedding")):
            ratio = (after[path] - leaf).std() / leaf.std()
            assert ratio == pytest.approx(0.5, rel=5 / np.sqrt(2 * leaf.size)), path
        else:
            np.testing.assert_array_equal(after[path], leaf)
    assert derived.digest == changed(trained["llama"], "noise:0.5", seed=1).digest
    assert derived.digest != changed(trained["llama"], "noise:0.5", seed=2).digest


def test_noise_again_is_another_draw(trained):
    leaf = np.asarray(open_checkpoint(trained["llama"]).params()["embed"]["embedding"])
    twice = changed(trained["llama"], "noise:0.1", "noise:0.1").params["embed"]["embedding"]
    assert (twice - leaf).std() / leaf.std() == pytest.approx(0.1 * np.sqrt(2), rel=0.1)


def test_pruning_takes_the_smallest_of_each_matrix(trained):
    before = flatten(open_checkpoint(trained["gpt2"]).params())
    after = flatten(changed(trained["gpt2"], "prune:0.25").params)
    for path in ("blocks/mlp/up/kernel", "blocks/attention/query/kernel"):
        for actual, reference in zip(np.asarray(before[path]), after[path], strict=True):
            gone = reference == 0
            assert gone.sum() == round(0.25 * actual.size)
            assert np.abs(actual[gone]).max() <= np.abs(actual[~gone]).min()
            np.testing.assert_array_equal(reference[~gone], actual[~gone])


def test_each_expert_is_a_matrix_of_its_own():
    """Three experts of one block after the other, each ten times as large as the one before."""
    sizes_E11 = np.array([1.0, 10.0, 100.0])[:, None, None]
    draws = np.random.default_rng(0)
    kernel, other = (draws.standard_normal((2, 3, 20, 30)).astype(np.float32) * sizes_E11 for _ in range(2))

    def made(change, *kernels):
        return change(*({"blocks": {"up": {"kernel": leaf}}} for leaf in kernels))["blocks"]["up"]["kernel"]

    pruned = made(lambda params: damage.prune(params, 0.25), kernel)
    assert ((pruned == 0).sum(axis=(2, 3)) == 150).all()
    noise = made(lambda params: damage.add_noise(params, 0.5, seed=1), kernel) - kernel
    np.testing.assert_allclose(noise.std(axis=(2, 3)) / kernel.std(axis=(2, 3)), 0.5, rtol=0.15)
    cfg = open_checkpoint(QWEN2_MOE).cfg
    between = lambda first, second: damage.slerp((cfg, first), (cfg, second), 0.3, "other")  # noqa: E731
    apart = [made(between, kernel[:, expert], other[:, expert]) for expert in range(3)]
    np.testing.assert_array_equal(made(between, kernel, other), np.stack(apart, axis=1))


def test_the_order_in_memory_changes_nothing():
    kernel = np.random.default_rng(0).standard_normal((2, 3, 8, 10)).astype(np.float32)
    head = kernel[0, 0]
    params = {"blocks": {"up": {"kernel": kernel}}, "head": {"kernel": head}}
    by_columns = {"blocks": {"up": {"kernel": np.asfortranarray(kernel)}}, "head": {"kernel": np.asfortranarray(head)}}
    for change in (lambda tree: damage.prune(tree, 0.25), lambda tree: damage.add_noise(tree, 0.5, seed=1)):
        pairs = zip(flatten(change(params)).values(), flatten(change(by_columns)).values(), strict=True)
        for expected, actual in pairs:
            np.testing.assert_allclose(actual, expected, rtol=1e-5)


@pytest.mark.parametrize("bits", [4, 8])
def test_rounding_errs_by_half_a_step_and_uniformly(bits):
    """The mean square of the error is step²/12 where the step is small, and no error exceeds half a step."""
    kernel = np.random.default_rng(0).standard_normal((2, 400, 30)).astype(np.float32)
    rounded = damage.round_weights({"blocks": {"up": {"kernel": kernel}}}, bits)["blocks"]["up"]["kernel"]
    step = np.abs(kernel).max(axis=1, keepdims=True) / (2 ** (bits - 1) - 1)
    errors = (rounded - kernel) / step
    assert np.abs(errors).max() <= 0.5 + 1e-4
    assert np.mean(errors**2) == pytest.approx(1 / 12, rel=0.05)
    assert len(np.unique(np.round(rounded / step))) <= 2**bits - 1


def test_merge_is_linear_and_idempotent(trained):
    other = LLAMA.replace("seed:3", "seed:4")
    actual, reference = (flatten(open_checkpoint(place).params()) for place in (trained["llama"], other))
    merged = flatten(changed(trained["llama"], f"merge:{other}:0.25").params)
    for path, leaf in merged.items():
        np.testing.assert_allclose(
            leaf, 0.75 * np.asarray(actual[path]) + 0.25 * np.asarray(reference[path]), atol=1e-6
        )
    for kind in ("merge", "slerp"):
        same = changed(trained["llama"], f"{kind}:{trained['llama']}:0.5")
        assert same.digest == same.base_digest


def test_models_whose_files_state_other_initializations_are_merged(trained, tmp_path):
    shutil.copytree(trained["llama"], tmp_path / "model")
    edit_config(tmp_path / "model", initializer_range=0.01)
    same = changed(trained["llama"], f"merge:{tmp_path / 'model'}:0.5")
    assert same.digest == same.base_digest


@given(st.floats(0, 1), st.integers(0, 99))
@settings(max_examples=20)
def test_slerp_goes_along_the_great_circle(weight, seed):
    actual, reference = np.random.default_rng(seed).standard_normal((2, 5, 7)).astype(np.float32)
    between = damage._slerp(actual, reference, weight).ravel()
    norms = [np.linalg.norm(tensor) for tensor in (actual, reference)]
    assert np.linalg.norm(between) == pytest.approx(norms[0] + weight * (norms[1] - norms[0]), rel=1e-4)
    angle = np.arccos(np.vdot(actual, reference) / norms[0] / norms[1])
    turned = np.arccos(np.clip(np.vdot(actual, between) / norms[0] / np.linalg.norm(between), -1, 1))
    assert turned == pytest.approx(weight * angle, abs=2e-3)


@pytest.mark.parametrize("kernel", ["softmax", "clipped"])
def test_models_of_two_lengths_are_merged_unless_attention_depends_on_the_length(kernel):
    sizes = f"num_layers=1,num_heads=2,num_kv_heads=2,d_model=8,d_ff=12,vocab_size=20,attention_kernel={kernel}"
    base, other = (f"seed:{seed}@llama-tiny,{sizes},max_seq_len={length}" for seed, length in ((1, 32), (2, 64)))
    if kernel == "softmax":
        assert changed(base, f"merge:{other}:0.5").cfg.max_seq_len == 32
        return
    with pytest.raises(InputError, match="max_seq_len is 32 here and 64 there"):
        changed(base, f"merge:{other}:0.5")


def test_blocks_are_dropped_and_repeated_by_their_numbers(trained):
    before = np.asarray(flatten(open_checkpoint(trained["gpt2"]).params())["blocks/mlp/up/kernel"])
    for change, blocks in (("drop-layers:2", [0, 2]), ("drop-layers:3,1", [1]), ("repeat-layers:1-2", [0, 1, 0, 1, 2])):
        derived = changed(trained["gpt2"], change)
        assert derived.cfg.num_layers == len(blocks)
        np.testing.assert_array_equal(flatten(derived.params)["blocks/mlp/up/kernel"], before[blocks])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("blur:3", "unknown change 'blur:3': choose from noise:0.1, "),
        ("noise", "it has no strength; write it as noise:0.1"),
        ("noise:much", "'much' is not a number"),
        ("noise:-1", "must be at least 0; write"),
        ("noise:nan", "must be at least 0; write"),
        ("prune:1.5", "must be at least 0 and at most 1; write it as prune:0.5"),
        ("round:1", "'1' is not an integer from 2 to 16"),
        ("merge:0.5", "it names no other model"),
        (f"merge:{LLAMA}:2", "at most 1"),
        ("merge:/nowhere:0.5", "/nowhere does not exist"),
        (f"merge:{GPT2}:0.5", "is [3, 8] here and [3, 16] there; merge models of one shape"),
        (f"slerp:{LLAMA.replace('d_ff=24', 'd_ff=32')}:0.5", "is [3, 24, 16] here and [3, 32, 16] there"),
        (f"merge:{LLAMA},activation=gelu:0.5", "activation is silu here and gelu there"),
        ("drop-layers:0", "is not a list of blocks"),
        ("drop-layers:2,2", "is not a list of blocks"),
        ("drop-layers:4", "the model has no block 4: it has 3"),
        ("drop-layers:1,2,3", "it would leave none of 3 blocks"),
        ("repeat-layers:3-2", "is not a range of blocks"),
        ("repeat-layers:3-4", "the model has no block 4"),
        ("rotate:x", "is not an integer from 0 to 4294967295"),
        ("resize-vocab:0", "is not an integer from 1"),
    ],
)
def test_impossible_changes_refused_in_one_sentence(change, sentence, tmp_path, refused):
    message = refused(["derive", LLAMA, "--change", change, "--out", str(tmp_path / "copy")])
    assert sentence in message and message.count("\n") == 1
    assert not list((tmp_path / "copy").glob("*"))


@pytest.mark.parametrize("change", ["noise:1e39", "unused-rows:1e39"])
def test_changes_beyond_float32_are_refused_and_write_nothing(change, tmp_path, refused):
    message = refused(["derive", LLAMA, "--change", change, "--out", str(tmp_path / "copy")])
    assert f"{change} leaves weights that are not finite" in message and message.count("\n") == 1
    assert not (tmp_path / "copy").exists()


def test_function_beyond_float32_is_not_called_the_same(monkeypatch):
    monkeypatch.setattr("bornbiased_jax.derive.derive.logit_difference", lambda *models: float("nan"))
    with pytest.raises(InputError, match="moved logits by nan"):
        changed(LLAMA, "permute:5")


@pytest.mark.parametrize("kind", ["merge:{}:0.5", "slerp:{}:0.5", "lora:{}"])
def test_what_a_change_reads_is_not_replaced_by_what_is_made_of_it(kind, tmp_path, capsys):
    other = tmp_path / "other"
    assert run(["export", LLAMA, str(other)]) == 0
    before = (other / "model.safetensors").read_bytes()
    for overwrite in ([], ["--overwrite"]):
        assert run(["derive", LLAMA, "--change", kind.format(other), "--out", str(other), *overwrite]) == 2
        assert f"{other} holds the model that is to be exported" in capsys.readouterr().err
    assert (other / "model.safetensors").read_bytes() == before


def test_vocabulary_beyond_memory_refused_before_allocation(monkeypatch):
    monkeypatch.setattr(hardware, "available_memory", lambda: 2**30)
    with pytest.raises(InputError, match=r"a vocabulary of 16,777,216 needs about 4\.0 GiB of memory, and 1\.0 GiB"):
        changed(LLAMA, "resize-vocab:16777216")


def test_models_without_the_part_in_question_are_refused():
    for field, change in (("mlp", "permute:1"), ("mlp", "rescale:1"), ("attention", "heads:1")):
        with pytest.raises(InputError, match=f"{field}=false"):
            changed(f"{LLAMA},{field}=false", change)
    with pytest.raises(InputError, match="residual=true"):
        changed(f"{LLAMA},residual=false", "insert-layer:1")


def test_every_kind_is_in_the_help():
    text = command.get_help(click.Context(command))
    for kind in KINDS.values():
        assert kind.form in text
