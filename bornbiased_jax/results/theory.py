"""Predictions of theory for the records of a probe."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.given_table import top1_given_table
from bornbiased_jax.prediction import predict, stack_of
from bornbiased_jax.probes.inputs import KINDS

ProbeRow = Mapping[str, Any]
"""A row of ``probe --json``: one part of a probe's record, the field of a sweep, and ``theory`` where it was wanted."""

# Of seeds, between the 10th and the 90th percentile.
BAND = 0.8


def check(input_spec: str, *cfgs: ModelConfig) -> None:
    """Refuse what theory has no prediction for, before anything is measured.

    Raises:
        InputError: inputs that are not random, or an architecture that theory does not cover.
    """
    if input_spec not in KINDS or not KINDS[input_spec].predicted:
        raise InputError(f"--theory predicts random inputs, not {input_spec}: leave it out, or probe with tokens")
    for cfg in cfgs:
        stack_of(cfg, tokens=input_spec == "tokens")


def with_cosines(cfg: ModelConfig, records: Sequence[ProbeRow], *, tokens: bool) -> list[ProbeRow]:
    """Return the records with ``theory``: the cosine after each block, and its interval over seeds of own embeddings.

    ``inside`` is of the last block.
    """
    predicted = functools.cache(lambda seq_len, num_inputs: predict(cfg, seq_len, num_inputs=num_inputs, tokens=tokens))

    def theory(record: ProbeRow) -> dict[str, object]:
        prediction = predicted(record["seq_len"], record["num_inputs"])
        low_L, high_L = prediction["inter_cosine_by_layer_low"], prediction["inter_cosine_by_layer_high"]
        inside_L = [
            low <= measured <= high
            for measured, low, high in zip(record["inter_cosine_by_layer"], low_L, high_L, strict=True)
        ]
        return {
            "coverage": prediction["coverage"],
            "given_table": False,
            "inter_cosine_by_layer": prediction["inter_cosine_by_layer"],
            "inter_cosine_by_layer_low": low_L,
            "inter_cosine_by_layer_high": high_L,
            "inside_by_layer": inside_L,
            "inside": inside_L[-1],
        }

    return [{**record, "theory": theory(record)} for record in records]


def with_fractions(
    cfg: ModelConfig, records: Sequence[ProbeRow], *, tokens: bool, table_seed: int | None = None
) -> list[ProbeRow]:
    """Return the records with ``theory``: the top-1 fraction, and its band over seeds.

    ``table_seed`` is that of the tables that all seeds share, and None where each has its own.
    """

    @functools.cache
    def band(seq_len: int, num_inputs: int) -> tuple[float, float, float]:
        if table_seed is None:
            prediction = predict(cfg, seq_len, num_inputs=num_inputs, tokens=tokens)
            return prediction["top1_share_mean"], prediction["top1_share_p10"], prediction["top1_share_p90"]
        estimate = top1_given_table(cfg, seq_len, num_inputs, table_seed, tokens=tokens)
        return estimate.mean, estimate.p10, estimate.p90

    def theory(record: ProbeRow) -> dict[str, object]:
        mean, low, high = band(record["seq_len"], record["num_inputs"])
        return {
            "coverage": BAND,
            "given_table": table_seed is not None,
            "top1_share_mean": mean,
            "top1_share_low": low,
            "top1_share_high": high,
            "inside": low <= record["top1_share"] <= high,
        }

    return [{**record, "theory": theory(record)} for record in records]


def theory_summary(records: Sequence[ProbeRow]) -> list[str]:
    """Say how many measurements lie inside theory's interval, and where theory is not about them; none without one."""
    predictions = [record["theory"] for record in records if "theory" in record]
    if not predictions:
        return []
    inside = sum(prediction["inside"] for prediction in predictions)
    population = (
        "given the one table that all seeds share"
        if predictions[0].get("given_table")
        else "over seeds, with fresh embeddings"
    )
    fitted = "nothing in it is fitted"
    if "inter_cosine_by_layer" in predictions[0]:
        fitted = "nothing is fitted to measurements, and one constant of its width was chosen"
    sentences = [
        f"{inside} of {len(predictions)} measurements lie inside theory's {100 * predictions[0]['coverage']:.0f}% "
        f"interval, {population}; {fitted}."
    ]
    if any(record.get("is_initial") is False for record in records):
        sentences.append(
            "Theory describes initial weights, and this checkpoint is not known to hold them: what lies outside the "
            "interval may be what training changed."
        )
    return sentences


def fraction_cells(record: ProbeRow) -> dict[str, str]:
    """Return columns of a table: the predicted fraction, its band, and whether the measured one lies inside."""
    prediction = record["theory"]
    return {
        "theory, mean": f"{prediction['top1_share_mean']:.4g}",
        "80% band": f"{prediction['top1_share_low']:.4g} to {prediction['top1_share_high']:.4g}",
        "inside": "yes" if prediction["inside"] else "no",
    }


def cosine_row(record: ProbeRow, block: int) -> dict[str, object]:
    """Return ``theory`` of a row of one block, counted from 0: the predicted cosine, its interval; none without one."""
    if "theory" not in record:
        return {}
    prediction = record["theory"]
    ends = {f"inter_cosine{end}": prediction[f"inter_cosine_by_layer{end}"][block] for end in ("", "_low", "_high")}
    return {"theory": {**ends, "inside": prediction["inside_by_layer"][block]}}


def cosine_cells(records: Sequence[ProbeRow], block: int) -> dict[str, str]:
    """Return columns for one length: the predicted cosine after a block, its interval, how many lie inside."""
    prediction, place = records[0]["theory"], block - 1
    low, high = (prediction[f"inter_cosine_by_layer_{end}"][place] for end in ("low", "high"))
    inside = sum(record["theory"]["inside_by_layer"][place] for record in records)
    return {
        "theory": f"{prediction['inter_cosine_by_layer'][place]:.4f}",
        f"{100 * prediction['coverage']:.0f}% interval": f"{low:.4f} to {high:.4f}",
        "inside": f"{inside} of {len(records)}",
    }
