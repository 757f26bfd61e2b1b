"""docs/guides/convert_llama2c.py: models and tokenizers are those of llama2.c, and bad input is refused."""

import json
import struct
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.cli.main import run
from bornbiased_jax.evaluation.parity import parity
from bornbiased_jax.model import apply
from bornbiased_jax.text import bpe
from tests.fixtures.llama2c_files import (
    SCRIPT,
    SIZES,
    SPECIAL,
    convert,
    script,
    tokenizer_bytes,
    transposed,
    write,
    write_converted,
    write_pair,
)
from tests.fixtures.sentence_pieces import sentence_piece_model


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
    arrays = write(tmp_path / "model.bin", tied=tied)
    checkpoint = open_checkpoint(convert(tmp_path / "model.bin", tmp_path / "converted"))
    assert checkpoint.cfg.tie_embeddings == tied
    tokens = np.asarray([3, 1, 4, 1, 5, 9, 2, 6], np.int32)
    logits = np.asarray(apply(checkpoint.cfg, checkpoint.params(), tokens[None]).logits_BTV)[0]
    expected = reference_logits(arrays, tokens, tied)
    assert np.abs(logits - expected).max() <= 2e-6 * np.abs(expected).max() * SIZES["dim"]


def sizes_of(cfg):
    return (cfg.d_model, cfg.d_ff, cfg.num_layers, cfg.num_heads, cfg.kv_heads, cfg.vocab_size, cfg.max_seq_len)


def test_sizes_stand_in_the_header(tmp_path):
    checkpoint = open_checkpoint(write_converted(tmp_path / "model", tied=False))
    assert sizes_of(checkpoint.cfg) == tuple(SIZES.values())


# The digests are those of the weights as the files have them, whatever is converted on the way.
@pytest.mark.parametrize(
    ("name", "sizes", "vocab_size", "digest"),
    [
        ("stories260K/stories260K.bin", (64, 172, 5, 8, 4, 512, 512), 512, "9a37144cbd97"),
        ("stories260K/stories260K_plctlab_relayout.bin", (64, 172, 5, 8, 4, 512, 512), 512, "e4e8ed4065ab"),
        ("stories260K/stories260K_plctlab_transpose.bin", (64, 172, 5, 8, 4, 512, 512), 512, "1d1961ca2fbc"),
        ("babyllama/tok105_model5000.bin", (128, 352, 5, 8, 4, 105, 256), 105, "7cfb49f2e441"),
        ("llama2xs/model.bin", (64, 192, 5, 8, 4, 512, 256), None, "75649801fdc8"),
    ],
)
def test_real_models_open(reference_model, name, sizes, vocab_size, digest):
    checkpoint = open_checkpoint(reference_model(name))
    assert sizes_of(checkpoint.cfg) == sizes and checkpoint.digest().startswith(digest)
    tokenizer = checkpoint.tokenizer
    assert (tokenizer and tokenizer.vocab_size) == vocab_size
    assert tokenizer is None or (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)


@pytest.mark.slow
def test_transformers_gives_the_logits_of_a_real_model(reference_model):
    pytest.importorskip("transformers", exc_type=ImportError)
    compared = parity(reference_model("stories260K/stories260K.bin"), num_sequences=2, seq_len=128)
    assert compared["max_abs_error"] <= 1e-5 * compared["logit_std"] and compared["top1_agreement"] == 1.0


def test_copies_in_other_layouts_have_other_weights(tmp_path):
    places = (
        write_converted(tmp_path / "a", tied=True),
        write_converted(tmp_path / "b", tied=True, change=transposed),
    )
    assert len({open_checkpoint(place).digest() for place in places}) == 2


def test_converter_runs_without_the_package(tmp_path):
    write(tmp_path / "model.bin", tied=True)
    call = [sys.executable, "-I", str(SCRIPT), "model.bin", "converted"]
    process = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True)
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")
    assert {path.name for path in (tmp_path / "converted").iterdir()} == {"config.json", "model.safetensors"}
    again = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True)
    assert (again.returncode, again.stderr) == (2, "converted is not empty: name another directory\n")
    assert "bornbiased_jax" not in SCRIPT.read_text()


