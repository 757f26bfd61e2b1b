"""Files and folders that a user may not open end a command in one sentence."""

import os
import tempfile
from pathlib import Path

import pytest

from bornbiased_jax.cli.main import run
from tests.test_io import an_ordinary_user

INITIAL = "seed:1@llama-tiny,num_layers=1,num_heads=2,d_model=8,d_ff=8,vocab_size=64"


@pytest.fixture
def shut(capsys):
    """Return a folder that others may enter, with a model whose weights, and a copy of it that, nobody may open."""
    # Not in pytest's folder, which other users may not even enter.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for model in ("model", "closed"):
            assert run(["export", INITIAL, str(folder / model)]) == 0
        # Once, so that all is imported by the time that nobody reads it.
        for call in (
            ["digest", str(folder / "model")],
            ["audit", str(folder)],
            ["scan", INITIAL, str(folder / "model")],
        ):
            assert run(call) == 0
        (folder / "model" / "model.safetensors").chmod(0)
        (folder / "closed").chmod(0)
        capsys.readouterr()
        yield folder
        (folder / "closed").chmod(0o755)


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (["digest"], "model"),
        (["digest"], "closed"),
        (["scan", INITIAL], "closed"),
        (["audit"], "closed"),
        (["export", INITIAL], "closed"),
    ],
)
def test_what_nobody_may_open_is_one_sentence(shut, capsys, words, place):
    with an_ordinary_user():
        assert not os.access(shut / "closed" / "config.json", os.R_OK, effective_ids=True)
        assert run([*words, str(shut / place)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and str(shut / place) in error and "cannot be opened: Permission denied" in error
