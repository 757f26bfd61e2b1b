"""docs/guides/make_store.py: the store that it makes is scanned, and what it cannot read is named."""

import importlib.util
import sys
from pathlib import Path

import pytest

from bornbiased_jax.cli.main import run

SCRIPT = Path(__file__).parents[2] / "docs" / "guides" / "make_store.py"
MODEL = "seed:1@llama-tiny,num_layers=1,num_heads=2,d_model=32,d_ff=48,vocab_size=96"


def make(monkeypatch, *words):
    spec = importlib.util.spec_from_file_location("make_store", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "argv", [SCRIPT.name, *map(str, words)])
    module.main()


def test_a_store_grows_and_is_scanned(tmp_path, monkeypatch, capsys):
    store = tmp_path / "store"
    make(monkeypatch, store, f"first={MODEL},MIT")
    make(monkeypatch, store, f"second={MODEL.replace('seed:1', 'seed:2')},Apache-2.0")
    assert run(["scan", MODEL, str(store)]) == 0
    assert "shares an initialization with 1 of 2 bases: first" in capsys.readouterr().out


def test_what_cannot_be_read_is_named_in_one_sentence(tmp_path, monkeypatch, capsys):
    index = tmp_path / "index.json"
    index.write_text("{")
    for model, sentence in ((tmp_path / "missing", "missing does not exist"), (MODEL, f"{index} is not readable as")):
        with pytest.raises(SystemExit, match="2"):
            make(monkeypatch, tmp_path, f"name={model},MIT")
        assert sentence in capsys.readouterr().err
