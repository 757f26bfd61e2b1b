"""Results of `models`, `init-scheme` and the commands about lineage: each holds the object that ``--json`` writes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from bornbiased_jax.lineage.audit.finding import INFORMATION, FindingKind
from bornbiased_jax.lineage.verdict import LEAST_P, format_p
from bornbiased_jax.report import lineage_figures
from bornbiased_jax.report.tables import Panel
from bornbiased_jax.results.result import Listing, RecordResult, listing
from bornbiased_jax.results.wording import among, count, in_cell

_TITLES: dict[FindingKind, str] = {
    "duplicate": "Duplicates",
    "near-duplicate": "Duplicates up to signed zeros or number format",
    "gap": "Steps missing from the grid",
    "break": "Breaks in a trajectory",
    "parentage": "Not from its own initialization",
    "repeats": "Initializations that repeat themselves",
    "init-law": "Initializations that contradict their configuration",
    "one-per-run": "One checkpoint a run, by their names",
    "unreadable": "Not readable",
    "shared-birth": "Shared initializations (no defect)",
    "idle-step": "Steps that changed no weight (no defect)",
    "inconclusive": "Not decided (no defect)",
}
"""Headings of an audit, in the order of its report."""


class Models(RecordResult):
    """The presets."""

    def summary(self) -> list[str]:
        """Say how many presets there are and how large they are."""
        value = self.record
        sizes = {name: preset["num_parameters"] for name, preset in value["models"].items()}
        small, large = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
        return [
            f"{count(len(sizes), 'preset')}, from {small} ({sizes[small]:,} parameters) to {large} ({sizes[large]:,}).",
            f"A preset is an architecture without weights: a seed gives it those, and --set changes any of its "
            f"{len(value['fields'])} fields.",
        ]

    def tables(self) -> list[Listing]:
        """List a row for each preset."""
        rows = []
        for name, preset in self.record["models"].items():
            fields = preset["fields"]
            cells = {key: fields[key] for key in ("d_model", "d_ff", "vocab_size", "norm", "positions")}
            cells["heads"] = f"{fields['num_heads']}/{fields['num_kv_heads']}"
            cells["mlp"] = f"{fields['activation']}{' gated' if fields['gated_mlp'] else ''}"
            rows.append(
                {"preset": name, "size": f"{preset['num_parameters']:,}", "layers": fields["num_layers"], **cells}
            )
        columns = {"preset": "preset", "size": "parameters", "layers": "layers", "d_model": "d_model"}
        columns |= {"heads": "heads/kv", "d_ff": "d_ff", "vocab_size": "vocab", "norm": "norm", "mlp": "MLP"}
        return [listing("Presets", columns | {"positions": "positions"}, rows)]


class WhichSeed(RecordResult):
    """The seed that a model was initialized with, if a search finds one."""

    def summary(self) -> list[str]:
        """Say which seed it is, how sure that is, and what the search cannot see."""
        value = self.record
        searched = f"Of {count(value['num_seeds'], 'seed')} searched"
        confirmed = value["confirmed"]
        if value["seed"] is None:
            return [
                f"{searched}, none is shown to be the one: {value['reason']}.",
                "This search cannot see a seed outside the range, another framework's seed, or a model whose "
                "coordinates were rotated or permuted.",
            ]
        sentences = [f"{searched}, seed {value['seed']} is the one: {value['reason']}."]
        if confirmed is not None:
            decision = "confirms it" if confirmed["verdict"] == "same-lineage" else "does not confirm it"
            sentences.append(f"The exact test of all weights {decision}: {confirmed['reason']}.")
        framework = "torch's" if "framework" in value else "those of this package"
        return [*sentences, f"Seeds are {framework}: another framework draws other weights from the same number."]


class Audit(RecordResult):
    """The findings in a folder of checkpoints."""

    question = "What a folder of checkpoints holds"

    def summary(self) -> list[str]:
        """Say how many findings of which kind there are, and how far the tests reach."""
        value = self.record
        kinds: Counter[FindingKind] = Counter(finding["kind"] for finding in value["findings"])
        defects = [
            f"{_TITLES[kind].lower()} ({kinds[kind]})" for kind in _TITLES if kind not in INFORMATION and kinds[kind]
        ]
        checkpoints = f"{count(len(value['checkpoints']), 'checkpoint')} of {count(len(value['runs']), 'run')}"
        tested = self._num_tested()
        scope = (
            "Copies and gaps are facts. No pair was tested in the weights, so shared initial weights were not looked "
            "for."
        )
        if tested:
            scope = (
                f"{count(tested, 'pair')} {'was' if tested == 1 else 'were'} tested in the weights; the probability "
                f"that any unrelated pair is called related is at most {value['alpha']:g} over the whole audit."
            )
        contradictions = "nothing contradicts their labels" if value["clean"] else among(defects)
        return [f"{checkpoints}: {contradictions}.", scope]

    def title(self) -> str:
        """Return the heading of its page: the number of findings."""
        num_defects = sum(finding["kind"] not in INFORMATION for finding in self.record["findings"])
        return "Clean" if self.record["clean"] else count(num_defects, "finding")

    def report(self) -> str:
        """Write the findings by kind, then the runs, their steps and who shares their data, in Markdown.

        >>> audit = {"source": "models", "clean": True, "findings": [], "checkpoints": [], "pairs": [], "runs": []}
        >>> print(Audit({**audit, "basis": "digests"}).report().splitlines()[0])
        ## Audit of `models`: clean
        """
        value, num_tested = self.record, self._num_tested()
        lines = [
            f"## Audit of `{value['source']}`: {self.title().lower()}",
            "",
            f"{count(len(value['checkpoints']), 'checkpoint')} of {count(len(value['runs']), 'run')}; {value['basis']}."
            + (
                f" {count(num_tested, 'pair')} tested, family-wise level {value['alpha']:g} (Holm)."
                if num_tested
                else ""
            ),
        ]
        # A section for each kind of finding.
        for kind, title in _TITLES.items():
            members = [finding for finding in value["findings"] if finding["kind"] == kind]
            if members:
                lines += ["", f"### {title}", ""]
                # On one line, though a folder's name may have line breaks.
                lines += [f"- {' '.join(finding['text'].split())}{_p(finding['p_value'])}" for finding in members]
        if value["runs"]:
            lines += ["", "### Runs", "", "| run | steps | shares data with |", "| --- | --- | --- |"]
            lines += map(_run_row, value["runs"])
        return "\n".join(lines) + "\n"

    def _num_tested(self) -> int:
        return sum(pair["p_value"] is not None for pair in self.record["pairs"])

    def tables(self) -> list[Listing]:
        """List the findings, defects first."""
        order = list(_TITLES)
        rows = sorted(self.record["findings"], key=lambda finding: order.index(finding["kind"]))
        columns = {"kind": "kind", "text": "what", "p_value": "p"}
        return [listing("Findings", columns, rows, "p after Holm's correction over the audit.")] if rows else []

    def figures(self) -> dict[str, Panel]:
        """Draw the checkpoints by run and step with their relations, where there are any and not too many runs."""
        graph = lineage_figures.lineage_graph(self.record)
        caption = (
            "Checkpoints by run and order of steps. Lines: shared initial weights of neighbors and with the earliest "
            "steps, or copies, orange between runs; an arrow where a run's record gives the direction. Orange circles: "
            "named by a finding."
        )
        return {} if graph is None else {"graph": Panel(graph, caption)}


def _p(value: float | None) -> str:
    if value is None:
        return ""
    # A smaller one is not written as a number.
    return f" ({format_p(math.log10(value) if value > LEAST_P else -math.inf)})"


def _run_row(run: Mapping[str, Any]) -> str:
    steps = run["steps"]
    span = f"{len(steps)} from {steps[0]} to {steps[-1]}" if len(steps) > 1 else str(steps[0])
    sharing = run.get("shares_data_with", "not known")
    sharing_text = sharing if isinstance(sharing, str) else ", ".join(map(in_cell, sharing)) or "none here"
    return f"| {in_cell(run['name']) or '(the folder)'} | {span} | {sharing_text} |"


class SketchFile(RecordResult):
    """A stored fingerprint of a model's weights."""

    def summary(self) -> list[str]:
        """Say what was stored, and what of the model repeats itself."""
        value = self.record
        lines = [
            f"{value['out']} holds sketches, digests and statistics of {count(value['num_tensors'], 'tensor')}, but no "
            f"weights. The digest of its payload is {value['digest'][:12]}…; published with a date that can be proved, "
            "it commits you to this model.",
        ]
        equal = [row for row in value["repeats"] if row["num_equal"]]
        if equal:
            named = " and ".join(f"{row['num_equal']:,} of its {row['labels']}" for row in equal)
            lines.append(f"The model repeats itself: {named} equal earlier ones.")
        return lines


