"""The cache: what is stored comes back, and no damage to it is ever an error."""

import sys
from pathlib import Path

import pytest

from bornbiased_jax.text import cache


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_stored_bytes_come_back(folder):
    assert cache.load("a/b") is None
    cache.store("a/b", b"some text" * 1000)
    assert cache.load("a/b") == b"some text" * 1000
    assert [path.name for path in (folder / "a").iterdir()] == ["b"]


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 500])
def test_damage_is_a_miss_and_is_mended(folder, damage):
    cache.store("name", b"good")
    (folder / "name").write_bytes(damage)
    assert cache.load("name") is None
    cache.store("name", b"good")
    assert cache.load("name") == b"good"


def test_every_flipped_byte_is_a_miss(folder):
    cache.store("name", b"the content that must not change")
    content = (folder / "name").read_bytes()
    for index in range(len(content)):
        (folder / "name").write_bytes(content[:index] + bytes([content[index] ^ 1]) + content[index + 1 :])
        assert cache.load("name") is None, index


def test_an_unwritable_cache_is_left_alone(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(tmp_path / "file"))
    cache.store("name", b"data")
    assert cache.load("name") is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="folders of another platform")
@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"XDG_CACHE_HOME": "/x"}, "/x/bornbiased-jax"),
        ({"XDG_CACHE_HOME": ""}, "/home/me/.cache/bornbiased-jax"),
        ({cache.CACHE_VARIABLE: "/mine"}, "/mine"),
    ],
)
def test_the_folder_is_the_platforms(monkeypatch, variables, expected):
    monkeypatch.delenv(cache.CACHE_VARIABLE)
    monkeypatch.setenv("HOME", "/home/me")
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    assert cache.cache_dir() == Path(expected)
