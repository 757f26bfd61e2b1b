"""Keep what was computed of an object with that object: one model is often compared with many others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

_Owner = TypeVar("_Owner")
_Rest = ParamSpec("_Rest")
_Value = TypeVar("_Value")


def memoized(compute: Callable[Concatenate[_Owner, _Rest], _Value]) -> Callable[Concatenate[_Owner, _Rest], _Value]:
    """Compute a value once for each object and the arguments after it, and keep it as long as the object lives.

    Unlike ``functools.cached_property`` before Python 3.12, threads that compute values of different objects do not
    wait for one another.
    """

    @functools.wraps(compute)
    def find(owner: _Owner, /, *args: _Rest.args, **kwargs: _Rest.kwargs) -> _Value:
        values = owner.__dict__.setdefault(f"_kept_{compute.__name__}", {})
        key = *args, *kwargs.items()
        if key not in values:
            values[key] = compute(owner, *args, **kwargs)
        value: _Value = values[key]
        return value

    return find
