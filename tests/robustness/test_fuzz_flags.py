"""What is typed on the command line is done, or refused in one sentence, within bounds of memory and time.

Every number is refused beyond its range, by option, value and range, before anything is read.
"""

import click
import hypothesis
import pytest
from hypothesis import strategies as st

from tests.cli.test_options import commands
from tests.robustness.flags import CALLS, FORMS, WORK, extremes, fault_of, kept, name_of, options_of, typed
from tests.tiers import nightly_except

BEYOND = ("-1", "1" + "0" * 40, "9" * 5000, "x", "nan", "inf", "-inf", "1e999", "")
# Names of files among them: none may lead out of the folder in which the call is made.
WORDS = st.text(st.characters(exclude_characters="\0/~", codec="utf-8"), max_size=20)


def values(parameter: click.Parameter) -> st.SearchStrategy[str]:
    """Ends of an option's type and beyond, or anything at all."""
    ends = st.sampled_from(extremes(parameter))
    if getattr(parameter, "is_flag", False):
        return ends
    kind = parameter.type.name
    if kind == "integer":
        # Small ones, or none that the option takes: in between lies honest work.
        return ends | st.integers(-(10**6), 8).map(str) | st.integers(10**10).map(str)
    if kind == "float":
        return ends | st.floats().map(repr)
    return ends | WORDS


def test_every_command_is_tried():
    assert set(commands()) == set(CALLS)
    existing = {option for path in CALLS for parameter in options_of(path) for option in parameter.opts}
    assert set(FORMS) <= existing and {f"--{name.replace('_', '-')}" for name in WORK} <= existing


LONG = ("predict", "probe scaling", "sinks", "scan", "models", "whichseed", "parity", "probe preference", "reproduce")


@pytest.mark.slow
@pytest.mark.parametrize("path", nightly_except(CALLS, *(path for path in CALLS if path not in LONG)))
@hypothesis.settings(max_examples=6, phases=[hypothesis.Phase.generate])
@hypothesis.given(data=st.data())
def test_extreme_values(path, data):
    parameter = data.draw(st.sampled_from(options_of(path)))
    words = typed(path, parameter, data.draw(values(parameter)))
    if words is not None:
        assert fault_of(words) is None, words


@pytest.mark.parametrize("words", kept(), ids=name_of)
def test_corpus_of_command_lines(words):
    assert fault_of(words) is None


@pytest.mark.parametrize("path", CALLS)
def test_numbers_beyond_their_range(path, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for parameter in options_of(path):
        if parameter.type.name not in ("integer", "float"):
            continue
        for value in BEYOND:
            err = refused([*CALLS[path], f"{parameter.opts[0]}={value}"])
            assert err.count("\n") == 1 and len(err) < 300
            assert err.startswith(f"bornbiased: {parameter.opts[0]} ") and " from " in err
    assert not list(tmp_path.iterdir())
