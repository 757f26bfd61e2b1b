"""Results of `probe`: which tokens untrained models prefer, and how alike they make unrelated inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.results.beside_theory import (
    add_cosines,
    add_fractions,
    check,
    cosine_cells,
    fraction_cells,
    theory_summary,
)
from bornbiased_jax.results.listing import Listing, data_frame, fragment
from bornbiased_jax.results.phrases import LEVEL, chance, count, percent, span
from bornbiased_jax.results.terms import explain

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from bornbiased_jax.probes import ProbeOptions, ProbeRecord, Subject
    from bornbiased_jax.probes.inputs import Inputs

Part = Literal["preference", "contraction"]


@dataclasses.dataclass(frozen=True, repr=False)
class Preference:
    """The token that each seed's untrained model predicts for most inputs.

    Attributes:
        records: one a seed and length, with the keys that ``bornbiased probe preference --json`` writes.
    """

    records: Sequence[Mapping[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """Give what the command writes with --json: the records, with the provenance of a call made now."""
        return _to_json(self.records)

    def summary(self) -> list[str]:
        """Say which token is preferred, how much more than by chance, and by how many seeds."""
        best = min(self.records, key=lambda record: (record["log10_p"], -record["top1_share"]))
        level = LEVEL / len(self.records)
        preferring = [record for record in self.records if 10.0 ** record["log10_p"] < level]
        if not preferring:
            return [
                f"No token is preferred more than chance allows: the most frequent one has {best['top1_count']:,} of "
                f"{best['num_inputs']:,} inputs, and among {best['vocab_size']:,} equally likely tokens the luckiest "
                f"would do as well with probability {chance(best['log10_p'])}.",
                "That is no proof of indifference: more inputs, a wider model or larger weights (--set "
                "init=normal-0.02) show smaller preferences.",
                *theory_summary(self.records),
            ]
        model = "The model" if best["seed"] is None else f"Seed {best['seed']}"
        length = f" at T = {best['seq_len']}" if len({record["seq_len"] for record in self.records}) > 1 else ""
        uniform = best["top1_share"] * best["vocab_size"]
        sentences = [
            f"{model} prefers token {best['top1_id']:,}{length}: {percent(best['top1_share'])} of "
            f"{best['num_inputs']:,} inputs, {uniform:,.0f} times the uniform fraction; by chance "
            f"{chance(best['log10_p'])}."
        ]
        if len(self.records) > 1:
            tokens = {record["top1_id"] for record in preferring}
            sentences.append(
                f"{len(preferring)} of {count(len(self.records), 'result')} show more than chance allows (p < "
                f"{LEVEL:g}, corrected for the vocabulary and for all of them), with "
                f"{count(len(tokens), 'different token')}."
            )
        scope = (
            "The p-value is about these weights and inputs: it says that the preference is real, and whether another "
            "seed has one only that seed's row can say."
        )
        return sentences + (theory_summary(self.records) or [scope])

    def table(self) -> Listing:
        """List a row for each record; with theory its prediction beside the measurement."""
        columns = {
            "seed": "seed",
            "seq_len": "T",
            "top1_id": "top-1 token",
            "top1_count": "count",
            "top1_share": "top-1 fraction",
            "ratio_to_uniform": "over uniform",
            "log10_p": "log10 p",
        }
        terms = explain("top-1 token", "top-1 fraction", "over uniform", "log10 p")
        return _listing("Top-1 tokens", columns, self.records, fraction_cells)._replace(note=terms)

    def plot(self) -> Figure:
        """Draw the fraction of inputs by the rank of the token, a curve for each of the first six records."""
        from bornbiased_jax.report import figures

        figure, ax = figures.new()
        several = len({record["seq_len"] for record in self.records}) > 1
        for record, colour in zip(self.records, figures.SERIES, strict=False):
            name = "the model" if record["seed"] is None else f"seed {record['seed']}"
            name += f", T = {record['seq_len']}" if several else ""
            fractions = [number / record["num_inputs"] for number in record["ranked_counts"]]
            ranks = range(1, len(fractions) + 1)
            figures.line(ax, ranks, fractions, name=f"{name}: token {record['top1_id']}", colour=colour, markers=True)
        by_chance = self.records[0]["uniform_top_count"] / self.records[0]["num_inputs"]
        figures.reference(ax, by_chance, "the most frequent of equally likely tokens", colour=figures.MUTED)
        ax.set_ylim(bottom=0)
        figures.count_axis(ax)
        figures.label(ax, "rank of the token", "fraction of inputs")
        figures.legend(ax)
        return figure

    def to_pandas(self) -> DataFrame:
        """Make a data frame with a row for each record; needs pandas."""
        return data_frame(self.records)

    def __repr__(self) -> str:
        return " ".join(self.summary())

    def _repr_html_(self) -> str:
        return fragment(self.summary(), [self.table()])


@dataclasses.dataclass(frozen=True, repr=False)
class Contraction:
    """Cosines between last-position states of unrelated inputs in each seed's untrained model, block by block.

    Attributes:
        records: one a seed and length, with the keys that ``bornbiased probe contraction --json`` writes.
    """

    records: Sequence[Mapping[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """Give what the command writes with --json: the records, with the provenance of a call made now."""
        return _to_json(self.records)

    def summary(self) -> list[str]:
        """Say how alike unrelated inputs become from the first block to the last, and how sure that is."""
        longest = max(self._by_length(), key=lambda records: records[0]["seq_len"])
        first, last = ([record["inter_cosine_by_layer"][block] for record in longest] for block in (0, -1))
        models = f"of {count(len(longest), 'seed')}" if longest[0]["seed"] is not None else "of the model"
        sentences = [
            f"The cosine between last-position states of unrelated inputs {models} goes from {span(first, 3)} after "
            f"the first block to {span(last, 3)} after block {len(longest[0]['inter_cosine_by_layer'])} (T = "
            f"{longest[0]['seq_len']}): 0 is none of it shared, 1 one direction for all."
        ]
        weakest = max(record["log10_p"] for record in self.records)
        if 10.0**weakest < LEVEL / len(self.records):
            sentences.append(
                f"Independent directions would agree as much with probability {chance(weakest)} at most, in every "
                "row: the shared direction is real."
            )
        else:
            sentences.append(
                f"In some row independent directions would agree as much with probability {chance(weakest)}: there no "
                "shared direction is shown."
            )
        return sentences + theory_summary(self.records)

    def table(self) -> Listing:
        """List a row for each record."""
        columns = {
            "seed": "seed",
            "seq_len": "T",
            "inter_cosine_last_block": "cosine, last block",
            "inter_cosine_final": "after the norm",
            "intra_cosine_last_block": "within a sequence",
            "log10_p": "log10 p",
        }
        rows = [
            {
                **record,
                "inter_cosine_last_block": record["inter_cosine_by_layer"][-1],
                "intra_cosine_last_block": record["intra_cosine_by_layer"][-1],
            }
            for record in self.records
        ]
        return _listing("Contraction by seed", columns, rows)

    def tables(self) -> list[Listing]:
        """List a row for each record, then for each length a row for each block; with theory its interval."""
        *tables, last = self.table(), *map(_by_block, self._by_length())
        terms = explain("cosine between sequences", "cosine within a sequence", "log10 p")
        return [*tables, last._replace(note=terms)]

    def plot(self) -> Figure:
        """Draw the cosine after each block: mean and range over seeds a length; theory dashed, with its interval."""
        from bornbiased_jax.report import figures

        figure, ax = figures.new()
        for records, colour in zip(self._by_length(), figures.SERIES, strict=False):
            curves = [record["inter_cosine_by_layer"] for record in records]
            at = list(zip(*curves, strict=True))
            blocks = range(1, len(at) + 1)
            mean = [sum(values) / len(values) for values in at]
            several = len(records) > 1
            low, high = ([end(values) for values in at] if several else None for end in (min, max))
            length = f"T = {records[0]['seq_len']}"
            figures.line(ax, blocks, mean, low, high, f"measured, {length}", colour, markers=True)
            if "theory" in records[0]:
                prediction = records[0]["theory"]
                cosine, low, high = (prediction[f"inter_cosine_by_layer{end}"] for end in ("", "_low", "_high"))
                colour = figures.MUTED if len(self._by_length()) > 1 else figures.THEORY
                figures.line(ax, blocks, cosine, low, high, f"theory, {length}", colour, dashed=True)
        figures.count_axis(ax)
        figures.label(ax, "after block", "cosine between unrelated inputs")
        figures.legend(ax)
        return figure

    def to_pandas(self) -> DataFrame:
        """Make a data frame with a row for each record and block; needs pandas."""
        columns = {"inter_cosine": "inter_cosine_by_layer", "intra_cosine": "intra_cosine_by_layer"}
        return data_frame(
            [
                {"seed": record["seed"], "seq_len": record["seq_len"], "block": block + 1}
                | {column: record[key][block] for column, key in columns.items()}
                for record in self.records
                for block in range(len(record["inter_cosine_by_layer"]))
            ]
        )

    def _by_length(self) -> list[list[Mapping[str, Any]]]:
        lengths = dict.fromkeys(record["seq_len"] for record in self.records)
        return [[record for record in self.records if record["seq_len"] == length] for length in lengths]

    def __repr__(self) -> str:
        return " ".join(self.summary())

    def _repr_html_(self) -> str:
        return fragment(self.summary(), self.tables())


def preference(cfg: ModelConfig, *, theory: bool = False, **choices: Any) -> Preference:
    """Probe newborn models for the token that they prefer.

    Args:
        cfg: the architecture.
        theory: set beside it the predicted fraction with the band that holds 80% of seeds.
        choices: ``seeds`` (0 alone unless given), ``seq_len`` (64), ``num_inputs`` (2,000), ``inputs`` ("tokens" or
            "gaussian"), ``input_seed`` (0), ``embedding_seed`` of the tables that all seeds share (0; None: each its
            own).

    Raises:
        InputError: sizes that do not fit, or inputs that theory does not predict.

    Example:
        >>> from bornbiased_jax.config import preset
        >>> small = preset("gpt2-tiny", num_layers=1, d_model=16, num_heads=2, d_ff=32, vocab_size=32)
        >>> preference(small, seeds=[42, 43], seq_len=4, num_inputs=60).table().columns[:3]
        ['seed', 'T', 'top-1 token']
    """
    tokens, table_seed = choices.get("inputs", "tokens") == "tokens", choices.get("embedding_seed", 0)
    records = _newborn(cfg, "preference", theory, **choices)
    if theory:
        add_fractions(cfg, records, tokens=tokens, table_seed=table_seed)
    return Preference(records)


def contraction(cfg: ModelConfig, *, theory: bool = False, **choices: Any) -> Contraction:
    """Probe newborn models for how alike the states of unrelated inputs become.

    Args:
        cfg: the architecture.
        theory: set beside it the predicted cosine after each block with its 99% interval.
        choices: as in :func:`preference`.

    Raises:
        InputError: sizes that do not fit, or inputs that theory does not predict.

    Example:
        >>> from bornbiased_jax.config import preset
        >>> small = preset("gpt2-tiny", num_layers=2, d_model=16, num_heads=2, d_ff=32, vocab_size=32)
        >>> len(contraction(small, seq_len=4, num_inputs=60).records[0]["inter_cosine_by_layer"])
        2
    """
    records = _newborn(cfg, "contraction", theory, **choices)
    if theory:
        add_cosines(cfg, records, tokens=choices.get("inputs", "tokens") == "tokens")
    return Contraction(records)


def measured(
    subject: Subject,
    seeds: Sequence[int],
    inputs: Inputs,
    part: Part,
    options: ProbeOptions | None = None,
    **machinery: Any,
) -> list[dict[str, Any]]:
    """Measure one part of each seed's record, in the order of the seeds.

    Args:
        subject, seeds, inputs: as :func:`bornbiased_jax.probes.probe` takes them.
        part: "preference", or "contraction", which also looks within sequences.
        options: as there; ``intra`` follows from the part.
        machinery: mesh, resume, engine and advance, as there.

    Raises:
        InputError: fewer than two inputs, or what the probe refuses.
    """
    from bornbiased_jax.probes import run

    check_number(inputs)
    options = dataclasses.replace(options or run.ProbeOptions(), intra=part == "contraction")
    records = run.probe(subject, seeds, inputs, options, **machinery)
    return [_flat(record, part, subject.cfg, inputs) for record in records]


def check_number(inputs: Inputs) -> None:
    """Refuse a single input.

    Raises:
        InputError: fewer than two inputs.
    """
    if inputs.num_inputs < 2:
        raise InputError("num_inputs=1 leaves nothing to compare: give at least 2")


def _flat(record: ProbeRecord, part: Part, cfg: ModelConfig, inputs: Inputs) -> dict[str, Any]:
    """Flatten one part of a probe's record into one row, with the inputs and the vocabulary size, JSON-ready."""
    shared = {key: value for key, value in record.items() if key not in ("preference", "contraction")}
    return {**shared, "vocab_size": cfg.vocab_size, "inputs": inputs.describe(), **record[part]}


