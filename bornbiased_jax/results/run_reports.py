"""Results of the commands about runs, checkpoints, experiments, stores and this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from bornbiased_jax.chunk_store import TaskSettings
from bornbiased_jax.config import FieldValue
from bornbiased_jax.doctor import Installation
from bornbiased_jax.evaluation.parity import LogitComparison
from bornbiased_jax.evaluation.perplexity import CheckpointScores
from bornbiased_jax.progress import duration
from bornbiased_jax.results.result import Listing, Report, Result
from bornbiased_jax.results.wording import among, count, explain, percent, rounded, size
from bornbiased_jax.store import Status
from bornbiased_jax.training.runs import RunDescription

Difference = tuple[str, object, object]
"""Of a record and the committed one: the place of a value, the committed and the new one."""


@dataclasses.dataclass(frozen=True, repr=False)
class Runs(Result):
    """The runs in a folder."""

    runs: Sequence[RunDescription]

    def summary(self) -> list[str]:
        """Say how many runs there are, and how many are finished."""
        finished = sum(run["finished"] for run in self.runs)
        open_runs = len(self.runs) - finished
        rest = "each resumes when its command is given again" if open_runs else "none is left to resume"
        return [
            f"{count(len(self.runs), 'run')}, {finished} finished and {open_runs} not: {rest}.",
            "A run opens as PATH@seed=N,step=N wherever a checkpoint is asked for; losses are nats a token of training "
            "text.",
        ]

    def tables(self) -> list[Listing]:
        """List a row for each run."""
        rows = [
            [
                run["path"],
                run["preset"] or run["model"],
                run["data"],
                ",".join(map(str, run["seeds"])),
                f"{run['step']} of {run['steps']}",
                None if run["loss"] is None else ", ".join(f"{loss:.3f}" for loss in run["loss"]),
                f"{run['tokens']:,}",
                ", ".join(map(str, run["checkpoints"])),
            ]
            for run in self.runs
        ]
        columns = ["run", "model", "data", "seeds", "step", "last loss", "tokens", "checkpoints"]
        return [Listing("Runs", columns, rows)]


@dataclasses.dataclass(frozen=True, repr=False)
class Curves(Result):
    """An image of a run's curves."""

    run: str
    image: str

    def summary(self) -> list[str]:
        """Say what the image shows."""
        return [
            f"{self.image} shows loss, learning rate, gradient norm and speed of {self.run} by step.",
            "The loss is that of training text, each seed a curve; seeds that see the same data rise and fall "
            "together.",
        ]


@dataclasses.dataclass(frozen=True, repr=False)
class Export(Result):
    """A checkpoint as a Hugging Face directory, with the tokenizer of that name."""

    checkpoint: str
    directory: str
    family: str
    digest: str
    tokenizer: str | None
    model: Mapping[str, FieldValue]

    def summary(self) -> list[str]:
        """Say what was written."""
        return [
            f"{self.directory} is {self.checkpoint} as a {self.family} model that transformers opens, "
            f"{'with its tokenizer' if self.tokenizer else 'without a tokenizer'}.",
            f"Its weights are the same numbers: digest {self.digest[:12]}…",
        ]


@dataclasses.dataclass(frozen=True, repr=False)
class AdapterExport(Result):
    """A LoRA adapter in PEFT's layout, without the model that it belongs to."""

    checkpoint: str
    directory: str
    base: str

    def summary(self) -> list[str]:
        """Say what was written."""
        return [
            f"{self.directory} holds the LoRA adapter of {self.base} alone, in PEFT's layout.",
            "PEFT opens it with the base; `bornbiased derive --change lora:DIR` merges it.",
        ]


class Evaluation(Report[CheckpointScores]):
    """Perplexity and bits per byte of a text."""

    def summary(self) -> list[str]:
        """Say what the perplexity means, over how much text, and whether that was training text."""
        scores, perplexity = self.report, self.report["perplexity"]
        choices = "more than any float can count" if perplexity is None else rounded(perplexity)
        sentences = [
            f"Perplexity {choices}: at each token the model is as undecided as among {choices} equally likely ones, at "
            f"a context of {scores['context']:,} tokens.",
            f"That is a mean over {scores['num_tokens']:,} predicted tokens of "
            f"{count(scores['num_sequences'], 'sequence')}.",
        ]
        if scores["training_text"] is None and scores.get("step"):
            sentences.append("Whether the run was trained on this text is not known.")
        if scores["training_text"] and scores.get("step", 1):
            sentences.append("The run was trained on this text: the number does not say how well it predicts new text.")
        return sentences

    def tables(self) -> list[Listing]:
        """List each quantity with its unit."""
        units = {"loss": "nats per token", "bits_per_byte": "bits", "context": "tokens"}
        rows = [
            [f"{name} ({units[name]})" if name in units else name, value]
            for name, value in self.report.items()
            if value is not None
        ]
        return [Listing("Evaluation", ["quantity", "value"], rows, explain("perplexity", "bits per byte"))]


