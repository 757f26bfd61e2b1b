"""Results of `seedprint`: whether two models share an initialization."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bornbiased_jax.checkpoints.roles import component_title
from bornbiased_jax.config import FieldValue, ModelConfig
from bornbiased_jax.lineage import OutputFingerprint, Verdict, trace
from bornbiased_jax.lineage.baselines import Score
from bornbiased_jax.lineage.battery import ALL
from bornbiased_jax.lineage.compared_model import ComparedModel, Source
from bornbiased_jax.lineage.fingerprints import TensorRecord
from bornbiased_jax.lineage.sheet import Sheet, evidence_sheet
from bornbiased_jax.lineage.trace import TraceOptions
from bornbiased_jax.lineage.weights_report import place
from bornbiased_jax.report import lineage_figures
from bornbiased_jax.report.tables import Panel
from bornbiased_jax.results.result import Listing, Result, listing
from bornbiased_jax.results.sheet_tables import sheet_listings
from bornbiased_jax.results.verdicts_by_step import StepComponent, StepVerdict, is_identity

_TEST_COLUMNS = {
    "name": "test",
    "permuted": "labels permuted",
    "null": "null",
    "verdict": "verdict",
    "log10_p": "log10 p",
    "log10_p_adjusted": "log10 p, corrected",
    "z": "z",
}
# Equal numbers are a fact: verdicts on them list what each test would have found, and nothing about chance.
_CHANCE = {"null", "p_value", "log10_p", "log10_p_adjusted", "log10_p_bound", "log10_p_moments", "z"}
_CHANCE |= {"statistic", "null_mean", "null_std"}
_FOUND = {"same-lineage": "yes", "unrelated": "no", "undefined": "undefined"}
_NO_CHANCE = "The verdict does not rest on this: the numbers are equal, a fact without a probability."
# Components by step that stand in one table, as wide as a terminal.
_COMPONENTS_A_TABLE = 6
_MEANING = (
    "What is asked: training starts from random numbers, which a seed decides. In two models that were started apart, "
    "neurons and coordinates of the same number do not correspond, however alike the models become. Agreement beyond "
    "chance means that both began from the same numbers: one was made from the other, both were made from a third "
    "model, or both were started with one seed of one program."
)
_COMPONENT_COLUMNS = {
    "component": "part",
    "verdict": "verdict",
    "evidence": "strongest evidence",
    "log10_p": "log10 p, corrected",
    "z": "z",
}
# Sublayers, and the matrices that they consist of.
_SUBLAYERS = {"attention": ("query", "key", "value", "output"), "MLP": ("gate", "up", "down")}


@dataclasses.dataclass(frozen=True, repr=False)
class Lineage(Result):
    """The verdict on two models.

    Attributes:
        base, suspect: what a reader knows them by.
        verdict: what was decided, on what evidence.
        scores: published scores of the weights; None where none were computed.
        models: their configurations, null of a model that this package does not run.
        steps: the verdict of the suspect with each checkpoint of the base's run, JSON-ready (:mod:`.verdicts_by_step`).
        sheet: statistics that disputes are argued with, for the end of the page; they change no verdict.
        facts: what the page says of both models.
    """

    question = "Do two models share an initialization?"
    axes = ("step", "component", "name")
    base: str
    suspect: str
    verdict: Verdict
    scores: Sequence[Score] | None = None
    models: Mapping[str, Any] | None = None
    steps: Sequence[StepVerdict] | None = None
    sheet: Sheet | None = None
    facts: Listing | None = None

    def to_json(self) -> dict[str, object]:
        """Return what the command writes with --json."""
        value = self.verdict.to_json()
        if self.scores is not None:
            value["baselines"] = [score.to_json() for score in self.scores]
        if self.models is not None:
            value["models"] = dict(self.models)
        if self.steps is not None:
            value["by_step"] = list(self.steps)
        if self.sheet is not None:
            value["sheet"] = self.sheet.to_json()
        return value

    def summary(self) -> list[str]:
        """Say what was decided, how sure that is and what would hide a shared initialization."""
        sentences = [self.verdict.summary()]
        related = [step["step"] for step in self.steps or () if step["verdict"] == "same-lineage"]
        if self.steps is not None:
            steps = f"{len(related)} of {len(self.steps)} checkpoints of {self.base} share it with {self.suspect}"
            sentences.append(f"{steps}{': steps ' + ', '.join(map(str, related)) if related else ''}.")
        return sentences

    def plain_entries(self) -> dict[str, int | float | str]:
        """Return the numbers and texts of its record; of equal models none about chance."""
        entries = super().plain_entries()
        left_out = _CHANCE if self.verdict.is_identity else set()
        return {name: value for name, value in entries.items() if name not in left_out}

    def notes(self) -> list[str]:
        """Return the points that the verdict rests on, how often such a verdict is wrong, and what it does not show."""
        value: Mapping[str, Any] = self.verdict.to_json()
        notes = [_MEANING, *self.verdict.notes]
        if value.get("null") == "exact" and not value.get("identity"):
            one_in = f"{1 / value['alpha']:,.0f}"
            notes.append(
                f"How often this is wrong: with an exact p-value and the level of {value['alpha']:g} at most one pair "
                f"of unrelated models in {one_in} is called related. How often a related pair is missed depends on "
                "what was done to the copy, and has no rate of its own."
            )
        return [*notes, value["scope"]]

    def title(self) -> str:
        """Return the heading of its page: the verdict."""
        return f"Verdict: {self.verdict.verdict}"

    def text(self) -> str:
        """Write what the command prints: the decision, the summary, the points that it rests on, the scores."""
        return self.verdict.text() + ("" if self.scores is None else f"\n{_score_lines(self.scores)}")

    def tables(self) -> list[Listing]:
        """List a row for each test; z of the matrices outside the blocks; the verdict at each step."""
        value: dict[str, Any] = self.verdict.to_json()
        title = f"{self.base} and {self.suspect}: {self.verdict.verdict}"
        note = (
            f"Level {value['alpha']:g}. log10 p is each test's own; corrected is Holm's p over all comparisons, by "
            "which the verdicts go. A p that no permutation reached is bounded by a proof. z describes."
        )
        # Without a correction of its own, a test is a family of one.
        columns = {key: title for key, title in _TEST_COLUMNS.items() if key != "log10_p_adjusted" or "tests" in value}
        tests = [_with_reason(row, "permuted") for row in self._tests()]
        tables = [self._without_chance(columns, title, tests, note)]
        if value.get("components"):
            tables.append(self._component_table(value["components"]))
        outside = [
            row
            for row in self._drawn_values()["by_module"] or []
            if "blocks/" not in row["module"] and not lineage_figures.split_module(str(row["module"]))[1]
        ]
        if outside:
            note = "z of the coordinates of each matrix alone; parts above have the evidence that is strongest there."
            tables.append(listing("Outside the blocks", {"module": "matrix", "z": "z"}, outside, note))
        return [*tables, *self.step_tables()]

    def _without_chance(
        self, columns: Mapping[str, str], title: str, rows: Sequence[Mapping[str, Any]], note: str
    ) -> Listing:
        """List verdicts of tests or parts; of equal models without p and z, as what would have been found."""
        if not self.verdict.is_identity:
            return listing(title, columns, rows, note)
        columns = {key: name for key, name in columns.items() if key not in _CHANCE}
        columns["verdict"] = "found by this alone"
        # The verdict of a single test is that of the pair, whatever the test found.
        if "tests" not in self.verdict.detail:
            del columns["verdict"]
        results = [{**row, "verdict": _FOUND[row["verdict"]]} for row in rows]
        return listing(title, columns, results, _NO_CHANCE)

    def _component_table(self, rows: Sequence[Mapping[str, Any]]) -> Listing:
        """List each part of the models with a verdict of its own, sublayers by the strongest of their matrices."""
        by_name = {row["component"]: row for row in rows}
        value: Mapping[str, Any] = self.verdict.to_json()
        # Models with a vision tower have a language model next to it.
        components = dict.fromkeys(test["component"] for test in value["tests"])
        all_parts = "the whole model" if len(components) == 1 else f"the {component_title(next(iter(components)))}"
        listed = []
        for row in rows:
            for sublayer, matrices in _SUBLAYERS.items():
                members = [by_name[name] for name in matrices if name in by_name]
                if members and row is members[0]:
                    strongest = min(members, key=lambda member: (member["log10_p"] is None, member["log10_p"] or 0.0))
                    listed.append({**strongest, "component": f"{sublayer}, all matrices"})
            name = all_parts if row["component"] == ALL else place(row["component"])
            listed.append({**row, "component": name})
        listed = [_with_reason(row, "evidence") for row in listed]
        note = "Each part by itself, at the same level; corrected over all of them. “undefined” is no finding."
        return self._without_chance(_COMPONENT_COLUMNS, "By part of the models", listed, note)

    def appendix(self) -> list[Listing]:
        """List both models; then the sheet: what each statistic is worth, and its range over unrelated models."""
        return [
            *([] if self.facts is None else [self.facts]),
            *([] if self.sheet is None else sheet_listings(self.sheet)),
        ]

    def step_tables(self) -> list[Listing]:
        """List a row for each step: z and the corrected log10 p of each component; of equal models neither.

        What is wider than a terminal is cut into parts.
        """
        if self.steps is None:
            return []
        names = list(dict.fromkeys(row["component"] for step in self.steps for row in step["components"]))
        cells = [
            {} if is_identity(step) else {row["component"]: _cell(row) for row in step["components"]}
            for step in self.steps
        ]
        title, parts = "By step: z (log10 p, corrected)", []
        for start in range(0, max(1, len(names)), _COMPONENTS_A_TABLE):
            part = names[start : start + _COMPONENTS_A_TABLE]
            rows = [
                [step["step"], step["verdict"], *(row.get(name, "–") for name in part)]
                for step, row in zip(self.steps, cells, strict=True)
            ]
            part_title = title if len(part) == len(names) else f"{title}, {part[0]} to {part[-1]}"
            parts.append(Listing(part_title, ["step", "verdict", *part], rows))
        count = sum(row["log10_p"] is not None for step in self.steps for row in step["components"])
        note = f"p is corrected by Holm's method for all {count} p-values of these steps; verdicts are each step's own."
        if equal := [str(step["step"]) for step in self.steps if is_identity(step)]:
            note += (
                f" At step {', '.join(equal)} the numbers are equal: a fact without a probability, for which no z and "
                "no p are shown."
            )
        return [*parts[:-1], parts[-1]._replace(note=note)]

    def figures(self) -> dict[str, Panel]:
        """Draw z by block and matrix, the statistic and its null, z by step: those that the verdict rests on."""
        value = self._drawn_values()
        panels = {}
        # A map for each component of the models.
        main = (value.get("tests") or [{"component": "language"}])[0]["component"]
        for component, where, rows in _by_component(value["by_module"], "module", main):
            modules = lineage_figures.module_map(rows)
            if modules is not None:
                caption = f"z of the coordinates of each matrix{where}: where the two models agree; gray below 4. "
                panels[f"modules_{component}".strip("_")] = Panel(modules, f"{caption}z is no p-value.")
        # Then blocks by the evidence that decides about them, each component's too.
        for component, where, rows in _by_component(value.get("components"), "component", main):
            pairs, further = (value["blocks"], value["further_blocks"]) if not component else (None, [])
            blocks = lineage_figures.block_map(rows, pairs, further)
            if blocks is not None:
                partner = ", and its partner" if pairs is not None else ""
                caption = f"z of each block{where} by the evidence that decides about it{partner}; gray below 4."
                panels[f"blocks_{component}".strip("_")] = Panel(blocks, caption)
        if value.get("null_histogram") and value["z"] is not None:
            caption = (
                "The statistic of the deciding test under permutations of labels, in standard deviations from its "
                "mean, and the observed one."
            )
            panels["null"] = Panel(lineage_figures.null_figure(value["null_histogram"], value["z"]), caption)
        steps = lineage_figures.z_by_step(self._drawn_steps())
        if steps is not None:
            caption = "z of each component at each checkpoint of the base's run"
            is_cut = len(self._drawn_steps()) < len(self.steps or ())
            panels["steps"] = Panel(steps, f"{caption}{', without those of equal numbers' if is_cut else ''}.")
        return panels

    def _drawn_steps(self) -> list[StepVerdict]:
        """Return the steps whose z is drawn: all but those of equal models."""
        return [step for step in self.steps or () if not is_identity(step)]

    def _drawn_values(self) -> dict[str, Any]:
        """Return the JSON of the verdict; of equal models without the z that figures and tables of places show."""
        value: dict[str, Any] = self.verdict.to_json()
        left_out = ("by_module", "components", "null_histogram") if self.verdict.is_identity else ()
        return value | dict.fromkeys(left_out)

    def draw(self, ax: Axes | None = None) -> Figure | None:
        """Draw z by step of a run that was followed, else z by block and matrix, else the null; into axes if given."""
        if self.steps is not None:
            return lineage_figures.z_by_step(self._drawn_steps(), ax)
        value = self._drawn_values()
        modules = lineage_figures.module_map(value["by_module"] or [], ax)
        if modules is None and value.get("null_histogram") and value["z"] is not None:
            return lineage_figures.null_figure(value["null_histogram"], value["z"], ax)
        return modules

    def rows(self) -> list[dict[str, object]]:
        """Return a row for each test; of a run by step, a row for each step and component."""
        if self.steps is not None:
            return [{"step": step["step"]} | dict(row) for step in self.steps for row in step["components"]]
        return self._tests()

    def __repr__(self) -> str:
        return f"{self.verdict.verdict}: {super().__repr__()}"

    def _tests(self) -> list[dict[str, object]]:
        value: Mapping[str, Any] = self.verdict.to_json()
        # A single test is a battery of one.
        tests = value.get("tests") or [{**value, "name": value["test"]}]
        main = tests[0].get("component")
        rows = []
        for test in tests:
            row = {key: test.get(key) for key in (*_TEST_COLUMNS, "reason")}
            # The component of the model that has most evidence needs no name.
            if test.get("component") != main:
                row["name"] = f"{test['name']}, {component_title(test['component'])}"
            rows.append(row)
        return rows


def _by_component(
    rows: Sequence[Mapping[str, Any]] | None, key: str, main: str
) -> Iterator[tuple[str, str, list[Mapping[str, Any]]]]:
    """Yield components, of which the main one has no name before its blocks; words for a caption; rows of blocks."""
    by_component: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows or []:
        component, is_in_block, place_in_blocks = str(row[key]).rpartition("blocks/")
        if is_in_block:
            by_component.setdefault(component.strip("/"), []).append({**row, key: f"blocks/{place_in_blocks}"})
    for component, members in by_component.items():
        where = f" of the {component_title(component or main)}" if len(by_component) > 1 else ""
        yield component, where, members


def _with_reason(row: Mapping[str, Any], column: str) -> dict[str, Any]:
    """Say in one column of a row why it is undefined, if it is."""
    return {**row, column: f"none: {row['reason']}"} if row["verdict"] == "undefined" else dict(row)


def _cell(row: StepComponent) -> str:
    z, log10_p = ("–" if value is None else f"{value:.3g}" for value in (row["z"], row.get("log10_p_adjusted")))
    return f"{z} ({log10_p})"


def _score_lines(scores: Sequence[Score]) -> str:
    decisions = {None: "undefined", True: "same", False: "not the same"}
    width = max(len(score.method) for score in scores)
    lines = ["Published scores of the weights, read at their threshold of 0.8, or at p < 0.01 where they give a p:"]
    for score in scores:
        value = score.reason if score.value is None else f"{score.value:.4f}"
        if score.log10_p is not None:
            value += f", log10 p {score.log10_p:.2f}"
        lines.append(f"  {score.method:<{width}}  {value}  ({decisions[score.same]})")
    return "\n".join(lines)


def lineage(base: Source, suspect: Source, **options: Unpack[TraceOptions]) -> Lineage:
    """Say whether two models share an initialization, by their weights where both have any.

    Args:
        base: a reference to a checkpoint, a stored fingerprint, or either of them opened.
        suspect: the other model.
        options: :class:`bornbiased_jax.lineage.trace.TraceOptions` (``test``, ``alpha``, ``base_digest`` …).

    Raises:
        InputError: what :func:`bornbiased_jax.lineage.trace.trace` refuses.

    Example:
        >>> from bornbiased_jax import progress
        >>> progress.set_quiet(True)
        >>> small = "llama-tiny,num_layers=1,d_model=32,vocab_size=64"
        >>> lineage(f"seed:1@{small}", f"seed:2@{small}").verdict.verdict
        'unrelated'
    """
    pair = [ComparedModel(base), ComparedModel(suspect)]
    verdict = trace.trace(base, suspect, **options)
    return Lineage(pair[0].name, pair[1].name, verdict, models=models_of(*pair))


def models_of(base: ComparedModel, suspect: ComparedModel) -> dict[str, dict[str, FieldValue] | None]:
    """Return the configurations of two models, JSON-ready; None of one that this package does not run."""
    return {"base": _config(base), "suspect": _config(suspect)}


def sheet_of(base: ComparedModel, suspect: ComparedModel) -> Sheet | None:
    """Compute the sheet of two checkpoints; None where one of them is a stored fingerprint."""
    if base.stored is not None or suspect.stored is not None:
        return None
    first, second = base.runnable, suspect.runnable
    checkpoints = None if first is None or second is None else (first, second)
    return evidence_sheet(base.roles, suspect.roles, checkpoints, (_records(base), _records(suspect)))


def _records(model: ComparedModel) -> dict[str, TensorRecord]:
    """Return digests and statistics of a model's tensors by path, once a fingerprint was made; nothing before."""
    return {} if model.sketches is None else {record.path: record for record in model.sketches.tensors}


def _config(model: ComparedModel) -> dict[str, FieldValue] | None:
    if isinstance(model.stored, OutputFingerprint):
        return ModelConfig.from_dict(model.stored.config).to_dict()
    config = None if model.stored is not None else model.roles.config
    return None if config is None else config.to_dict()
