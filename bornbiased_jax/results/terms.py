"""Terms of the field, each explained in one clause below the table that it heads."""

from __future__ import annotations

TERMS: dict[str, str] = {
    "top-1 token": "the token that is predicted for more inputs than any other",
    "top-1 fraction": "the fraction of inputs that are answered with it",
    "over uniform": "its count over the largest count that equally likely tokens would reach",
    "log10 p": "log₁₀ of how probable as much is by chance, 0 at most; −3 is one in a thousand",
    "cosine between sequences": "of last-position states of unrelated inputs: 0 unrelated directions, 1 the same one",
    "cosine within a sequence": "of states at different positions of one input",
    "sink rate": "the fraction of heads that give one position more than epsilon of their attention",
    "DomRatio": "the largest channel of a state over the mean channel: 1 if flat, as large as the width for one spike",
    "effective rank": "in how many directions states really vary: 1 is a line",
    "super neuron": "an MLP neuron that fires at the first token at least ten times as strongly as elsewhere",
    "Δ loss": "what rounding adds to the loss, in nats a token",
    "KL": "how far the predictions move, in nats",
    "D_sink": "the part of Δ loss that keeping the first positions in full precision saves",
    "matmul rate": "the speed of bare matrix products of the model's own shapes on this machine",
    "perplexity": "between how many equally likely tokens the model hesitates, on average",
    "bits per byte": "the same per byte of text, comparable between tokenizers",
}


def explain(*names: str) -> str:
    """Explain terms, a line each.

    >>> explain("bits per byte")
    '  bits per byte: the same per byte of text, comparable between tokenizers'
    """
    return "\n".join(f"  {name}: {TERMS[name]}" for name in names)