@dataclasses.dataclass(frozen=True, repr=False)
class Generation(Result):
    """A continued prompt.

    Attributes:
        ids: of the prompt and what continues it.
        text: of these ids; "" without a tokenizer.
        model: the configuration, all fields.
        seed: of the draws; None where each token is the likeliest.
    """

    ids: Sequence[int]
    text: str
    model: Mapping[str, FieldValue]
    seed: int | None

    def to_json(self) -> dict[str, object]:
        """Return what the command writes with --json."""
        return {"ids": self.ids, "text": self.text, "model": self.model}

    def summary(self) -> list[str]:
        """Say how many tokens there are, and whether they are the likeliest or drawn."""
        tokens = count(len(self.ids), "token")
        if self.seed is not None:
            return [
                f"{tokens} with the prompt, each drawn by its probability after those before it.",
                f"The same model, prompt and seed ({self.seed}) give the same continuation, other seeds others.",
            ]
        return [
            f"{tokens} with the prompt, each the likeliest after those before it.",
            "The same model and prompt give the same continuation: nothing is drawn.",
        ]


class Parity(Report[LogitComparison]):
    """Logits compared with those of transformers."""

    def summary(self) -> list[str]:
        """Say how far the logits lie apart, as a fraction of their standard deviation."""
        value = self.report
        if "reason" in value:
            return [f"Undefined: {value['reason']}."]
        largest, std, agreement = value["max_abs_error"], value["logit_std"], value["top1_agreement"]
        assert largest is not None and std is not None and agreement is not None
        return [
            f"Over {value['num_tokens']:,} positions the logits differ from those of transformers "
            f"{value['transformers']} by {largest:.2g} at most, {largest / std:.1g} of their standard deviation.",
            f"{percent(agreement)} of the predicted tokens are the same; rounding in another order moves "
            "logits by far less than their own size, a wrong architecture does not.",
        ]

    def tables(self) -> list[Listing]:
        """List each quantity."""
        rows: list[list[object]] = [list(item) for item in self.report.items()]
        return [Listing("Parity with transformers", ["quantity", "value"], rows)]


@dataclasses.dataclass(frozen=True)
class ListedExperiment:
    """An experiment in a list: its name, its place in the papers, what it shows, and its cost at a scale."""

    name: str
    paper: str
    title: str
    cost: str


@dataclasses.dataclass(frozen=True, repr=False)
class ExperimentList(Result):
    """Experiments with their cost at one scale."""

    scale: str
    experiments: Sequence[ListedExperiment]

    def summary(self) -> list[str]:
        """Say how many experiments there are, and how to run one."""
        return [
            f"{count(len(self.experiments), 'experiment')} at scale {self.scale}, each with what it costs.",
            "`bornbiased reproduce NAME` runs one; what was run before is kept.",
        ]

    def tables(self) -> list[Listing]:
        """List the experiments and their cost."""
        rows = [[row.name, row.paper, row.title, row.cost] for row in self.experiments]
        return [Listing("Experiments", ["name", "paper", "title", f"cost ({self.scale})"], rows)]


@dataclasses.dataclass(frozen=True, repr=False)
class Reproduction(Result):
    """Experiments that were run.

    Attributes:
        scale: of all of them.
        out: the folder of their records.
        page: the path of their page.
        completed, reused: names that ran now, and whose record was there already.
        failed: name -> why it has no result.
        headlines: name -> the sentence at the top of its part of the page.
        moved: name -> what differs from its committed record, None without one; None unless compared.
    """

    scale: str
    out: str
    page: str
    completed: Sequence[str]
    reused: Sequence[str]
    failed: Mapping[str, str]
    headlines: Mapping[str, str]
    moved: Mapping[str, Sequence[Difference] | None] | None

    def to_json(self) -> dict[str, object]:
        """Return what the command writes with --json."""
        names = {"completed": "done", "reused": "kept"}
        value = {names.get(name, name): cell for name, cell in super().to_json().items()}
        if self.moved is None:
            del value["moved"]
        return value

    def summary(self) -> list[str]:
        """Give the leading result, and say how many there are."""
        num_completed, num_failed = len(self.completed), len(self.failed)
        num_results = num_completed + len(self.reused)
        without = f"; {count(num_failed, 'other')} {'has' if num_failed == 1 else 'have'} none" if num_failed else ""
        return [
            *list(self.headlines.values())[:1],
            f"{count(num_results, 'experiment')} {'has' if num_results == 1 else 'have'} a result, {num_completed} of "
            f"them made now{without}.",
            f"{self.page} shows each next to what was printed and what theory says.",
        ]