def test_a_command_names_the_script(tmp_path, capsys):
    write(tmp_path / "model.bin", tied=True)
    assert run(["digest", str(tmp_path / "model.bin")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"python docs/guides/convert_llama2c.py {tmp_path / 'model.bin'} DIR" in line
    assert SCRIPT.is_file() and SCRIPT.as_posix().endswith("docs/guides/convert_llama2c.py")


def assert_refused(capsys, words, *call):
    """The script ends with exit code 2 and one sentence that holds the words."""
    assert script().main([str(part) for part in call]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert any(word in line for word in words.split("|")), line


@settings(max_examples=40)
@given(length=st.integers(0, 27_000), tied=st.booleans())
def test_a_file_of_any_other_length_is_refused(tmp_path_factory, length, tied):
    folder = tmp_path_factory.mktemp("cut")
    path = folder / "model.bin"
    write(path, tied=tied)
    data = path.read_bytes()
    if length == len(data):
        return
    path.write_bytes((data * 2)[:length])
    with pytest.raises(script().BadInputError, match="cut short|another format|not a llama2.c model"):
        script().convert(path, folder / "converted")
    assert not (folder / "converted").exists()


@pytest.mark.parametrize(
    "change", [dict(heads=5), dict(kv_heads=4), dict(layers=0), dict(layers=-2), dict(vocab=-(2**31), layers=10_000)]
)
def test_headers_that_make_no_sense_are_refused(tmp_path, capsys, change):
    path = tmp_path / "model.bin"
    path.write_bytes(struct.pack("<7i", *(SIZES | change).values()) + bytes(20_000))
    assert_refused(capsys, "not a llama2.c model|cut short", path, tmp_path / "converted")


def test_later_versions_are_refused_with_the_remedy(tmp_path, capsys):
    path = tmp_path / "model.bin"
    path.write_bytes(struct.pack("<7i", 0x616B3432, 2, 24, 20, 2, 6, 3) + bytes(999))
    assert_refused(capsys, "version 2 llama2.c file: export it again with --version 0", path, tmp_path / "converted")


def test_converter_refuses_missing_file(tmp_path, capsys):
    assert_refused(capsys, "No such file", tmp_path / "none.bin", tmp_path / "converted")
    assert_refused(capsys, "Is a directory", tmp_path, tmp_path / "converted")


def test_nan_is_refused(tmp_path, capsys):
    path = tmp_path / "model.bin"
    write(path, tied=True)
    data = bytearray(path.read_bytes())
    data[28:32] = struct.pack("<f", float("nan"))
    path.write_bytes(data)
    assert_refused(capsys, "NaN or infinite values in its embedding", path, tmp_path / "converted")


def llama2c_loop(pieces: list[str], scores: list[float], text: str) -> list[int]:
    """llama2.c's encode: characters (or bytes), then the best neighbors joined until none can be."""
    ids_of = {piece: token for token, piece in enumerate(pieces)}
    ids = []
    for character in (" " + text) if text else "":
        spelled = [byte + 3 for byte in character.encode()]
        ids.extend([ids_of[character]] if character in ids_of else spelled)
    while True:
        best = None
        for i in range(len(ids) - 1):
            token = ids_of.get(pieces[ids[i]] + pieces[ids[i + 1]])
            if token is not None and (best is None or scores[token] > best[0]):
                best = (scores[token], i, token)
        if best is None:
            return ids
        ids[best[1] : best[1] + 2] = [best[2]]


def converted_tokenizer(data: bytes) -> bpe.LibraryTokenizer:
    return bpe.from_json(json.dumps(script().to_tokenizer(*script().read_pieces(data, "x"))), "x", "</s>")


@st.composite
def vocabularies(draw):
    """Pieces and scores over three letters and spaces; joined pieces have distinct scores."""
    joined = draw(st.lists(st.text("ab ", min_size=2, max_size=4), unique=True, max_size=14))
    scores = draw(st.permutations(range(len(joined))))
    return [*SPECIAL, *"ab ", *joined], [0.0] * 259 + [-9.0] * 3 + list(map(float, scores))


@given(vocabulary=vocabularies(), text=st.text("ab é\n<0x41>\u2581", max_size=40))
def test_ids_are_llama2cs_where_scores_are_distinct(vocabulary, text):
    tokenizer = converted_tokenizer(tokenizer_bytes(*vocabulary))
    ids = tokenizer.encode(text).tolist()
    assert ids == llama2c_loop(*vocabulary, text)
    assert tokenizer.decode([1, *ids, 2]) == text


def test_ids_are_llama2cs_on_stories(shared, reference_model):
    tokenizer = open_checkpoint(reference_model("stories260K/stories260K.bin")).tokenizer
    data = (shared / "checkpoints" / "stories260K" / "tok512.bin").read_bytes()
    pieces, scores = script().read_pieces(data, "tok512.bin")
    stories = (shared / "data" / "tinystories" / "tinystories_10k.txt").read_text()
    for text in (*stories[:12_000].split("\n"), "", " ", "  two", "“Curly”\té日🎉"):
        ids = tokenizer.encode(text).tolist()
        assert ids == llama2c_loop(pieces, scores, text)
        assert tokenizer.decode(ids) == text
    # What llama2.c's readme run begins with.
    assert tokenizer.decode([1, *tokenizer.encode("Once upon a time"), 2]) == "Once upon a time"


def test_the_tokenizer_begins_and_ends_texts(tmp_path):
    tokenizer = open_checkpoint(write_pair(tmp_path)).tokenizer
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_id) == (264, 1, 2)
    assert tokenizer.token_bytes()[:4] == [b"<unk>", b"<s>", b"</s>", b"\0"]
    assert tokenizer.encode("ab b").tolist() == [263, 259, 261]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:3],
        lambda data: data[:-1],
        lambda data: data[:50],
        lambda data: struct.pack("<i", 999) + data[4:],
        lambda data: data[:8] + struct.pack("<i", -5) + data[12:],
        lambda data: data[:-1] + b"\xff",
        lambda data: data[:4] + struct.pack("<f", float("nan")) + data[8:],
    ],
)
def test_damaged_tokenizers_are_refused(damage):
    content = tokenizer_bytes([*SPECIAL, "a", "b"], [0.0] * 261)
    assert len(script().read_pieces(content, "x")[0]) == 261
    with pytest.raises(script().BadInputError, match="not a whole llama2.c tokenizer"):
        script().read_pieces(damage(content), "x")


