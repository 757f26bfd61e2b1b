"""A file of the project's own that was changed is refused, however well it fits its type."""

import json

import pytest
from typing_extensions import TypedDict

from bornbiased_jax import sealed
from bornbiased_jax.errors import InputError


class Count(TypedDict):
    count: int


@pytest.fixture
def path(tmp_path):
    sealed.write(tmp_path / "a.json", {"count": 3})
    return tmp_path / "a.json"


def test_what_was_written_comes_back(path):
    assert sealed.read(Count, path, "remove it") == {"count": 3}


def test_a_changed_value_of_the_right_type_is_refused(path):
    path.write_text(path.read_text().replace("3,", "4,"))
    with pytest.raises(InputError, match="was changed since it was written: remove it"):
        sealed.read(Count, path, "remove it")


def test_a_file_of_an_older_version_has_no_digest(path):
    path.write_text('{"count": 5}')
    assert sealed.read(Count, path, "remove it") == {"count": 5}


@pytest.mark.parametrize("content", [[], {"count": "3"}, {"digest": "a"}, None])
def test_what_does_not_fit_is_refused(path, content):
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"a\.json"):
        sealed.read(Count, path, "remove it")