class OutputFile(RecordResult):
    """A stored fingerprint of a model's outputs."""

    def summary(self) -> list[str]:
        """Say what was stored and what it is good for."""
        value = self.record
        return [
            f"{value['out']} holds {value['num_outputs']:,} outputs of width {value['width']}, and the digest of the "
            "inputs that they answer.",
            "Compare fingerprints of two models on the same inputs with `bornbiased seedprint A B`. Outputs show the "
            "embedding table rather than the blocks, so tests of the weights see more.",
        ]


class InitScheme(RecordResult):
    """The initialization scheme of an untrained model."""

    def summary(self) -> list[str]:
        """Name the scheme that an untrained model was drawn by, and what repeats in it."""
        repeats = self.record["repeats"]
        return [self._scheme(), *[f"It repeats itself: {among(repeats)}." for _ in repeats[:1]]]

    def _scheme(self) -> str:
        value = self.record
        nearest, runner_up = value["nearest_scheme"], value["runner_up"]
        if nearest is None:
            return "No named scheme can have drawn these weights."
        if value["fits"]:
            after = f"; the runner-up is {runner_up}" if runner_up else ""
            return f"Drawn by {nearest}, as far as moments can tell{after}."
        then = f", then {runner_up}" if runner_up else ""
        return f"Nearest is {nearest}{then}, but not every group fits it."

    def tables(self) -> list[Listing]:
        """List a row for each group of weights."""
        rows = [
            [
                row["group"],
                f"{row['std']:.5g}",
                f"{row['mean']:.2g}",
                f"{row['kurtosis']:.3f}",
                "" if row["truncated_at"] is None else f"±{row['truncated_at']:.2f} std",
                ", ".join(row["nearest"]) or "none",
                ", ".join(row["runner_up"]),
                "yes" if row["fits"] else "no",
            ]
            for row in self.record["groups"]
        ]
        columns = ["group", "std", "mean", "kurtosis", "truncated", "schemes that draw it so", "runner-up", "fits"]
        return [Listing("Distributions by group", columns, rows)]


class Digest(RecordResult):
    """A commitment to a model's weights."""

    def summary(self) -> list[str]:
        """Say what the digest commits to."""
        value = self.record
        return [
            f"{value['digest'][:12]}… commits to {count(len(value['tensors']), 'tensor')} of {value['checkpoint']}, "
            "their numbers and the order of their coordinates.",
            "It proves something once it is published with a date that can be proved; `seedprint --base-digest` then "
            "refuses any other base.",
        ]


class Descendant(RecordResult):
    """A model of known origin."""

    def summary(self) -> list[str]:
        """Say what was changed, and whether the function is still the same."""
        value = self.record
        origin = f"{value['out']} is {value['checkpoint']} after {among(list(value['changes']))}."
        if not value["function_preserved"]:
            return [
                origin,
                "It computes another function than its parent. Its origin is known, so you can try tests on it.",
            ]
        difference = value["logit_difference"]
        check = "" if difference is None else f": the logits moved by {difference:.1g} of their standard deviation"
        return [origin, f"It computes the same function as its parent{check}."]