def test_tokenizers_of_other_models_are_refused(tmp_path, capsys):
    model, folder = tmp_path / "model.bin", tmp_path / "converted"
    write(model, tied=True, vocab=262)
    cases = {
        "other.bin": (tokenizer_bytes([*SPECIAL, "a", "b"], [0.0] * 261), "has 261 pieces, the model 262"),
        "twice.bin": (tokenizer_bytes([*SPECIAL, "a", "b", "a"], [0.0] * 262), "gives one piece two ids"),
        "whole.bin": (model.read_bytes(), "not a whole llama2.c tokenizer"),
        "bad.model": (b"\x0a\xff\xff", "not a whole SentencePiece model|needs SentencePiece"),
    }
    for name, (data, words) in cases.items():
        (tmp_path / name).write_bytes(data)
        assert_refused(capsys, words, model, folder, "--tokenizer", tmp_path / name)
        assert not list(folder.iterdir())
    assert_refused(capsys, "No such file", model, folder, "--tokenizer", tmp_path / "none.bin")


def test_a_sentencepiece_model_is_copied(tmp_path, monkeypatch, capsys):
    lines = [f"the quick brown fox {i} jumps over the lazy dogs" for i in range(60)]
    (tmp_path / "tok.model").write_bytes(sentence_piece_model(lines, 300))
    write(tmp_path / "model.bin", tied=True, vocab=300)
    call = (tmp_path / "model.bin", tmp_path / "converted", "--tokenizer", tmp_path / "tok.model")
    with monkeypatch.context() as absent:
        absent.setitem(sys.modules, "sentencepiece", None)
        assert_refused(capsys, "needs SentencePiece: pip install sentencepiece", *call)
    tokenizer = open_checkpoint(convert(*call[:2], call[3])).tokenizer
    assert (tokenizer.name, tokenizer.vocab_size) == ("tokenizer.model", 300)
    assert tokenizer.decode(tokenizer.encode("the quick fox")) == "the quick fox"
