"""Token space names tokens by their strings where both models have a tokenizer."""

import dataclasses
import json

import numpy as np
import pytest
import tokenizers

from bornbiased_jax.checkpoints.export import export_hugging_face
from bornbiased_jax.checkpoints.native_roles import NativeRoles
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import Settings, fingerprint, save_fingerprint
from bornbiased_jax.lineage.scan import find_bases, scan
from bornbiased_jax.lineage.trace import trace
from bornbiased_jax.lineage.weights_verdict import auto_verdict
from bornbiased_jax.parameters import flatten, unflatten
from bornbiased_jax.text import load_tokenizer
from bornbiased_jax.text.bpe import LibraryTokenizer
from tests.fixtures.gguf_files import convert
from tests.fixtures.suites import initialization, write
from tests.lineage.descendants import config, descend, edited, orders, reader, rotated

CFG = config(num_layers=2, d_model=48, d_ff=64)
ORDER = orders(1, 256)[0]


def tokenizer(order, folder, changed=0):
    """A tokenizer of one-letter pieces, in some order; some of them replaced by others."""
    pieces = [f"{chr(0x4E00 + number)}" if place >= changed else f"new {place}" for place, number in enumerate(order)]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    return LibraryTokenizer("pieces", backend.to_str(), None).save(folder)


def permuted(cfg, params, order=ORDER):
    """The same function of a vocabulary that is numbered otherwise: new token i is the old ``order[i]``."""

    def edit(path, leaf):
        return leaf[order] if path == "embed/embedding" else leaf[:, order] if path == "head/kernel" else leaf

    return edited(cfg, params, edit)


def with_tokenizer(checkpoint, paths):
    """The same weights with other files of a tokenizer."""
    return dataclasses.replace(checkpoint, tokenizer_files=paths)


@pytest.fixture
def pair(tmp_path):
    """A base and its copy, rotated and with another vocabulary, each with its tokenizer."""
    base, suspect = descend(CFG, 7), permuted(*rotated(*descend(CFG, 7)))
    ours = tokenizer(np.arange(256), tmp_path / "ours")
    theirs = tokenizer(ORDER, tmp_path / "theirs", changed=6)
    return (
        with_tokenizer(reader(base), (ours,)),
        with_tokenizer(reader(suspect), (theirs,)),
    )


@pytest.fixture
def padded(tmp_path):
    """A tokenizer, and the same with a token that was added after training: one id more than the model has."""
    plain = tokenizer(np.arange(256), tmp_path / "plain")
    content = json.loads(plain.read_text())
    pad = {"id": 256, "content": "[PAD]", "special": True, "normalized": False}
    content["added_tokens"].append({**pad, "single_word": False, "lstrip": False, "rstrip": False})
    (tmp_path / "padded").mkdir()
    (tmp_path / "padded" / "tokenizer.json").write_text(json.dumps(content))
    return plain, tmp_path / "padded" / "tokenizer.json"


@pytest.mark.parametrize("is_resized", [False, True])
def test_a_pad_token_that_was_added_changes_no_verdict(padded, is_resized):
    """``add_special_tokens({"pad_token": "[PAD]"})``, with and without ``resize_token_embeddings``."""
    base, suspect = descend(CFG, 7), rotated(*descend(CFG, 7))
    if is_resized:
        cfg, params = suspect
        flat = {path: np.asarray(leaf) for path, leaf in flatten(params).items()}
        flat["embed/embedding"] = np.pad(flat["embed/embedding"], ((0, 1), (0, 0)))
        flat["head/kernel"] = np.pad(flat["head/kernel"], ((0, 0), (0, 1)))
        suspect = cfg.replace(vocab_size=257), unflatten(flat)
    plain, with_pad = padded
    first = NativeRoles(with_tokenizer(reader(base), (plain,)))
    second = NativeRoles(with_tokenizer(reader(suspect), (with_pad,)))
    labels = second.token_labels()
    assert labels[:256] == first.token_labels() and len(labels) == 256 + is_resized
    verdict = auto_verdict(fingerprint(first), fingerprint(second))
    assert (verdict.verdict, verdict.detail["tokens_matched_by"]) == ("same-lineage", "strings")


def test_a_rotated_copy_with_another_vocabulary_is_found_in_token_space(pair):
    verdict = auto_verdict(*(fingerprint(NativeRoles(model)) for model in pair))
    assert (verdict.verdict, verdict.detail["tokens_matched_by"]) == ("same-lineage", "strings")
    assert next(row["z"] for row in verdict.detail["tests"] if row["name"] == "neurons in token space") > 50
    # Numbers alone tell nothing of a vocabulary in another order.
    by_ids = [fingerprint(NativeRoles(model), Settings(token_labels="ids")) for model in pair]
    missed = next(row for row in auto_verdict(*by_ids).detail["tests"] if row["name"] == "neurons in token space")
    assert abs(missed["z"]) < 4


@pytest.mark.parametrize("stored_first", [True, False])
def test_a_rotated_copy_with_a_tokenizer_is_found_by_a_stored_fingerprint_without_one(tmp_path, stored_first):
    """The checkpoint's tokens are named by their numbers then, as those of the stored fingerprint are."""
    files = (tokenizer(np.arange(256), tmp_path / "files"),)
    stored = fingerprint(NativeRoles(reader(descend(CFG, 7))))
    copy = with_tokenizer(reader(rotated(*descend(CFG, 7))), files)
    verdict = trace(*((stored, copy) if stored_first else (copy, stored)), num_permutations=99)
    assert (verdict.verdict, verdict.detail["tokens_matched_by"]) == ("same-lineage", "ids")
    assert next(row["z"] for row in verdict.detail["tests"] if row["name"] == "neurons in token space") > 50


def test_a_scan_names_tokens_by_their_numbers_where_one_model_has_no_tokenizer(tmp_path):
    """A stored base without strings, and a suspect without them against a checkpoint that has some."""
    for name, weights in (("base", descend(CFG, 7)), ("copy", rotated(*descend(CFG, 7)))):
        export_hugging_face(*weights, tmp_path / name)
    tokenizer(np.arange(256), tmp_path / "copy")
    stored = save_fingerprint(tmp_path / "base.fingerprint", fingerprint(tmp_path / "base"))
    for suspect, base in (("copy", stored), ("base", tmp_path / "copy")):
        (match,) = scan(str(tmp_path / suspect), find_bases([str(base)])).matches
        assert (match.verdict, match.evidence) == ("same-lineage", "neurons in token space")


@pytest.mark.parametrize("kind", ["t5", "no_vocab"])
def test_a_tokenizer_of_a_kind_that_is_not_read_is_no_reason_not_to_compare_weights(tmp_path, capsys, kind):
    place = write(tmp_path, "base", initialization(1))
    path = convert(tmp_path / "model.gguf", place, fields={"tokenizer.ggml.model": kind})
    verdict = trace(place, path, num_permutations=99)
    assert (verdict.verdict, verdict.detail["identity"]) == ("same-lineage", "tensors")
    assert "tokens of this model are compared by their numbers" in capsys.readouterr().err
    with pytest.raises(InputError, match="tokenizer"):
        load_tokenizer(path)
    # One that is known and corrupted is not passed over.
    (place / "tokenizer.json").write_text('{"model": {')
    with pytest.raises(InputError, match="tokenizer.json"):
        fingerprint(place)
