"""What pretrain, adapt, runs, plot, export, evaluate, generate and parity did, in sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bornbiased_jax.words.phrases import count, rounded, span


def training(value: Mapping[str, Any]) -> list[str]:
    """How far a run came, what it reached and how fast."""
    seeds = count(len(value["loss"] or ()), "seed")
    where = f"{seeds} at step {value['step']:,} of {value['steps']:,}" if value["loss"] else f"Step {value['step']:,}"
    found = [f"{where}, after {value['tokens']:,} tokens each."]
    if value["loss"]:
        perplexity = f"a perplexity of {rounded(math.exp(min(min(value['loss']), 700)))}"
        held_out = value["validation_loss"]
        text = f"The last logged loss on training text is {span(value['loss'])} nats a token, {perplexity} at best"
        text += "." if held_out is None else f"; on text held out it is {span(held_out)}."
        found.append(text)
    if value["peak_share"] is not None:
        found.append(
            f"Training ran at {100 * value['peak_share']:.0f}% of the matmul rate, the speed of bare matrix products "
            "of these shapes on this machine."
        )
    elif not value["finished"]:
        found.append("It was stopped before its end, and the same command goes on from there.")
    else:
        found.append(f"Each seed opens as {value['out']}@seed=N wherever a checkpoint is asked for.")
    return found


def runs(value: Mapping[str, Any]) -> list[str]:
    """How many runs, and how many are finished."""
    listed = value["runs"]
    done = sum(run["finished"] for run in listed)
    open_runs = len(listed) - done
    rest = "each resumes when its command is given again" if open_runs else "none is left to resume"
    return [
        f"{count(len(listed), 'run')}, {done} finished and {open_runs} not: {rest}.",
        "A run opens as PATH@seed=N,step=N wherever a checkpoint is asked for; losses are nats a token of training "
        "text.",
    ]


def plot(value: Mapping[str, Any]) -> list[str]:
    """What the image shows."""
    return [
        f"{value['image']} shows loss, learning rate, gradient norm and speed of {value['run']} by step.",
        "The loss is that of training text, each seed a curve; seeds that see the same data rise and fall together.",
    ]


def export(value: Mapping[str, Any]) -> list[str]:
    """What was written."""
    if "base" in value:
        return [
            f"{value['directory']} holds the LoRA adapter of {value['base']} alone, in PEFT's layout.",
            "PEFT opens it beside the base; `bornbiased derive --change lora:DIR` merges it.",
        ]
    return [
        f"{value['directory']} is {value['checkpoint']} as a {value['family']} model that transformers opens, "
        f"{'with its tokenizer' if value['tokenizer'] else 'without a tokenizer'}.",
        f"Its weights are the same numbers: digest {value['digest'][:12]}…",
    ]


def evaluate(value: Mapping[str, Any]) -> list[str]:
    """What the perplexity means, over how much text, and whether that was training text."""
    perplexity = value["perplexity"]
    choices = rounded(perplexity) if math.isfinite(perplexity) else "more than any float can count"
    found = [
        f"Perplexity {choices}: at each token the model is as undecided as among {choices} equally likely ones, at a "
        f"context of {value['context']:,} tokens.",
    ]
    found.append(
        f"That is a mean over {value['num_tokens']:,} predicted tokens of {value['num_sequences']:,} sequences."
    )
    if value["training_text"] and value.get("step", 1):
        found.append(
            "The run was trained on this text: the number says how well it is remembered, not how well text is "
            "modelled."
        )
    return found


def generate(value: Mapping[str, Any]) -> list[str]:
    """How many tokens, and that they are the likeliest."""
    return [
        f"{count(len(value['ids']), 'token')} with the prompt, each the likeliest after those before it.",
        "The same model and prompt give the same continuation: nothing is drawn.",
    ]


def parity(value: Mapping[str, Any]) -> list[str]:
    """How far the logits lie apart, beside their own size."""
    largest, std = value["max_abs_error"], value["logit_std"]
    relative = largest / std if std else math.inf
    return [
        f"Over {value['num_tokens']:,} positions the logits differ from those of transformers {value['transformers']} "
        f"by {largest:.2g} at most, {relative:.1g} of their standard deviation.",
        f"{value['top1_agreement']:.1%} of the predicted tokens are the same; rounding in another order moves logits "
        "by far less than their own size, a wrong architecture does not.",
    ]
