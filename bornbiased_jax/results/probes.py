"""Results of `probe`: which tokens untrained models prefer, and how alike they make unrelated inputs."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bornbiased_jax.config import FieldValue, ModelConfig, check_config
from bornbiased_jax.errors import InputError
from bornbiased_jax.keys import check_seed
from bornbiased_jax.model.layers import HIGHEST
from bornbiased_jax.probes import ProbeOptions, ProbeRecord, run
from bornbiased_jax.probes.inputs import Inputs, random_inputs
from bornbiased_jax.probes.subject import untrained
from bornbiased_jax.record import provenance
from bornbiased_jax.report import figures
from bornbiased_jax.report.tables import Panel
from bornbiased_jax.results.result import Listing, Result
from bornbiased_jax.results.theory import (
    ProbeRow,
    check,
    cosine_cells,
    cosine_row,
    fraction_cells,
    theory_summary,
    with_cosines,
    with_fractions,
)
from bornbiased_jax.results.wording import LEVEL, among, chance, count, explain, named, percent, span

Part = Literal["preference", "contraction"]


@dataclasses.dataclass(frozen=True, repr=False)
class _Probe(Result):
    """Records of a probe.

    Attributes:
        records: one a seed and length, with the keys that ``bornbiased probe --json`` writes.
        model: the configuration that was probed, all its fields.
        swept: the field that takes several values, a key of the records; "" without a sweep.
        precision: how float32 matrices were multiplied.
    """

    records: Sequence[ProbeRow]
    model: Mapping[str, FieldValue] | None = None
    swept: str = ""
    precision: str = HIGHEST

    def index(self) -> tuple[str, ...]:
        """Return the columns that say which row a row is, the field of a sweep among them."""
        return (*self.axes, self.swept) if self.swept else self.axes

    def to_json(self) -> dict[str, object]:
        """Return what the command writes with --json: the records, with the provenance of a call made now."""
        seeds = sorted({record["seed"] for record in self.records if record["seed"] is not None})
        return {
            "records": self.records,
            "model": self.model,
            "provenance": provenance(seeds=seeds, precision=f"float32 {self.precision}"),
        }

    def rows(self) -> list[dict[str, object]]:
        """Return a row for each record."""
        return [dict(record) for record in self.records]

    def _is_text(self) -> bool:
        """Tell whether inputs are windows of a text, which p-values take for independent draws all the same."""
        return bool(self.records[0].get("inputs", {}).get("kind") == "text")

    def _groups(self) -> list[list[ProbeRow]]:
        """Return the records of each length and value of the swept field: one a seed."""
        groups: dict[object, list[ProbeRow]] = {}
        for record in self.records:
            groups.setdefault((str(record.get(self.swept)), record["seq_len"]), []).append(record)
        return list(groups.values())

    def _condition(self, record: ProbeRow, *, with_length: bool = True) -> str:
        """Name what a group of records has in common: "d_model = 64, T = 8"."""
        swept = [f"{self.swept} = {record[self.swept]}"] if self.swept else []
        return ", ".join([*swept, *[f"T = {record['seq_len']}"] * with_length])

    def _listing(
        self,
        title: str,
        columns: Mapping[str, str],
        note: str = "",
        theory: Callable[[ProbeRow], dict[str, str]] | None = None,
    ) -> Listing:
        """List the records under the heads of their keys; where a group has several seeds its mean, sd and range too.

        Of records that have a prediction ``theory`` gives further cells.
        """
        heads = {**({self.swept: self.swept} if self.swept else {}), **columns}
        further = list(theory(self.records[0])) if theory is not None and "theory" in self.records[0] else []
        rows = []
        for group in self._groups():
            for record in group:
                cells = theory(record) if theory is not None and further else {}
                rows.append([record[key] for key in heads] + list(cells.values()))
            if len(group) > 1:
                rows += [cells + [""] * len(further) for cells in _over_seeds(group, list(heads), self.swept)]
        title += f" by {self.swept}" if self.swept else ""
        model = named(self.model)
        return Listing(f"{title}: {model}" if model else title, [*heads.values(), *further], rows, note)


def _over_seeds(group: Sequence[ProbeRow], keys: Sequence[str], swept: str) -> list[list[Any]]:
    """Return the mean, the standard deviation and the range over seeds of what was measured, a row each."""
    rows: list[list[Any]] = []
    statistic_of: dict[str, Callable[[list[float]], float | str]] = {
        "mean": statistics.fmean,
        "sd": statistics.stdev,
        "range": _range,
    }
    for name, statistic in statistic_of.items():
        cells: dict[str, object] = {
            "seed": name,
            "seq_len": group[0]["seq_len"],
            swept: group[0].get(swept),
            "top1_id": "",
        }
        values = {key: [record[key] for record in group] for key in keys if key not in cells}
        cells |= {key: None if None in numbers else statistic(numbers) for key, numbers in values.items()}
        rows.append([cells[key] for key in keys])
    return rows


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.4g} to {max(values):.4g}"


@dataclasses.dataclass(frozen=True, repr=False)
class Preference(_Probe):
    """The token that each seed's untrained model predicts for most inputs."""

    question = "Which token does an untrained model prefer?"
    axes = ("seed", "seq_len")

    def summary(self) -> list[str]:
        """Say which token is preferred, how much more than by chance, and by how many seeds."""
        best = min(self.records, key=lambda record: (record["log10_p"], -record["top1_share"]))
        level = LEVEL / len(self.records)
        preferring = [record for record in self.records if 10.0 ** record["log10_p"] < level]
        if not preferring:
            larger = ", a wider model or larger weights"
            if self.model is None or self.model["init"] != "normal-0.02":
                larger += " (--set init=normal-0.02)"
            # A checkpoint has the width and the weights that it has.
            further = "" if best["seed"] is None else larger
            return [
                f"No token is preferred more than chance allows: the most frequent one has {best['top1_count']:,} of "
                f"{best['num_inputs']:,} inputs, and among {best['vocab_size']:,} equally likely tokens the luckiest "
                f"would do as well with probability {chance(best['log10_p'])}.",
                f"That is no proof of indifference: more inputs{further} show smaller preferences.",
                *theory_summary(self.records),
            ]
        model = "The model" if best["seed"] is None else f"Seed {best['seed']}"
        several = len({record["seq_len"] for record in self.records}) > 1
        condition = self._condition(best, with_length=several)
        uniform = best["top1_share"] * best["vocab_size"]
        sentences = [
            f"{model} prefers token {best['top1_id']:,}{' at ' + condition if condition else ''}: "
            f"{percent(best['top1_share'])} of {best['num_inputs']:,} inputs, {uniform:,.0f} times what a token "
            f"gets on average; by chance {chance(best['log10_p'])}."
        ]
        if len(self.records) > 1:
            tokens = {record["top1_id"] for record in preferring}
            sentences.append(
                f"{len(preferring)} of {count(len(self.records), 'result')} "
                f"{'shows' if len(preferring) == 1 else 'show'} more than chance allows (p < "
                f"{LEVEL:g}, corrected for the vocabulary and for all of them), with "
                f"{count(len(tokens), 'different token')}."
            )
        if best["top1_id"] == 0 and best["top1_share"] == 1.0:
            tie = "Logits that are all equal, as of a head of zeros, give token 0 too: ties go to the smallest id."
            return [*sentences, tie, *theory_summary(self.records)]
        scope = (
            "The p-value is about these weights and inputs: it says that this preference is real. It says nothing of "
            "other seeds; each has its own row."
        )
        if self._is_text():
            scope = (
                "The p-value takes inputs for independent draws, which windows of one text are not: what the text "
                "repeats counts as preference too."
            )
        return sentences + (theory_summary(self.records) or [scope])

    def tables(self) -> list[Listing]:
        """List a row for each record, with theory its prediction; of several seeds their mean, sd and range."""
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
        return [self._listing("Top-1 tokens", columns, terms, fraction_cells)]

    def figures(self) -> dict[str, Panel]:
        """Draw the fraction of inputs by the rank of the token, a curve for each of the first six records."""
        caption = "Fraction of inputs that get the token of each rank." + figures.left_out(len(self.records))
        return {"preference": Panel(self.draw(), caption)}

    def draw(self, ax: Axes | None = None) -> Figure:
        """Draw that figure, into axes if given."""
        figure, ax = figures.new(ax=ax)
        several = len({record["seq_len"] for record in self.records}) > 1
        for record, color in zip(self.records, figures.SERIES, strict=False):
            name = "the model" if record["seed"] is None else f"seed {record['seed']}"
            condition = self._condition(record, with_length=several)
            name += f", {condition}" if condition else ""
            fractions = [number / record["num_inputs"] for number in record["ranked_counts"]]
            ranks = range(1, len(fractions) + 1)
            figures.line(ax, ranks, fractions, name=f"{name}: token {record['top1_id']}", color=color, markers=True)
        # Records of several vocabularies have a level each.
        shown_records = self.records[: len(figures.SERIES)]
        levels = {record["uniform_top_count"] / record["num_inputs"]: record for record in shown_records}
        for level, record in levels.items():
            condition = f", {self._condition(record, with_length=several)}" if len(levels) > 1 else ""
            figures.reference(ax, level, f"the most frequent of equally likely tokens{condition}", color=figures.MUTED)
        ax.set_ylim(bottom=0)
        figures.count_axis(ax)
        figures.label(ax, "rank of the token", "fraction of inputs")
        figures.legend(ax)
        return figure


