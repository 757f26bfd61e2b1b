"""The table of parity: every family, written as itself, and one of them compared."""

import pytest

from benchmarks import parity
from bornbiased_jax.checkpoints.families import FAMILIES
from bornbiased_jax.errors import InputError


def test_every_family_has_its_row():
    assert set(parity.MODELS) == set(FAMILIES)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "qwen2"])
def test_a_family_is_compared(family, monkeypatch):
    pytest.importorskip("torch", exc_type=ImportError)
    pytest.importorskip("transformers", exc_type=ImportError)
    small = dict(num_layers=1, num_heads=2, num_kv_heads=2, d_model=16, d_ff=16, vocab_size=32)
    name, changes = parity.MODELS[family]
    monkeypatch.setattr(parity, "find_smollm2", lambda: None)
    monkeypatch.setitem(parity.MODELS, family, (name, {**changes, **small}))
    findings = parity.measure((family,), 3)
    (row,) = findings["rows"]
    assert row["family"] == family and row["max_abs_error"] <= 1e-5 * row["logit_std"]
    (table,) = parity.tables(findings)
    assert table.rows[0].measured["GGUF"] == family


def test_families_that_there_are_not_are_refused():
    with pytest.raises(InputError, match="unknown families bloom"):
        parity.main(["--families", "gpt2,bloom"])
