"""Values from files: JSON taken strictly, and refused by field, value and range."""

import json
from typing import Annotated, Literal, NotRequired

import pytest
from annotated_types import Interval, Len
from typing_extensions import TypedDict

from bornbiased_jax import schema
from bornbiased_jax.errors import InputError


class Inner(TypedDict):
    seeds: Annotated[list[Annotated[int, Interval(ge=0, le=9)]], Len(1, 3)]
    rate: NotRequired[Annotated[float, Interval(ge=0.0)] | None]


class Outer(TypedDict):
    inner: Inner
    kind: Literal["a", "b"]
    flag: NotRequired[bool]
    table: NotRequired[dict[str, Inner]]
    size: NotRequired[int | list[int]]


GOOD = {"inner": {"seeds": [1, 2], "rate": 1}, "kind": "a", "other": [None]}


def test_matching_value_accepted():
    assert schema.check(Outer, GOOD, "f")["inner"]["seeds"] == [1, 2]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"inner": 3}, "f has inner=3, but input should be a valid dictionary: correct it"),
        ({"inner": {}}, "f has no field 'inner.seeds': add it"),
        ({"inner": {"seeds": [1, 10]}}, "f has inner.seeds.1=10, but input should be less than or equal to 9"),
        ({"inner": {"seeds": [True]}}, "f has inner.seeds.0=True, but input should be a valid integer"),
        ({"inner": {"seeds": [1, 2, 3, 4]}}, "f has inner.seeds=[1, 2, 3, 4], but list should have at most 3 items"),
        (
            {"inner": {"seeds": [1], "rate": -1.5}},
            "f has inner.rate=-1.5, but input should be greater than or equal to 0",
        ),
        ({"kind": "c"}, "f has kind='c', but input should be 'a' or 'b'"),
        ({"kind": ["a"] * 99}, "…, but input should be 'a' or 'b'"),
        ({"flag": 1}, "f has flag=1, but input should be a valid boolean"),
        ({"size": "x"}, "f has size='x', but input should be a valid integer or input should be a valid list"),
        ({"table": {"x": {"seeds": "1"}}}, "f has table.x.seeds='1', but input should be a valid list"),
    ],
)
def test_mismatched_field_named_with_expected_type(change, words):
    with pytest.raises(InputError) as raised:
        schema.check(Outer, GOOD | change, "f")
    assert words in str(raised.value)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 250


def test_file_of_other_kind_refused():
    with pytest.raises(InputError, match="^f cannot be used: input should be a valid dictionary: make it again$"):
        schema.check(Outer, [1], "f", "make it again")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "at line 1, column 2"),
        ('{"a": NaN}', "NaN is no number of JSON"),
        ('{"a": -Infinity}', "-Infinity is no number of JSON"),
        ('{"a": 1e999}', "1e999 is beyond all numbers"),
        ('{"a": ' + "9" * 5000 + "}", "an integer beyond all sizes"),
        ("[" * 100_000, "nested too deep"),
        ('{"a":' * 200 + "1" + "}" * 200, "nested too deep"),
        ('{"a": 1, "a": 2}', "the name 'a' stands twice"),
        (b"\xff\xfe", "not UTF-8"),
        ("", "at line 1"),
    ],
)
def test_invalid_json_refused_in_one_sentence(text, words):
    with pytest.raises(InputError) as raised:
        schema.parse_json(text, "f")
    assert str(raised.value).startswith("f is not readable as JSON: ") and words in str(raised.value)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 250


def test_json_is_what_the_standard_library_reads():
    value = {"a": [1, -2.5e-3, None, True, "ü"], "b": {}, "c": [[[]]]}
    for text in (json.dumps(value), json.dumps(value).encode("utf-8-sig")):
        assert schema.parse_json(text, "f") == value