@dataclasses.dataclass(frozen=True, repr=False)
class Contraction(_Probe):
    """Cosines between last-position states of unrelated inputs in each seed's untrained model, block by block."""

    question = "How alike does an untrained model make unrelated inputs?"
    axes = ("seed", "block", "seq_len")

    def summary(self) -> list[str]:
        """Say how alike unrelated inputs become from the first block to the last, and how sure that is."""
        length = max(record["seq_len"] for record in self.records)
        longest = [group for group in self._groups() if group[0]["seq_len"] == length]
        spans = []
        for group in longest:
            first, last = ([record["inter_cosine_by_layer"][block] for record in group] for block in (0, -1))
            last_block = len(group[0]["inter_cosine_by_layer"])
            start = f"from {span(first, 3)} after the first block " if last_block > 1 else ""
            spans.append(f"{start}to {span(last, 3)} after block {last_block} ({self._condition(group[0])})")
        models = f"of {count(len(longest[0]), 'seed')}" if longest[0][0]["seed"] is not None else "of the model"
        sentences = [
            f"The cosine between last-position states of unrelated inputs {models} goes {among(spans)}; at 0 they "
            "share no direction, at 1 they all have the same."
        ]
        weakest = max(record["log10_p"] for record in self.records)
        if 10.0**weakest < LEVEL / len(self.records):
            sentences.append(
                f"Independent directions would agree as much with probability {chance(weakest)} at most, in every "
                + (
                    "row; windows of one text are not independent, and what it repeats is shared too."
                    if self._is_text()
                    else "row: the shared direction is real."
                )
            )
        else:
            sentences.append(
                f"In some row independent directions would agree as much with probability {chance(weakest)}: there no "
                "shared direction is shown."
            )
        return sentences + theory_summary(self.records)

    def tables(self) -> list[Listing]:
        """List a row for each record, then for each length a row for each block; with theory its interval."""
        columns = {
            "seed": "seed",
            "seq_len": "T",
            "inter_cosine_last_block": "cosine, last block",
            "inter_cosine_final": "after the norm",
            "intra_cosine_last_block": "within a sequence",
            "log10_p": "log10 p",
        }
        rows = [
            {**record, **{f"{kind}_cosine_last_block": record[f"{kind}_cosine_by_layer"][-1] for kind in _KINDS}}
            for record in self.records
        ]
        by_seed = dataclasses.replace(self, records=rows)._listing("Contraction by seed", columns)
        *tables, last = by_seed, *map(self._by_block, self._groups())
        terms = explain("cosine between sequences", "cosine within a sequence", "log10 p")
        return [*tables, last._replace(note=terms)]

    def figures(self) -> dict[str, Panel]:
        """Draw the cosine after each block: mean and range over seeds a length; theory dashed, with its interval."""
        caption = "Cosine between last-position states of different inputs, mean over seeds."
        return {"contraction": Panel(self.draw(), caption + figures.left_out(len(self._groups())))}

    def draw(self, ax: Axes | None = None) -> Figure:
        """Draw that figure, into axes if given."""
        figure, ax = figures.new(ax=ax)
        groups = self._groups()
        for records, color in zip(groups, figures.SERIES, strict=False):
            curves = [record["inter_cosine_by_layer"] for record in records]
            blocks = range(1, len(curves[0]) + 1)
            condition = self._condition(records[0])
            name = f"measured, {condition}" + (" (band: range over seeds)" if len(curves) > 1 else "")
            figures.band(ax, blocks, curves, name=name, color=color, markers=True)
            if "theory" in records[0]:
                prediction = records[0]["theory"]
                cosine, low, high = (prediction[f"inter_cosine_by_layer{end}"] for end in ("", "_low", "_high"))
                color = figures.MUTED if len(groups) > 1 else figures.THEORY
                name = f"theory, {condition} (band: {prediction['coverage']:.0%} of seeds)"
                figures.line(ax, blocks, cosine, (low, high), name, color, dashed=True)
        figures.count_axis(ax)
        figures.label(ax, "after block", "cosine between unrelated inputs")
        figures.legend(ax)
        return figure

    def rows(self) -> list[dict[str, object]]:
        """Return a row for each record and block, with theory its prediction."""
        shared = ["seed", "seq_len", *[self.swept] * bool(self.swept)]
        return [
            {key: record[key] for key in shared}
            | {"block": block + 1}
            | {f"{kind}_cosine": record[f"{kind}_cosine_by_layer"][block] for kind in _KINDS}
            | cosine_row(record, block)
            for record in self.records
            for block in range(len(record["inter_cosine_by_layer"]))
        ]

    def _by_block(self, records: Sequence[ProbeRow]) -> Listing:
        """Tabulate one group after each block: the mean over seeds, their range, and theory."""
        rows = []
        for block in range(1, len(records[0]["inter_cosine_by_layer"]) + 1):
            between = [record["inter_cosine_by_layer"][block - 1] for record in records]
            within = [record["intra_cosine_by_layer"][block - 1] for record in records]
            cells: dict[str, str | None] = {"after block": str(block)}
            cells["cosine between sequences"] = f"{statistics.fmean(between):.4f}"
            if len(records) > 1:
                cells["from seed to seed"] = f"{min(between):.4f} to {max(between):.4f}"
            if "theory" in records[0]:
                cells |= cosine_cells(records, block)
            cells["cosine within a sequence"] = None if None in within else f"{statistics.fmean(within):.4f}"
            rows.append(cells)
        of = f", mean of {len(records)} seeds" if len(records) > 1 else ""
        title = f"Contraction by block, {self._condition(records[0])}{of}"
        return Listing(title, list(rows[0]), [list(cells.values()) for cells in rows])


