"""llama2.c files: real ones, and ones that are cut, padded or something else."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import apply
from tests.fixtures.llama2c_files import SIZES, transposed, write, write_pair


def reference_logits(w, tokens, tied):
    """The forward pass of run.c for one sequence, in NumPy and float64, with its interleaved rotation."""
    heads, kv_heads, head = SIZES["heads"], SIZES["kv_heads"], SIZES["dim"] // SIZES["heads"]
    w = {name: array.astype(np.float64) for name, array in w.items()}

    def rms(x, scale):
        return scale * x / np.sqrt(np.mean(x * x) + 1e-5)

    def turn(vector, position):
        out = vector.copy()
        for i in range(0, vector.size, 2):
            angle = position * 10_000.0 ** -((i % head) / head)
            a, b = vector[i], vector[i + 1]
            out[i] = a * np.cos(angle) - b * np.sin(angle)
            out[i + 1] = a * np.sin(angle) + b * np.cos(angle)
        return out

    keys = [[] for _ in range(SIZES["layers"])]
    values = [[] for _ in range(SIZES["layers"])]
    logits = []
    for position, token in enumerate(tokens):
        x = w["embed"][token].copy()
        for layer in range(SIZES["layers"]):
            y = rms(x, w["norm1"][layer])
            q = turn(w["wq"][layer] @ y, position).reshape(heads, head)
            keys[layer].append(turn(w["wk"][layer] @ y, position).reshape(kv_heads, head))
            values[layer].append((w["wv"][layer] @ y).reshape(kv_heads, head))
            out = []
            for h in range(heads):
                g = h // (heads // kv_heads)
                scores = np.array([q[h] @ k[g] for k in keys[layer]]) / np.sqrt(head)
                p = np.exp(scores - scores.max())
                out.append(sum(p_t * v[g] for p_t, v in zip(p / p.sum(), values[layer], strict=True)))
            x = x + w["wo"][layer] @ np.concatenate(out)
            y = rms(x, w["norm2"][layer])
            gate = w["w1"][layer] @ y
            x = x + w["w2"][layer] @ (gate / (1 + np.exp(-gate)) * (w["w3"][layer] @ y))
        logits.append((w["embed"] if tied else w["head"]) @ rms(x, w["norm"]))
    return np.array(logits)


@pytest.mark.parametrize("tied", [True, False])
def test_logits_equal_those_of_the_c_program_in_numpy(tmp_path, tied):
    path = tmp_path / "model.bin"
    arrays = write(path, tied=tied)
    checkpoint = open_checkpoint(path)
    assert checkpoint.cfg.tie_embeddings == tied
    tokens = np.asarray([3, 1, 4, 1, 5, 9, 2, 6], np.int32)
    ours = np.asarray(apply(checkpoint.cfg, checkpoint.params, tokens[None]).logits_BTV)[0]
    expected = reference_logits(arrays, tokens, tied)
    assert np.abs(ours - expected).max() <= 2e-6 * np.abs(expected).max() * SIZES["dim"]


def sizes_of(cfg):
    return (cfg.d_model, cfg.d_ff, cfg.num_layers, cfg.num_heads, cfg.kv_heads, cfg.vocab_size, cfg.max_seq_len)


def test_sizes_stand_in_the_header(tmp_path):
    write(tmp_path / "model.bin", tied=False)
    checkpoint = open_checkpoint(tmp_path / "model.bin")
    assert sizes_of(checkpoint.cfg) == tuple(SIZES.values())
    assert checkpoint.source_format == "llama2.c"


@pytest.mark.parametrize(
    "name, sizes",
    [
        ("stories260K/stories260K.bin", (64, 172, 5, 8, 4, 512, 512)),
        ("babyllama/tok105_model5000.bin", (128, 352, 5, 8, 4, 105, 256)),
        ("llama2xs/model.bin", (64, 192, 5, 8, 4, 512, 256)),
    ],
)
def test_real_files_open(shared, name, sizes):
    checkpoint = open_checkpoint(shared / "checkpoints" / name)
    assert sizes_of(checkpoint.cfg) == sizes
    assert checkpoint.source_format == "llama2.c"


def test_copies_in_other_layouts_have_other_weights(tmp_path):
    write(tmp_path / "model.bin", tied=True)
    write(tmp_path / "transposed.bin", tied=True, change=transposed)
    assert len({open_checkpoint(tmp_path / name).digest() for name in ("model.bin", "transposed.bin")}) == 2


def test_copies_of_one_model_in_other_layouts_have_other_weights(shared):
    folder = shared / "checkpoints" / "stories260K"
    names = ("stories260K.bin", "stories260K_plctlab_relayout.bin", "stories260K_plctlab_transpose.bin")
    assert len({open_checkpoint(folder / name).digest() for name in names}) == 3


def test_the_tokenizer_beside_it_must_have_its_size(tmp_path):
    assert open_checkpoint(write_pair(tmp_path)).tokenizer.vocab_size == 264
    write(tmp_path / "model.bin", tied=True)
    assert open_checkpoint(tmp_path / "model.bin").tokenizer is None


def test_tokenizers_beside_real_files(shared):
    folder = shared / "checkpoints"
    assert open_checkpoint(folder / "stories260K" / "stories260K.bin").tokenizer.vocab_size == 512
    assert open_checkpoint(folder / "llama2xs" / "model.bin").tokenizer is None


@settings(max_examples=60)
@given(length=st.integers(0, 27_000), tied=st.booleans())
def test_a_file_of_any_other_length_is_refused(tmp_path_factory, length, tied):
    path = tmp_path_factory.mktemp("cut") / "model.bin"
    write(path, tied=tied)
    data = path.read_bytes()
    if length == len(data):
        return
    path.write_bytes((data * 2)[:length])
    with pytest.raises(InputError, match="truncated|another format|no llama2.c"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(heads=5), "no llama2.c checkpoint"),
        (dict(kv_heads=4), "no llama2.c checkpoint"),
        (dict(layers=0), "no llama2.c checkpoint"),
        (dict(layers=-2), "no llama2.c checkpoint"),
    ],
)
def test_headers_that_make_no_sense_are_refused(tmp_path, change, words):
    path = tmp_path / "model.bin"
    header = list((SIZES | change).values())
    path.write_bytes(struct.pack("<7i", *header) + bytes(20_000))
    with pytest.raises(InputError, match=words):
        open_checkpoint(path)


def test_later_versions_are_refused_with_the_remedy(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(struct.pack("<7i", 0x616B3432, 2, 24, 20, 2, 6, 3) + bytes(999))
    with pytest.raises(InputError, match="version 2 .* --version 0"):
        open_checkpoint(path)


def test_a_text_file_is_refused(tmp_path):
    path = tmp_path / "model.bin"
    path.write_text("a plain text that somebody called .bin, long enough to hold a header\n" * 9)
    with pytest.raises(InputError, match="no llama2.c checkpoint|another format|truncated"):
        open_checkpoint(path)


def test_nan_is_refused(tmp_path):
    path = tmp_path / "model.bin"
    write(path, tied=True)
    data = bytearray(path.read_bytes())
    data[28:32] = struct.pack("<f", float("nan"))
    path.write_bytes(data)
    with pytest.raises(InputError, match="embed/embedding .* NaN"):
        open_checkpoint(path)