class StoreStatus(Report[Status]):
    """Progress of the chunks of a store."""

    def summary(self) -> list[str]:
        """Say how many chunks of a store are done, and how to compute the rest."""
        value = self.report
        chunks, pages = count(value["asked"], "chunk"), count(len(value["pages"]), "page")
        remedy = "Nothing is left to compute."
        if value["failed"]:
            remedy = (
                f"{value['failed']:,} failed, for the reasons above; the command that asked for them tries them again."
            )
        elif value["done"] < value["asked"]:
            remedy = "The command that asked for the others resumes when it is run again."
        verb = "is" if value["asked"] == 1 else "are"
        return [f"{value['done']:,} of {chunks} {verb} done, in {pages} of {value['folder']}.", remedy]

    def tables(self) -> list[Listing]:
        """List a row for each page of the store, and below it what failed."""
        pages = self.report["pages"]
        rows = [
            [
                page["page"].rpartition("/")[2],
                f"{page['done']:,} of {page['asked']:,}",
                str(page["failed"]),
                None if page["per_minute"] is None else f"{page['per_minute']:.3g}",
                _time(page["seconds_left"]),
                _time(page.get("seconds_since_last")),
                _sizes(page["settings"]) + ("" if page["same_code"] else " (made by other code)"),
            ]
            for page in pages
        ]
        columns = ["page", "chunks", "failed", "chunks/min", "left", "last one ago", "what"]
        failures = [f"{chunk}: {reason}" for page in pages for chunk, reason in page["failures"].items()]
        return [Listing("Chunks done of those asked for", columns, rows, "\n".join(failures))]


class Diagnosis(Report[Installation]):
    """Versions, devices and extras of an installation."""

    def summary(self) -> list[str]:
        """Say whether anything is wrong, and which extras lack something."""
        value = self.report
        incomplete = [name for name, extra in value["extras"].items() if not extra["installed"]]
        problems = value["problems"]
        state = "Nothing is wrong here" if not problems else f"{count(len(problems), 'thing')} to fix, named above"
        backend = f"JAX computes on {value['backend']}" if value["backend"] else "JAX has no device to compute on"
        extras = "What every extra needs is installed."
        if incomplete:
            extras = (
                f"Not complete: {among(incomplete)}; `pip install 'bornbiased-jax[{incomplete[0]}]'` adds the first."
            )
        return [f"{state}; {backend}, with {count(value['cores'], 'core')}.", extras]

    def tables(self) -> list[Listing]:
        """List versions, the machine, and what each extra lacks."""
        value, cache = self.report, self.report["cache"]
        libraries = {name: version or "missing" for name, version in value["libraries"].items()}
        versions = {"bornbiased": value["version"], "Python": value["python"], **libraries}
        machine: list[list[object]] = [
            ["device", f"{row['kind']} ({row['platform']}, {size(row['memory_bytes'])})"] for row in value["devices"]
        ]
        machine += [["cores", value["cores"]], ["memory to be had", size(value["memory_bytes"])]]
        machine += [["cache", f"{cache['folder']}: {size(cache['bytes'])} in {count(cache['files'], 'file')}"]]
        extras = [
            [name, extra["for"], "complete" if extra["installed"] else f"missing: {', '.join(extra['missing'])}"]
            for name, extra in value["extras"].items()
        ]
        return [
            Listing("Versions", ["what", "version"], list(map(list, versions.items())), is_text=True),
            Listing("This machine", ["what", "found"], machine, is_text=True),
            Listing("Extras", ["extra", "needed for", "here"], extras, "\n".join(value["problems"]), is_text=True),
        ]


def _time(seconds: float | None) -> str:
    return "–" if seconds is None else duration(seconds)


def _sizes(settings: TaskSettings) -> str:
    """Describe the sizes among the settings of a page, for a reader."""
    model, inputs = settings.get("subject", {}).get("model", {}), settings.get("inputs", {})
    parts = [f"{model[name]} {name}" for name in ("num_layers", "d_model") if name in model]
    return ", ".join(parts + [f"{name} {inputs[name]}" for name in ("seq_len", "num_inputs") if name in inputs])
