"""Perplexity and bits per byte, against transformers and by hand."""

import dataclasses
import json
import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special
from tokenizers import Tokenizer, decoders, models, normalizers

from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.evaluation import perplexity
from bornbiased_jax.evaluation.perplexity import cut, evaluate, evaluate_checkpoint
from bornbiased_jax.init import init_seed
from bornbiased_jax.text.bpe import from_json
from bornbiased_jax.text.byte_level import ByteTokenizer
from bornbiased_jax.text.documents import source_digest
from bornbiased_jax.text.tokenizers import default_tokenizer, encode_documents
from tests.model.forward import apply

BYTES = ByteTokenizer()
TEXT = ["The quick brown fox — ein schöner Tag — jumps over the lazy dog. " * 30, "Another document. " * 40]


def test_a_loss_beyond_all_floats_is_json(monkeypatch):
    monkeypatch.setattr(perplexity, "forward_batches", lambda cfg, params, parts, *rest: [(7000.0, 7)] * len(parts))
    monkeypatch.setattr(perplexity, "check_forward", lambda *sizes, **more: None)
    cfg = preset("gpt2-tiny", vocab_size=256)
    scores = evaluate(cfg, {}, TEXT, BYTES, num_sequences=2, context=8, batch_size=2, quiet=True)
    assert (scores["loss"], scores["perplexity"]) == (1000.0, None)
    json.dumps(scores, allow_nan=False)


def test_agrees_with_transformers(tmp_path):
    torch = pytest.importorskip("torch", exc_type=ImportError)
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=256, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.3,
        )
    ).eval()  # fmt: skip
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    sequences = cut(encode_documents(BYTES, TEXT), 11, 64)
    options = dict(num_sequences=11, context=64, batch_size=4, quiet=True)
    actual = evaluate(checkpoint.cfg, checkpoint.params(), TEXT, BYTES, **options)
    ids = torch.tensor(sequences).long()
    with torch.no_grad():
        reference = float(model(input_ids=ids, labels=ids).loss)
    # An untrained model with large weights: the loss is far from ln 256, so agreement means something.
    assert abs(reference - math.log(256)) > 0.2
    assert actual["loss"] == pytest.approx(reference, abs=1e-5)
    assert actual["perplexity"] == pytest.approx(math.exp(reference), rel=1e-3)
    assert actual["num_tokens"] == 11 * 63 and actual["num_sequences"] == 11