def _newborn(
    cfg: ModelConfig,
    part: Part,
    theory: bool,
    *,
    seeds: Sequence[int] = (0,),
    seq_len: int = 64,
    num_inputs: int = 2_000,
    inputs: str = "tokens",
    input_seed: int = 0,
    embedding_seed: int | None = 0,
) -> list[dict[str, Any]]:
    from bornbiased_jax.probes import untrained
    from bornbiased_jax.probes.inputs import random_inputs

    if theory:
        check(inputs)
    drawn = random_inputs(inputs, num_inputs, seq_len, cfg, seed=input_seed)
    return measured(untrained(cfg, fixed_embedding_seed=embedding_seed), seeds, drawn, part)


def _to_json(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    from bornbiased_jax.record import provenance

    seeds = sorted({record["seed"] for record in records if record["seed"] is not None})
    return {"records": records, "provenance": provenance(seeds=seeds, precision="float32 highest")}


def _listing(
    title: str, columns: Mapping[str, str], records: Sequence[Mapping[str, Any]], beside: Any = None
) -> Listing:
    """List the records' keys under their columns' names, and the cells of ``beside`` for each that has a theory."""
    rows = []
    for record in records:
        cells = {name: "–" if record[key] is None else record[key] for key, name in columns.items()}
        rows.append(cells | (beside(record) if beside is not None and "theory" in record else {}))
    return Listing(title, list(rows[0]), [list(cells.values()) for cells in rows])


def _by_block(records: Sequence[Mapping[str, Any]]) -> Listing:
    """Tabulate one length after each block: the mean over seeds, their range, and theory."""
    rows = []
    for block in range(1, len(records[0]["inter_cosine_by_layer"]) + 1):
        between = [record["inter_cosine_by_layer"][block - 1] for record in records]
        within = [record["intra_cosine_by_layer"][block - 1] for record in records]
        cells = {"after block": str(block), "cosine between sequences": f"{sum(between) / len(records):.4f}"}
        if len(records) > 1:
            cells["from seed to seed"] = f"{min(between):.4f} to {max(between):.4f}"
        if "theory" in records[0]:
            cells |= cosine_cells(records, block)
        rows.append({**cells, "cosine within a sequence": f"{sum(within) / len(records):.4f}"})
    of = f", mean of {len(records)} seeds" if len(records) > 1 else ""
    title = f"Contraction by block, T = {records[0]['seq_len']}{of}"
    return Listing(title, list(rows[0]), [list(cells.values()) for cells in rows])
