"""Results of `models`, `init-scheme` and the commands about lineage."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence

from bornbiased_jax.checkpoints.native_roles import LANGUAGE
from bornbiased_jax.config import FIELDS, PRESETS, FieldValue
from bornbiased_jax.lineage import Fingerprint, OutputFingerprint, Settings, payload_digest
from bornbiased_jax.lineage.audit.finding import INFORMATION, AuditResult, FindingKind, RunRow
from bornbiased_jax.lineage.audit.scheme import ModelScheme
from bornbiased_jax.lineage.verdict import LEAST_P, format_p
from bornbiased_jax.lineage.whichseed import Found
from bornbiased_jax.report import lineage_figures
from bornbiased_jax.report.tables import Panel
from bornbiased_jax.results.result import Listing, Report, Result, listing
from bornbiased_jax.results.wording import among, count, in_cell
from bornbiased_jax.schemes import SCHEMES

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


@dataclasses.dataclass(frozen=True, repr=False)
class Models(Result):
    """The presets.

    Attributes:
        sizes: numbers of parameters by preset.
    """

    sizes: Mapping[str, int]

    def to_json(self) -> dict[str, object]:
        """Return what the command writes with --json."""
        models = {
            name: {"num_parameters": number, "fields": dataclasses.asdict(PRESETS[name])}
            for name, number in self.sizes.items()
        }
        return {"models": models, "fields": list(FIELDS), "schemes": list(SCHEMES)}

    def summary(self) -> list[str]:
        """Say how many presets there are and how large they are."""
        sizes = self.sizes
        small, large = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
        return [
            f"{count(len(sizes), 'preset')}, from {small} ({sizes[small]:,} parameters) to {large} ({sizes[large]:,}).",
            f"A preset is an architecture without weights: a seed gives it those, and --set changes any of its "
            f"{len(FIELDS)} fields.",
        ]

    def tables(self) -> list[Listing]:
        """List a row for each preset."""
        rows = []
        for name, number in self.sizes.items():
            cfg = PRESETS[name]
            mlp = f"{cfg.activation}{' gated' if cfg.gated_mlp else ''}"
            heads = f"{cfg.num_heads}/{cfg.num_kv_heads}"
            sizes = [f"{number:,}", cfg.num_layers, cfg.d_model, heads, cfg.d_ff, cfg.vocab_size]
            rows.append([name, *sizes, cfg.norm, mlp, cfg.positions])
        columns = ["preset", "parameters", "layers", "d_model", "heads/kv", "d_ff", "vocab", "norm", "MLP", "positions"]
        return [Listing("Presets", columns, rows)]


@dataclasses.dataclass(frozen=True, repr=False)
class WhichSeed(Result):
    """The seed that a model was initialized with, if a search finds one.

    Attributes:
        suspect: the model, for a reader.
        model: the configuration whose initial weights were drawn, all fields.
        search: its result.
    """

    suspect: str
    model: Mapping[str, FieldValue]
    search: Found

    def to_json(self) -> dict[str, object]:
        """Return what the command writes with --json."""
        return {"suspect": self.suspect, "model": self.model, **self.search.to_json()}

    def summary(self) -> list[str]:
        """Say which seed it is, how sure that is, and what the search cannot see."""
        search, confirmed = self.search, self.search.confirmed
        scope = f"Of {count(search.num_seeds, 'seed')} searched"
        if search.seed is None:
            return [
                f"{scope}, none is shown to be the one: {search.reason}.",
                "This search cannot see a seed outside the range, another framework's seed, or a model whose "
                "coordinates were rotated or permuted.",
            ]
        sentences = [f"{scope}, seed {search.seed} is the one: {search.reason}."]
        if confirmed is not None:
            decision = "confirms it" if confirmed.verdict == "same-lineage" else "does not confirm it"
            sentences.append(f"The exact test of all weights {decision}: {confirmed.reason}.")
        framework = "those of this package" if search.framework is None else "torch's"
        return [*sentences, f"Seeds are {framework}: another framework draws other weights from the same number."]


class Audit(Report[AuditResult]):
    """The findings in a folder of checkpoints."""

    question = "What a folder of checkpoints holds"

    def summary(self) -> list[str]:
        """Say how many findings of which kind there are, and how far the tests reach."""
        value = self.report
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
        num_defects = sum(finding["kind"] not in INFORMATION for finding in self.report["findings"])
        return "Clean" if self.report["clean"] else count(num_defects, "finding")

    def markdown(self) -> str:
        """Write the findings by kind, then the runs, their steps and who shares their data, in Markdown.

        >>> audit = {"source": "models", "clean": True, "findings": [], "checkpoints": [], "pairs": [], "runs": []}
        >>> print(Audit({**audit, "basis": "digests"}).markdown().splitlines()[0])
        ## Audit of `models`: clean
        """
        value, num_tested = self.report, self._num_tested()
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
        return sum(pair["p_value"] is not None for pair in self.report["pairs"])

    def tables(self) -> list[Listing]:
        """List the findings, defects first."""
        order = list(_TITLES)
        rows = sorted(self.report["findings"], key=lambda finding: order.index(finding["kind"]))
        columns = {"kind": "kind", "text": "what", "p_value": "p"}
        return [listing("Findings", columns, rows, "p after Holm's correction over the audit.")] if rows else []

    def figures(self) -> dict[str, Panel]:
        """Draw the checkpoints by run and step with their relations, where there are any and not too many runs."""
        graph = lineage_figures.lineage_graph(self.report)
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


def _run_row(run: RunRow) -> str:
    steps = run["steps"]
    span = f"{len(steps)} from {steps[0]} to {steps[-1]}" if len(steps) > 1 else str(steps[0])
    sharing = run.get("shares_data_with", "not known")
    sharing_text = sharing if isinstance(sharing, str) else ", ".join(map(in_cell, sharing)) or "none here"
    return f"| {in_cell(run['name']) or '(the folder)'} | {span} | {sharing_text} |"


@dataclasses.dataclass(frozen=True, repr=False)
class SketchFile(Result):
    """A stored fingerprint of a model's weights.

    Attributes:
        out: the file.
        checkpoint: the reference to the model.
        stored: the fingerprint.
        settings: with which it was made.
        num_bytes: of the file; None where it is no file, as a pipe.
    """

    out: str
    checkpoint: str
    stored: Fingerprint
    settings: Settings
    num_bytes: int | None

    def to_json(self) -> dict[str, object]:
        """Return what the command writes with --json."""
        stored = self.stored
        language = stored.components.get(LANGUAGE)
        return {
            "out": self.out,
            "checkpoint": self.checkpoint,
            "source": stored.source.description,
            "digest": payload_digest(stored),
            "bytes": self.num_bytes,
            "weights_digest": stored.weights_digest,
            "tokenizer_digest": stored.tokenizer_digest,
            "dim": self.settings.dim,
            "neurons": self.settings.neurons,
            "sign_key": self.settings.sign_key.hex(),
            "token_labels": None if language is None else language.token_labels,
            "components": list(stored.components),
            "num_tensors": len(stored.tensors),
            "unread": list(stored.source.unread),
            "repeats": [
                {**vars(repeats), "z_by_period": {str(parts): z for parts, z in repeats.z_by_period.items()}}
                for repeats in stored.repeats
            ],
        }

    def summary(self) -> list[str]:
        """Say what was stored, and what of the model repeats itself."""
        size = "" if self.num_bytes is None else f", in {count(self.num_bytes, 'byte')},"
        lines = [
            f"{self.out} holds{size} sketches, digests and statistics of {count(len(self.stored.tensors), 'tensor')} "
            f"of {self.checkpoint}, but no weights. The digest of its payload is {payload_digest(self.stored)[:12]}…; "
            "published with a date that can be proved, it commits you to this model.",
        ]
        equal = [repeats for repeats in self.stored.repeats if repeats.num_equal]
        if equal:
            parts = " and ".join(f"{repeats.num_equal:,} of its {repeats.labels}" for repeats in equal)
            lines.append(f"The model repeats itself: {parts} equal earlier ones.")
        return lines


@dataclasses.dataclass(frozen=True, repr=False)
class OutputFile(Result):
    """A stored fingerprint of a model's outputs.

    Attributes:
        out: the file.
        checkpoint: the reference to the model.
        stored: the fingerprint.
        model: the configuration, all fields.
        digest: of the file, so that it can be published: the same model and inputs give the same bytes; None where it
            is no file, as a pipe.
    """

    out: str
    checkpoint: str
    stored: OutputFingerprint
    model: Mapping[str, FieldValue]
    digest: str | None

    def to_json(self) -> dict[str, object]:
        """Return what the command writes with --json."""
        stored = self.stored
        num_outputs, width = stored.outputs_ND.shape
        return {
            "out": self.out,
            "checkpoint": self.checkpoint,
            "source": stored.source,
            "num_outputs": num_outputs,
            "width": width,
            "layer": stored.layer,
            "storage": stored.storage,
            "inputs": stored.inputs,
            "model": self.model,
            "weights_digest": stored.weights_digest,
            "digest": self.digest,
        }

    def summary(self) -> list[str]:
        """Say what was stored and what it is good for."""
        num_outputs, width = self.stored.outputs_ND.shape
        return [
            f"{self.out} holds {num_outputs:,} outputs of width {width} of {self.stored.source}, and the digest of the "
            "inputs that they answer.",
            "Compare fingerprints of two models on the same inputs with `bornbiased seedprint A B`. Outputs show the "
            "embedding table rather than the blocks, so tests of the weights see more.",
        ]


@dataclasses.dataclass(frozen=True, repr=False)
class InitScheme(Result):
    """The initialization scheme of an untrained model.

    Attributes:
        checkpoint: the model, for a reader.
        model: the configuration, all fields.
        scheme: the named schemes that would draw its groups so.
        repeats: parts of it that repeat.
    """

    checkpoint: str
    model: Mapping[str, FieldValue]
    scheme: ModelScheme
    repeats: Sequence[str]

    def to_json(self) -> dict[str, object]:
        """Return what the command writes with --json."""
        scheme = dataclasses.asdict(self.scheme)
        return {"checkpoint": self.checkpoint, "model": self.model, **scheme, "repeats": self.repeats}

    def summary(self) -> list[str]:
        """Name the scheme that an untrained model was drawn by, and what repeats in it."""
        repeats = [f"It repeats itself: {among(self.repeats)}."] if self.repeats else []
        return [self._scheme(), *repeats]

    def _scheme(self) -> str:
        nearest, runner_up = self.scheme.nearest_scheme, self.scheme.runner_up
        if nearest is None:
            return "No named scheme can have drawn these weights."
        if self.scheme.fits:
            after = f"; the runner-up is {runner_up}" if runner_up else ""
            return f"Drawn by {nearest}, as far as moments can tell{after}."
        then = f", then {runner_up}" if runner_up else ""
        return f"Nearest is {nearest}{then}, but not every group fits it."

    def tables(self) -> list[Listing]:
        """List a row for each group of weights."""
        rows = [
            [
                row.group,
                f"{row.std:.5g}",
                f"{row.mean:.2g}",
                f"{row.kurtosis:.3f}",
                "" if row.truncated_at is None else f"±{row.truncated_at:.2f} std",
                ", ".join(row.nearest) or "none",
                ", ".join(row.runner_up),
                "yes" if row.fits else "no",
            ]
            for row in self.scheme.groups
        ]
        columns = ["group", "std", "mean", "kurtosis", "truncated", "schemes that draw it so", "runner-up", "fits"]
        return [Listing("Distributions by group", columns, rows)]


@dataclasses.dataclass(frozen=True, repr=False)
class Digest(Result):
    """A commitment to a model's weights: the digest of all, and of each tensor by its path."""

    digest: str
    checkpoint: str
    config: Mapping[str, FieldValue] | None
    tensors: Mapping[str, str]

    def summary(self) -> list[str]:
        """Say what the digest commits to."""
        return [
            f"{self.digest[:12]}… commits to {count(len(self.tensors), 'tensor')} of {self.checkpoint}, their numbers "
            "and the order of their coordinates.",
            "It proves something once it is published with a date that can be proved; `seedprint --base-digest` then "
            "refuses any other base.",
        ]


@dataclasses.dataclass(frozen=True, repr=False)
class Descendant(Result):
    """A model of known origin, with the facts of :class:`bornbiased_jax.derive.derive.Derived`."""

    checkpoint: str
    changes: Sequence[str]
    out: str
    family: str
    function_preserved: bool
    logit_difference: float | None
    base_digest: str
    digest: str
    tokenizer: str | None
    model: Mapping[str, FieldValue]

    def summary(self) -> list[str]:
        """Say what was changed, and whether the function is still the same."""
        origin = (
            f"{self.out} is {self.checkpoint} after {among(self.changes)}, a {self.family} model of digest "
            f"{self.digest[:12]}…."
        )
        if not self.function_preserved:
            return [
                origin,
                "It computes another function than its parent. Its origin is known, so you can try tests on it.",
            ]
        difference = self.logit_difference
        check = "" if difference is None else f": the logits moved by {difference:.1g} of their standard deviation"
        return [origin, f"It computes the same function as its parent{check}."]