@pytest.mark.slow
def test_bits_per_byte_and_counts():
    cfg = preset("gpt2-tiny", num_layers=1, num_heads=2, d_model=16, d_ff=16, vocab_size=256)
    params = init_seed(cfg, 0)
    result = evaluate(cfg, params, TEXT, BYTES, num_sequences=256, context=50, quiet=True)
    size = len("".join(TEXT).encode()) + 2
    assert result["num_sequences"] == size // 50 and result["num_tokens"] == result["num_sequences"] * 49
    assert result["bits_per_byte"] == pytest.approx(
        result["loss"] * result["num_tokens"] / math.log(2) / result["num_bytes"]
    )
    # A byte is a token, but the end of the first document has none (that of the second is cut off, or predicts).
    ids = np.concatenate([np.append(BYTES.encode(text), 0) for text in TEXT])[: size // 50 * 50].reshape(-1, 50)
    assert result["num_bytes"] == int((ids[:, 1:] != 0).sum())
    # Three sequences in batches of two: the missing one counts nothing.
    short = evaluate(cfg, params, TEXT, BYTES, num_sequences=3, context=50, batch_size=2, quiet=True)
    assert short["num_sequences"] == 3 and short["num_tokens"] == 3 * 49
    ids_NT = np.asarray(ids[:3], np.int32)
    logits_NTV = np.asarray(apply(cfg, params, jnp.asarray(ids_NT)).logits_BTV, np.float64)[:, :-1]
    targets_NT1 = ids_NT[:, 1:, None].astype(int)
    by_hand = special.logsumexp(logits_NTV, -1) - np.take_along_axis(logits_NTV, targets_NT1, -1)[..., 0]
    # Sums of 147 losses of about 5.5 in float32.
    assert short["loss"] == pytest.approx(by_hand.mean(), rel=1e-5)


def test_bytes_of_pieces_are_those_of_the_predicted_text():
    tokenizer, text = default_tokenizer(600), "Surprise: naïve façade, Ärger"
    ids = tokenizer.encode(text)
    cfg = preset("gpt2-tiny", num_layers=1, num_heads=2, d_model=16, d_ff=16, vocab_size=600)
    result = evaluate(cfg, init_seed(cfg, 0), [text], tokenizer, context=len(ids) + 1, quiet=True)
    assert result["num_bytes"] == len(text.encode()) - len(tokenizer.decode(ids[:1]))


def test_bytes_of_pieces_that_begin_with_a_space_are_counted(monkeypatch):
    """A decoder that strips the first space lost that of every sequence."""
    pieces = {"<unk>": 0, "▁": 1, "o": 2, "n": 3, "e": 4, "▁o": 5, "▁on": 6, "▁one": 7}
    backend = Tokenizer(models.BPE(pieces, [("▁", "o"), ("▁o", "n"), ("▁on", "e")], unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    monkeypatch.setattr(perplexity, "forward_batches", lambda cfg, params, parts, *rest: [(7.0, 7)] * len(parts))
    cfg = preset("gpt2-tiny", num_layers=1, num_heads=2, d_model=16, d_ff=16, vocab_size=256)
    text = ["one one one " * 2 + "one"]
    scores = evaluate(cfg, {}, text, from_json(backend.to_str(), "spaces"), context=3, quiet=True)
    assert scores["num_sequences"] == 2 and scores["num_bytes"] == 2 * len(" one one")


@pytest.mark.parametrize("tokenizer", [BYTES, default_tokenizer(600)], ids=["bytes", "pieces"])
@pytest.mark.parametrize("held", [1, 150, 700])
def test_a_text_in_pieces_is_the_text_in_one(tokenizer, held, monkeypatch):
    """Also where a piece ends within a character."""
    text = ["жçж — Ärger, naïve €uro 𝄞 " * 40, "Another document. " * 20]
    cfg = preset("gpt2-tiny", num_layers=1, num_heads=2, d_model=16, d_ff=16, vocab_size=600)
    params = init_seed(cfg, 0)
    options = dict(num_sequences=10**8, context=7, batch_size=3, quiet=True)
    full = evaluate(cfg, params, text, tokenizer, **options)
    monkeypatch.setattr(perplexity, "PIECE_TOKENS", held)
    largest = []
    monkeypatch.setattr(perplexity, "check_tokens", lambda x_NT, size: largest.append(x_NT.size))
    assert evaluate(cfg, params, text, tokenizer, **options) == full
    assert max(largest) <= max(held, 3 * 7) and len(largest) > 1


def test_refuses():
    cfg = preset("gpt2-tiny", num_layers=1, num_heads=2, d_model=16, d_ff=16, vocab_size=100)
    params = init_seed(cfg, 0)
    with pytest.raises(InputError, match="outside the model.s vocabulary of 100"):
        evaluate(cfg, params, TEXT, BYTES, context=50, quiet=True)
    with pytest.raises(InputError, match="less than one sequence"):
        evaluate(cfg, params, ["short"], BYTES, context=50, quiet=True)
    with pytest.raises(InputError, match="predicts nothing"):
        evaluate(cfg, params, TEXT, BYTES, context=1, quiet=True)


def with_info(checkpoint, info):
    """A checkpoint that says something else of its run."""
    return dataclasses.replace(checkpoint, info=info)


@pytest.mark.parametrize(
    ("data", "source", "same"),
    [
        ("builtin:prose", "builtin:prose", True),
        ("builtin:prose", "builtin:code", False),
        ("books/a.txt", "./books/../books/a.txt", True),
        ("a.txt", "copy.txt", True),
        ("a.txt", "other.txt", None),
        ("books/a.txt", "books/b.txt", None),
        ("builtin:prose", "prose", None),
        ("hf:one", "hf:two", None),
    ],
)
def test_training_text_is_known_by_name_or_content(data, source, same, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name, text in {"a.txt": "one", "copy.txt": "one", "other.txt": "two"}.items():
        (tmp_path / name).write_text(text)
    initial = open_checkpoint("seed:0@gpt2-tiny,num_layers=1,d_model=8,num_heads=1,vocab_size=260")
    monkeypatch.setattr(perplexity, "read_run", lambda folder: {"config": {"data": data}})
    assert perplexity.is_training_text(with_info(initial, {"run": "runs/a"}), source) is same
    assert perplexity.is_training_text(initial, source) is None


def test_another_text_of_the_name_is_no_training_text(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("one")
    record = {"config": {"data": "a.txt"}, "provenance": {"data": {"source_digest": source_digest("a.txt")}}}
    monkeypatch.setattr(perplexity, "read_run", lambda folder: record)
    trained = with_info(open_checkpoint("seed:0@gpt2-tiny"), {"run": "runs/a"})
    assert perplexity.is_training_text(trained, "a.txt") is True
    (tmp_path / "a.txt").write_text("two")
    assert perplexity.is_training_text(trained, "a.txt") is None


@pytest.mark.parametrize(
    ("asked", "trained", "positions", "used"),
    [(33, 128, 64, 33), (None, 128, 512, 128), (None, None, 64, 64), (None, None, 4096, 2048)],
)
def test_context_defaults_to_run_then_model(asked, trained, positions, used, monkeypatch):
    initial = open_checkpoint(
        f"seed:0@gpt2-tiny,num_layers=1,d_model=8,num_heads=1,vocab_size=260,max_seq_len={positions}"
    )
    info = {"seed": 7, "step": 3} | ({} if trained is None else {"context": trained})
    monkeypatch.setattr(perplexity, "evaluate", lambda *arguments, **options: {"context": options["context"]})
    monkeypatch.setattr(perplexity, "read_documents", lambda source: [source])
    run = with_info(initial, info)
    result = evaluate_checkpoint(run, "text", tokenizer=BYTES, context=asked)
    assert result == {"context": used, "checkpoint": initial.reference, "seed": 7, "step": 3, "training_text": None}
    with pytest.raises(InputError, match="context=0"):
        evaluate_checkpoint(run, "text", tokenizer=BYTES, context=0)
    with pytest.raises(InputError, match="has no tokenizer"):
        evaluate_checkpoint(run, "text")
