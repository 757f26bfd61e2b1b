"""What is quantized to how many bits, by name: ``w8a8``, ``kv4``, ``w4a8kv4``."""

from __future__ import annotations

import re
from typing import NamedTuple

from bornbiased_jax.errors import InputError
from bornbiased_jax.quantization.fake import GRANULARITIES, Granularity

MIN_BITS, MAX_BITS = 2, 16
_NAME = re.compile(r"(?:w(?P<weights>\d+))?(?:a(?P<activations>\d+))?(?:kv(?P<cache>\d+))?")


class Scheme(NamedTuple):
    """Bits of the blocks' kernels, of what their linear maps read, and of keys and values; None leaves float32.

    What a value gate reads is no site of an edit and stays in float32 whatever the scheme.
    """

    weights: int | None = None
    activations: int | None = None
    cache: int | None = None

    def __str__(self) -> str:
        parts = (("w", self.weights), ("a", self.activations), ("kv", self.cache))
        return "".join(f"{letter}{bits}" for letter, bits in parts if bits is not None) or "none"


def parse_scheme(text: str) -> Scheme:
    """Parse a scheme by name.

    Raises:
        InputError: another form, or bits outside 2 to 16.

    >>> parse_scheme("w8a8"), parse_scheme("kv4")
    (Scheme(weights=8, activations=8, cache=None), Scheme(weights=None, activations=None, cache=4))
    """
    match = _NAME.fullmatch(text.strip().lower()) if len(text) < 100 else None
    if match is None or not any(match.groups()):
        raise InputError(f"{text!r} is not a quantization: write w8a8, kv4 or w4a8kv4")
    bits = {name: None if number is None else int(number) for name, number in match.groupdict().items()}
    for number in bits.values():
        if number is not None and not MIN_BITS <= number <= MAX_BITS:
            raise InputError(f"{text!r}: {number} bits are not between {MIN_BITS} and {MAX_BITS}")
    return Scheme(**bits)


def parse_schemes(text: str) -> list[Scheme]:
    """Parse schemes separated by commas.

    Raises:
        InputError: as :func:`parse_scheme`; one named twice.

    >>> [str(scheme) for scheme in parse_schemes("w8a8,kv4")]
    ['w8a8', 'kv4']
    """
    schemes = [parse_scheme(part) for part in text.split(",")]
    if len(set(schemes)) < len(schemes):
        raise InputError(f"{text!r} names one quantization twice")
    return schemes


def parse_granularities(text: str) -> list[Granularity]:
    """Parse granularities separated by commas, each once.

    Raises:
        InputError: an unknown one.

    >>> parse_granularities("token,tensor")
    ['token', 'tensor']
    """
    names: list[Granularity] = []
    for part in filter(None, text.split(",")):
        match = [name for name in GRANULARITIES if name == part.strip()]
        if not match:
            raise InputError(f"granularity {part.strip()!r} is not one of {', '.join(GRANULARITIES)}")
        names += [name for name in match if name not in names]
    if not names:
        raise InputError(f"no granularity: give one or more of {', '.join(GRANULARITIES)}")
    return names


def parse_kept(text: str) -> list[int]:
    """Parse numbers of first positions to keep, separated by commas, each once.

    Raises:
        InputError: anything but integers of at least 0.

    >>> parse_kept("0,1,4,1")
    [0, 1, 4]
    """
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"{text!r} is not a list of integers such as 0,1,4") from error
    for count in counts:
        if count < 0:
            raise InputError(f"{count} first positions cannot be kept: give 0 or more")
    return list(dict.fromkeys(counts))
