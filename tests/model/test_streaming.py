"""A model read block by block gives the numbers of the model in memory, whatever happens to it half-way.

The bytes of the numbers are a promise under the users' compiler, so that what holds them together runs in
`make test-slow`.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from bornbiased_jax import code, io
from bornbiased_jax import model as models
from bornbiased_jax.checkpoints import export_hugging_face, open_checkpoint
from bornbiased_jax.checkpoints.checkpoint import MAKER
from bornbiased_jax.cli.main import run
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.evaluation.perplexity import evaluate
from bornbiased_jax.evaluation.sink_report import ReportOptions, report_on_ids
from bornbiased_jax.lineage.output_fingerprint import fingerprint_outputs, load_outputs
from bornbiased_jax.lineage.outputs import OutputOptions
from bornbiased_jax.model import scratch
from bornbiased_jax.model.interventions import Neuron, clear, combine, scale_output, silence
from bornbiased_jax.model.streaming import Overflow, check_overflow
from bornbiased_jax.probes.inputs import gaussian, random_tokens
from bornbiased_jax.probes.variance import position_moments
from bornbiased_jax.text import ByteTokenizer
from tests.tiers import nightly_except

# More blocks than are compiled in one piece for a loss.
SMALL = dict(num_layers=9, d_model=32, num_heads=4, d_ff=48, vocab_size=300, max_seq_len=64)
PARALLEL = dict(positions="rope", rotary_fraction=0.25, parallel_residual=True, tie_embeddings=False)
as_users_compile = pytest.mark.skipif(
    bool(os.environ.get("XLA_FLAGS")), reason="compiled in haste: make test-slow has it, without XLA_FLAGS"
)
# By what they differ in: positions, order of the sublayers, norms, heads, and whether there is a head of its own.
MODELS = {
    "learned positions, tied": preset("gpt2-tiny", **SMALL),
    "rotary, shared key heads, untied": preset("llama-tiny", **SMALL, num_kv_heads=2, tie_embeddings=False),
    "parallel residual": preset("gpt2-tiny", **SMALL, **PARALLEL),
    "norms of queries and keys": preset("qwen-tiny", **SMALL, num_kv_heads=2, qk_norm=True),
    "norms after": preset("llama-tiny", **SMALL, norm_position="post", qk_norm=True, qk_norm_scope="projection"),
}


SHALLOW = preset("gpt2-tiny", **SMALL).replace(num_layers=3)


def saved(cfg: ModelConfig, folder: Path) -> Path:
    """A directory of a model that is neither an initialization nor uniform in its attention."""
    params = models.init_seed(cfg, 3)
    for name in ("query", "key"):
        params["blocks"]["attention"][name]["kernel"] *= 10.0
    export_hugging_face(cfg, params, folder)
    return folder


@pytest.fixture(params=nightly_except(MODELS, "rotary, shared key heads, untied"), scope="module")
def model(request, tmp_path_factory):
    return saved(MODELS[request.param], tmp_path_factory.mktemp("model") / "m")


def numbers(value) -> list[float]:
    """All numbers of a report."""
    if isinstance(value, dict):
        return [number for part in value.values() for number in numbers(part)]
    if isinstance(value, list):
        return [number for part in value for number in numbers(part)]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []


@pytest.mark.slow
def test_edits_act_alike_in_memory_and_streamed(tmp_path):
    """Chained edits, which differ in code or in numbers alone, are other passes and give what memory gives."""
    path, names = saved(SHALLOW, tmp_path / "m"), ("residual",)
    full, opened = open_checkpoint(path), open_checkpoint(path, scratch=tmp_path / "s")
    tokens = np.random.default_rng(0).integers(0, 300, (4, 10))
    edits = [scale_output([3], factor, num_layers=3, length=10) for factor in (2.0, 5.0)]
    edits += [combine(edits[0], clear(SHALLOW, [7], position=3)), combine(edits[0], silence(SHALLOW, [Neuron(1, 3)]))]
    means = []
    for edit in (None, *edits):
        moments = [
            position_moments(SHALLOW, form.weights, tokens, quantities=names, edit=edit)["residual"].mean_LTW
            for form in (opened, full)
        ]
        # float32 sums of tens of terms, of numbers near 1.
        np.testing.assert_allclose(*moments, atol=1e-5)
        means.append(moments[0])
    assert len(opened.streamed.pages) == len({mean.tobytes() for mean in means}) == 5


@pytest.mark.as_users
@pytest.mark.slow
@as_users_compile
def test_a_fingerprint_is_the_same_bytes(model, tmp_path):
    full, opened = open_checkpoint(model), open_checkpoint(model, scratch=tmp_path)
    tokens, vectors = random_tokens(7, 12, 300, 0), gaussian(5, 8, 32, 0)
    for inputs, layer in ((tokens, None), (vectors, 2)):
        actual, reference = (
            fingerprint_outputs(form, inputs, OutputOptions(layer=layer, batch_size=3)) for form in (opened, full)
        )
        np.testing.assert_array_equal(actual.outputs_ND, reference.outputs_ND)
        assert (actual.weights_digest, actual.tensor_digests) == (reference.weights_digest, reference.tensor_digests)
        assert (actual.value_digests, actual.inputs) == (reference.value_digests, reference.inputs)


@pytest.mark.as_users
@pytest.mark.slow
@as_users_compile
def test_scaled_embeddings_beside_learned_positions_are_the_same_bytes(tmp_path):
    reference, inputs = f"{TINY},positions=learned,embedding_scale=8.3", random_tokens(4, 8, 300, 0)
    forms = open_checkpoint(reference), open_checkpoint(reference, scratch=tmp_path)
    np.testing.assert_array_equal(*(fingerprint_outputs(form, inputs).outputs_ND for form in forms))


@pytest.mark.as_users
@pytest.mark.slow
@as_users_compile
def test_a_loss_and_a_sink_report_are_the_same_numbers(model, tmp_path):
    full, opened = open_checkpoint(model), open_checkpoint(model, scratch=tmp_path)
    ids_N = np.random.default_rng(0).integers(0, 256, 400)
    text = ["A text of two hundred and fifty bytes, and of some more. " * 5]
    losses = [
        evaluate(form.cfg, form.weights, text, ByteTokenizer(), num_sequences=5, context=50, batch_size=2)
        for form in (opened, full)
    ]
    assert losses[0] == losses[1]
    settings = ReportOptions(lengths=[8, 40], num_sequences=6)
    actual, reference = (report_on_ids(form.cfg, form.weights, ids_N, settings) for form in (opened, full))
    if opened.cfg.parallel_residual:
        # Two norms of one stream: what else is stored of a block decides how the compiler rounds them.
        np.testing.assert_allclose(numbers(actual), numbers(reference), rtol=1e-4, atol=1e-6)
    else:
        assert json.dumps(actual) == json.dumps(reference)


@pytest.mark.slow
def test_a_pass_that_is_killed_goes_on_after_its_last_whole_block(tmp_path, monkeypatch):
    path, inputs = saved(SHALLOW, tmp_path / "m"), random_tokens(6, 12, 300, 0)
    expected = fingerprint_outputs(open_checkpoint(path), inputs, OutputOptions(batch_size=2)).outputs_ND
    read = []
    commit = scratch.Page.commit

    def killed(page, blocks, digests, kept):
        commit(page, blocks, digests, kept)
        if blocks == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(scratch.Page, "commit", killed)
    with pytest.raises(KeyboardInterrupt):
        fingerprint_outputs(open_checkpoint(path, scratch=tmp_path / "s"), inputs, OutputOptions(batch_size=2))
    monkeypatch.setattr(scratch.Page, "commit", commit)
    opened = open_checkpoint(path, scratch=tmp_path / "s")
    traced = opened.streamed.read_block
    object.__setattr__(opened.streamed, "read_block", lambda layer: read.append(layer) or traced(layer))
    np.testing.assert_array_equal(fingerprint_outputs(opened, inputs, OutputOptions(batch_size=2)).outputs_ND, expected)
    assert read == [2]
    # The same work again takes what is there; when it is done, nothing stays but what is known of the tensors.
    fingerprint_outputs(opened, inputs, OutputOptions(batch_size=2))
    assert read == [2]
    opened.close()
    assert [place.name for place in (tmp_path / "s").iterdir() if place.is_dir()] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stream-*.f32", "block-0000.npz", scratch.LIST])
def test_corrupted_block_recomputed(name, tmp_path, monkeypatch, capsys):
    path, inputs = saved(SHALLOW, tmp_path / "m"), random_tokens(4, 12, 300, 0)
    expected = fingerprint_outputs(open_checkpoint(path), inputs).outputs_ND
    finish = scratch.Page.finish
    monkeypatch.setattr(scratch.Page, "finish", lambda *unused: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        fingerprint_outputs(open_checkpoint(path, scratch=tmp_path / "s"), inputs)
    monkeypatch.setattr(scratch.Page, "finish", finish)
    capsys.readouterr()
    for place in (tmp_path / "s").glob(f"*/{name}"):
        data = bytearray(place.read_bytes())
        data[len(data) // 2] ^= 64
        place.write_bytes(data)
    np.testing.assert_array_equal(
        fingerprint_outputs(open_checkpoint(path, scratch=tmp_path / "s"), inputs).outputs_ND, expected
    )
    assert "is corrupted: its blocks are computed again from the first\n" in capsys.readouterr().err


@pytest.mark.slow
def test_other_work_and_other_weights_have_pages_of_their_own(tmp_path):
    path, inputs = saved(SHALLOW, tmp_path / "m"), random_tokens(4, 12, 300, 0)
    opened = open_checkpoint(path, scratch=tmp_path / "s")
    first = fingerprint_outputs(opened, inputs)
    fingerprint_outputs(opened, random_tokens(4, 12, 300, 1))
    fingerprint_outputs(opened, inputs, OutputOptions(batch_size=2))
    assert len(opened.streamed.pages) == 3
    shutil.rmtree(path)
    saved(SHALLOW.replace(norm_eps=1e-3), path)
    other = fingerprint_outputs(open_checkpoint(path, scratch=tmp_path / "s"), inputs)
    assert not np.array_equal(first.outputs_ND, other.outputs_ND)


@pytest.mark.slow
def test_weights_that_overflow_are_refused(tmp_path):
    cfg = SHALLOW.replace(num_layers=1)
    params = models.init_seed(cfg, 0)
    params["blocks"]["mlp"]["down"]["bias"] += np.float32(1e30)
    export_hugging_face(cfg, params, tmp_path / "m")
    opened = open_checkpoint(tmp_path / "m", scratch=tmp_path / "s")
    with pytest.raises(Overflow, match=r"the largest of them is 1e\+30"):
        check_overflow(opened.cfg, opened.weights)
    # Of no more positions than the model has.
    short = cfg.replace(positions="learned", max_seq_len=2)
    params = models.init_seed(short, 0)
    params["blocks"]["mlp"]["down"]["bias"] += np.float32(2e3)
    check_overflow(short, params)


TINY = "seed:1@gpt2-tiny,num_layers=2,d_model=16,num_heads=2,d_ff=32,vocab_size=300"


@pytest.mark.slow
def test_commands_stream_and_leave_nothing_behind(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = "--stream --scratch s --quiet"
    assert run(f"fingerprint --outputs {TINY} --num-inputs 4 --seq-len 8 --out a {flags}".split()) == 0
    assert run(f"fingerprint --outputs {TINY} --num-inputs 4 --seq-len 8 --out b --quiet".split()) == 0
    assert io.sha256("a") == io.sha256("b")
    text = "builtin:prose --tokenizer bytes --num-sequences 2"
    assert run(f"evaluate {TINY} --data {text} --context 16 {flags}".split()) == 0
    assert run(f"sinks {TINY} --text {text} --lengths 8 --no-details {flags}".split()) == 0
    assert run(f"seedprint {TINY} {TINY} --test permutation --num-inputs 4 --seq-len 8 {flags}".split()) == 0
    assert [place for place in Path("s").iterdir() if place.is_dir()] == []
    assert Path("s/.bornbiased.jsonl").is_file()


REFUSED = {
    f"sinks {TINY} --text builtin:prose --tokenizer bytes --lengths 8 --quantise a8 --stream --scratch s": (
        "quantization needs the weights in memory"
    ),
    f"sinks {TINY} --text builtin:prose --tokenizer bytes --lengths 8 --streaming 4 --stream --scratch s": (
        "streaming needs the weights in memory"
    ),
    f"seedprint {TINY} {TINY} --baselines --stream --scratch s": "--baselines takes both models into memory",
    f"fingerprint --outputs {TINY} --out a --stream --scratch full": (
        f"full holds thesis.txt, which `{MAKER}` did not write"
    ),
    f"fingerprint --outputs {TINY} --out a --stream --scratch thesis.txt": "cannot write thesis.txt: it is a file",
}


@pytest.mark.parametrize("line", REFUSED)
def test_unstreamable_models_refused(line, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    Path("thesis.txt").write_text("mine")
    Path("full").mkdir()
    Path("full/thesis.txt").write_text("mine")
    message = refused(line.split())
    assert REFUSED[line] in message and message.count("\n") == 1


def test_a_scratch_is_one_process_s_at_a_time_and_needs_room(tmp_path, monkeypatch):
    opened, inputs = open_checkpoint(TINY, scratch=tmp_path), random_tokens(4, 8, 300, 0)
    with monkeypatch.context() as patch, pytest.raises(InputError, match="another process is at the same work in"):
        patch.setattr(io, "locked", lambda *unused, **how: contextlib.nullcontext(False))
        fingerprint_outputs(opened, inputs)
    with monkeypatch.context() as patch, pytest.raises(InputError, match="No space left on device; free some room"):
        patch.setattr(scratch.os, "posix_fallocate", _full)
        fingerprint_outputs(opened, inputs)


def _full(*unused):
    raise OSError(28, "No space left on device")


@pytest.mark.nightly
def test_a_killed_command_is_typed_again_and_goes_on(tmp_path):
    """By SIGKILL, between two blocks or in the middle of one, again and again until the command comes through."""
    ref = "seed:1@llama-tiny,num_layers=24,d_model=64,num_heads=2,num_kv_heads=2,d_ff=96,vocab_size=300"
    sizes = "--num-inputs 64 --seq-len 64 --batch-size 4 --quiet"
    command = [sys.executable, "-m", "bornbiased_jax", "fingerprint", "--outputs", ref, *sizes.split()]
    streamed = [*command, "--stream", "--scratch", str(tmp_path / "s"), "--out", str(tmp_path / "a")]
    reached = [0]
    while len(reached) < 50:
        process = subprocess.Popen(streamed, stdout=subprocess.DEVNULL)
        while process.poll() is None:
            lists = list((tmp_path / "s").glob(f"*/{scratch.LIST}"))
            if lists and io.read_json(lists[0])["blocks"] > reached[-1] + 4:
                process.kill()
                process.wait()
                reached.append(io.read_json(lists[0])["blocks"])
            time.sleep(0.002)
        if process.returncode == 0:
            break
    assert len(reached) > 2 and reached == sorted(set(reached))
    subprocess.run([*command, "--out", str(tmp_path / "b")], check=True, stdout=subprocess.DEVNULL)
    actual, reference = (load_outputs(tmp_path / name).outputs_ND for name in "ab")
    # float32 sums of tens of terms; the same bytes under the users' compiler.
    np.testing.assert_allclose(actual, reference, atol=1e-5)


def test_a_page_removes_its_own_files_alone(tmp_path):
    page = scratch.Page(tmp_path / "page", [(1, 2, 3)])
    page.path.mkdir()
    assert page.resume() == scratch.NOTHING and len(list(page.path.iterdir())) == 2
    (page.path / "mine.npz").write_bytes(b"mine")
    page.resume()
    page.remove()
    assert [path.name for path in page.path.iterdir()] == ["mine.npz"]


def test_functions_of_one_module_are_told_apart():
    """A streamed pass is known by the functions that it calls."""
    first, second = code.code_digest, code.closure
    assert scratch.describe(first) != scratch.describe(second) and scratch.describe(first) == scratch.describe(
        code.code_digest
    )
    assert scratch.describe(jax.tree_util.Partial(first, 1)) != scratch.describe(jax.tree_util.Partial(second, 1))
    with pytest.raises(InputError, match="<lambda> is not told from other functions: define it at the top of"):
        scratch.describe(lambda o, layer: 2 * o)


def test_a_page_has_its_room_where_files_are_filled_with_zeros(tmp_path, monkeypatch):
    """Systems without ``posix_fallocate`` compute the same."""
    inputs = random_tokens(4, 6, 300)
    expected = fingerprint_outputs(open_checkpoint(TINY, scratch=tmp_path / "a"), inputs).outputs_ND
    monkeypatch.delattr(scratch.os, "posix_fallocate")
    outputs_ND = fingerprint_outputs(open_checkpoint(TINY, scratch=tmp_path / "b"), inputs).outputs_ND
    np.testing.assert_array_equal(outputs_ND, expected)


def test_nan_in_a_later_leaf_is_no_small_number():
    cfg = SHALLOW.replace(num_layers=1)
    params = models.init_seed(cfg, 0)
    params["final_norm"]["scale"] = params["final_norm"]["scale"] * np.float32(np.nan)
    with pytest.raises(Overflow):
        check_overflow(cfg, params)