_KINDS = ("inter", "intra")


def preference(
    cfg: ModelConfig,
    *,
    theory: bool = False,
    seeds: Sequence[int] = (0,),
    seq_len: int = 64,
    num_inputs: int = 2_000,
    inputs: str = "tokens",
    input_seed: int = 0,
    embedding_seed: int | None = 0,
) -> Preference:
    """Probe untrained models for the token that they prefer.

    Args:
        cfg: the architecture.
        theory: add the predicted fraction with the band that holds 80% of seeds.
        seeds: of the models.
        seq_len: T.
        num_inputs: N, sequences to probe with.
        inputs: "tokens" or "gaussian".
        input_seed: of the inputs.
        embedding_seed: of the embedding tables that all seeds share; None: each has its own.

    Raises:
        InputError: sizes that do not fit, or inputs that theory does not predict.

    Example:
        >>> from bornbiased_jax.config import preset
        >>> small = preset("gpt2-tiny", num_layers=1, d_model=16, num_heads=2, d_ff=32, vocab_size=32)
        >>> preference(small, seeds=[42, 43], seq_len=4, num_inputs=60).table().columns[:3]
        ['seed', 'T', 'top-1 token']
    """
    check_config(cfg)
    if theory:
        check(inputs, cfg)
    probe_inputs = random_inputs(inputs, num_inputs, seq_len, cfg, seed=input_seed)
    records = _of_untrained(cfg, "preference", seeds, probe_inputs, embedding_seed)
    if theory:
        records = with_fractions(cfg, records, tokens=inputs == "tokens", table_seed=embedding_seed)
    return Preference(records, cfg.to_dict())


