"""Numbers, names and terms, written for a sentence."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from bornbiased_jax.config import PRESETS, FieldValue, ModelConfig
from bornbiased_jax.report.numbers import LEAST_LOG10_P, SUPERSCRIPT

LEVEL = 0.01
"""A p-value below this, divided by the number of results it was chosen among, is called more than chance."""


def chance(log10_p: float) -> str:
    """Write a probability that is given as its log₁₀.

    >>> chance(-0.4), chance(-2.3), chance(-183.2), chance(-4000.0), chance(0.0)
    ('0.4', '0.005', '10⁻¹⁸³', '10⁻³⁰⁰', '1')
    """
    if log10_p > -4:
        return f"{10.0**log10_p:.2g}"
    # Rounded up, so that no more is claimed than was found; nobody needs less than 10⁻³⁰⁰.
    return f"10{str(max(math.ceil(log10_p), LEAST_LOG10_P)).translate(SUPERSCRIPT)}"


def named(model: Mapping[str, FieldValue] | None) -> str:
    """Name a configuration by the preset next to it and what differs from that; "" where more than six fields do.

    >>> named(PRESETS["gpt2-tiny"].replace(init="normal-0.02", num_layers=2).to_dict())
    'gpt2-tiny, num_layers = 2, init = normal-0.02'
    """
    if model is None:
        return ""
    # What is stored leaves some fields out while they have their default: compare all of them.
    values = vars(ModelConfig.from_dict(model))
    changes_of = {
        name: [field for field, value in vars(cfg).items() if values[field] != value] for name, cfg in PRESETS.items()
    }
    name, fields = min(changes_of.items(), key=lambda item: len(item[1]))
    return ", ".join([name, *(f"{field} = {values[field]}" for field in fields)]) if len(fields) <= 6 else ""


def count(number: int, noun: str) -> str:
    """Write a number with its noun.

    >>> count(1, "seed"), count(2000, "seed")
    ('1 seed', '2,000 seeds')
    """
    return f"{number:,} {noun if number == 1 else noun + 's'}"


def percent(fraction: float) -> str:
    """Write a fraction as a percentage with two significant digits, or as many as tell it from the whole.

    >>> percent(0.0190), percent(0.5), percent(0.00042), percent(0.0), percent(0.9996)
    ('1.9%', '50%', '0.042%', '0%', '99.96%')
    """
    digits = 2 if fraction < 0.995 else 3 if fraction >= 1 else -math.floor(math.log10(1 - fraction))
    return f"{100 * fraction:.{digits}g}%"


def percents(first: float, second: float) -> list[str]:
    """Write two fractions as percentages, unequal ones with as many digits as tell them apart.

    >>> percents(0.1234, 0.1229), percents(0.5, 0.25), percents(0.5, 0.5)
    (['12.34%', '12.29%'], ['50%', '25%'], ['50%', '50%'])
    """
    texts = [percent(first), percent(second)]
    # Seventeen digits tell any two numbers apart.
    for digits in range(3, 18):
        if first == second or texts[0] != texts[1]:
            break
        texts = [f"{100 * fraction:.{digits}g}%" for fraction in (first, second)]
    return texts


def rounded(value: float) -> str:
    """Write three significant digits, with a power of ten only from a billion on.

    >>> rounded(9.0412), rounded(4292.4), rounded(1.5e12)
    ('9.04', '4,290', '1.5e+12')
    """
    return f"{float(f'{value:.3g}'):,.15g}" if value < 1e9 else f"{value:.3g}"


def span(values: Sequence[float], digits: int = 2) -> str:
    """Write one value, or the range from the least to the largest.

    >>> span([0.5]), span([0.25, 0.5, 0.3])
    ('0.50', '0.25 to 0.50')
    """
    low, high = (f"{end(values):.{digits}f}" for end in (min, max))
    return low if low == high else f"{low} to {high}"


def among(names: Sequence[str]) -> str:
    """Join names by commas and "and".

    >>> among(["a"]), among(["a", "b"]), among(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def size(number: float | None) -> str:
    """Write bytes of memory in the units of errors about it; of None that it is not known.

    >>> size(512.0), size(1.5 * 2**30), size(3.2e14), size(None)
    ('0.0 MiB', '1.5 GiB', '298,023.2 GiB', 'memory not told')
    """
    if number is None:
        return "memory not told"
    return f"{number / 2**30:,.1f} GiB" if number >= 2**29 else f"{number / 2**20:,.1f} MiB"


TERMS: dict[str, str] = {
    "top-1 token": "the token that is predicted for more inputs than any other",
    "top-1 fraction": "the fraction of inputs that are answered with it",
    "over uniform": "its count over the largest count that equally likely tokens would reach",
    "log10 p": "log₁₀ of the probability of as much by chance, 0 at most; −3 is one in a thousand",
    "cosine between sequences": "of last-position states of unrelated inputs: 0 unrelated directions, 1 the same one",
    "cosine within a sequence": "of states at different positions of one input",
    "sink rate": "the fraction of heads that give one position more than epsilon of their attention",
    "DomRatio": "the largest channel of a state over the mean channel: 1 if flat, as large as the width for one spike",
    "effective rank": "in how many directions states really vary: 1 is a line",
    "super neuron": "an MLP neuron at least ten times as active at the first token as elsewhere, with an input column "
    "at least twice as long as its block's median",
    "Δ loss": "what rounding adds to the loss, in nats a token",
    "KL": "how far the predictions move, in nats",
    "D_sink": "the part of Δ loss that keeping the first positions in full precision saves",
    "perplexity": "between how many equally likely tokens the model hesitates, on average",
    "bits per byte": "the same per byte of text, comparable between tokenizers",
}


def explain(*names: str) -> str:
    """Explain terms, a line each.

    >>> explain("bits per byte")
    '  bits per byte: the same per byte of text, comparable between tokenizers'
    """
    return "\n".join(f"  {name}: {TERMS[name]}" for name in names)


def in_cell(name: str) -> str:
    r"""Write a name for a cell of a Markdown table: with no break, and nothing that starts a cell, a tag or emphasis.

    >>> in_cell("runs/a_b"), in_cell("a|<b> *c*")
    ('runs/a_b', 'a\\|\\<b> \\*c\\*')
    """
    # An underscore within a word starts no emphasis.
    return re.sub(r"([\\`*|<]|(?<!\w)_|_(?!\w))", r"\\\1", " ".join(name.split()))
