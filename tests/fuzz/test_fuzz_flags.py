"""Every number on the command line is refused beyond its range, by option, value and range, before anything is read."""

import pytest

from bornbiased_jax.cli.main import run
from tests.fuzz.flags import CALLS, options_of

BEYOND = ("-1", "1" + "0" * 40, "9" * 5000, "x", "nan", "inf", "-inf", "1e999", "")


@pytest.mark.parametrize("path", CALLS)
def test_numbers_beyond_their_range(path, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for parameter in options_of(path):
        if parameter.type.name not in ("integer", "float"):
            continue
        for value in BEYOND:
            assert run([*CALLS[path], f"{parameter.opts[0]}={value}"]) == 2
            err = capsys.readouterr().err
            assert err.count("\n") == 1 and len(err) < 300
            assert err.startswith(f"bornbiased: {parameter.opts[0]} ") and " from " in err
    assert not list(tmp_path.iterdir())