def contraction(
    cfg: ModelConfig,
    *,
    theory: bool = False,
    seeds: Sequence[int] = (0,),
    seq_len: int = 64,
    num_inputs: int = 2_000,
    inputs: str = "tokens",
    input_seed: int = 0,
    embedding_seed: int | None = 0,
) -> Contraction:
    """Probe untrained models for how alike the states of unrelated inputs become.

    Arguments are those of :func:`preference`; ``theory`` adds the predicted cosine after each block with its 99%
    interval.

    Raises:
        InputError: sizes that do not fit, or inputs that theory does not predict.

    Example:
        >>> from bornbiased_jax.config import preset
        >>> small = preset("gpt2-tiny", num_layers=2, d_model=16, num_heads=2, d_ff=32, vocab_size=32)
        >>> len(contraction(small, seq_len=4, num_inputs=60).records[0]["inter_cosine_by_layer"])
        2
    """
    check_config(cfg)
    if theory:
        check(inputs, cfg)
    probe_inputs = random_inputs(inputs, num_inputs, seq_len, cfg, seed=input_seed)
    records = _of_untrained(cfg, "contraction", seeds, probe_inputs, embedding_seed)
    if theory:
        records = with_cosines(cfg, records, tokens=inputs == "tokens")
    return Contraction(records, cfg.to_dict())


def _of_untrained(
    cfg: ModelConfig, part: Part, seeds: Sequence[int], inputs: Inputs, embedding_seed: int | None
) -> list[ProbeRow]:
    if isinstance(seeds, str) or not isinstance(seeds, Iterable) or getattr(seeds, "ndim", 1) == 0:
        raise InputError(f"seeds={seeds!r} is one value: give a list, as in seeds=[{seeds}] or seeds=range(8)")
    options = ProbeOptions(intra=part == "contraction")
    # A seed that is named twice would count twice in means and corrections.
    distinct = list(dict.fromkeys(map(check_seed, seeds)))
    records = run.probe(untrained(cfg, fixed_embedding_seed=embedding_seed), distinct, inputs, options)
    return [part_of(record, part, cfg, inputs) for record in records]


def part_of(record: ProbeRecord, part: Part, cfg: ModelConfig, inputs: Inputs) -> ProbeRow:
    """Flatten one part of a probe's record into one row, with the inputs and the vocabulary size, JSON-ready."""
    shared = {key: value for key, value in record.items() if key not in ("preference", "contraction")}
    return {**shared, "vocab_size": cfg.vocab_size, "inputs": inputs.describe(), **record[part]}
