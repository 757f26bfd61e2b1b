"""Results of the commands about runs, checkpoints and this machine: each holds the object that ``--json`` writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from bornbiased_jax.config import FieldValue
from bornbiased_jax.progress import duration
from bornbiased_jax.results.result import Listing, RecordResult, Result, listing
from bornbiased_jax.results.wording import among, count, explain, percent, rounded, size


class Runs(RecordResult):
    """The runs in a folder."""

    def summary(self) -> list[str]:
        """Say how many runs there are, and how many are finished."""
        value = self.record
        finished = sum(run["finished"] for run in value["runs"])
        open_runs = len(value["runs"]) - finished
        rest = "each resumes when its command is given again" if open_runs else "none is left to resume"
        return [
            f"{count(len(value['runs']), 'run')}, {finished} finished and {open_runs} not: {rest}.",
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
            for run in self.record["runs"]
        ]
        columns = ["run", "model", "data", "seeds", "step", "last loss", "tokens", "checkpoints"]
        return [Listing("Runs", columns, rows)]


@dataclasses.dataclass(frozen=True, repr=False)
class Curves(Result):
    """An image of a run's curves.

    Attributes:
        run: its folder.
        image: the file.
    """

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
    """A checkpoint as a Hugging Face directory.

    Attributes:
        checkpoint: the reference to it.
        directory: where it was written.
        family: of the model, in the names of transformers.
        digest: of its weights.
        tokenizer: the name of the one that was written; None without one.
        model: the configuration, all fields.
    """

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
    """A LoRA adapter in PEFT's layout.

    Attributes:
        checkpoint: the reference to the run that trained it.
        directory: where it was written.
        base: the model that it goes on.
    """

    checkpoint: str
    directory: str
    base: str

    def summary(self) -> list[str]:
        """Say what was written."""
        return [
            f"{self.directory} holds the LoRA adapter of {self.base} alone, in PEFT's layout.",
            "PEFT opens it with the base; `bornbiased derive --change lora:DIR` merges it.",
        ]


class Evaluation(RecordResult):
    """Perplexity and bits per byte of a text."""

    def summary(self) -> list[str]:
        """Say what the perplexity means, over how much text, and whether that was training text."""
        value = self.record
        perplexity = value["perplexity"]
        choices = "more than any float can count" if perplexity is None else rounded(perplexity)
        sentences = [
            f"Perplexity {choices}: at each token the model is as undecided as among {choices} equally likely ones, at "
            f"a context of {value['context']:,} tokens.",
            f"That is a mean over {value['num_tokens']:,} predicted tokens of "
            f"{count(value['num_sequences'], 'sequence')}.",
        ]
        if value["training_text"] is None and value.get("step"):
            sentences.append("Whether the run was trained on this text is not known.")
        if value["training_text"] and value.get("step", 1):
            sentences.append("The run was trained on this text: the number does not say how well it predicts new text.")
        return sentences

    def tables(self) -> list[Listing]:
        """List each quantity with its unit."""
        units = {"loss": "nats per token", "bits_per_byte": "bits", "context": "tokens"}
        rows = [
            [f"{name} ({units[name]})" if name in units else name, value]
            for name, value in self.record.items()
            if value is not None and name != "model"
        ]
        return [Listing("Evaluation", ["quantity", "value"], rows, explain("perplexity", "bits per byte"))]


@dataclasses.dataclass(frozen=True, repr=False)
class Generation(RecordResult):
    """A continued prompt.

    Attributes:
        seed: of the draws; None where each token is the likeliest.
    """

    seed: int | None = None

    def summary(self) -> list[str]:
        """Say how many tokens there are, and whether they are the likeliest or drawn."""
        tokens = count(len(self.record["ids"]), "token")
        if self.seed is not None:
            return [
                f"{tokens} with the prompt, each drawn by its probability after those before it.",
                f"The same model, prompt and seed ({self.seed}) give the same continuation, other seeds others.",
            ]
        return [
            f"{tokens} with the prompt, each the likeliest after those before it.",
            "The same model and prompt give the same continuation: nothing is drawn.",
        ]


class Parity(RecordResult):
    """Logits compared with those of transformers."""

    def summary(self) -> list[str]:
        """Say how far the logits lie apart, as a fraction of their standard deviation."""
        value = self.record
        if "reason" in value:
            return [f"Undefined: {value['reason']}."]
        largest, std = value["max_abs_error"], value["logit_std"]
        return [
            f"Over {value['num_tokens']:,} positions the logits differ from those of transformers "
            f"{value['transformers']} by {largest:.2g} at most, {largest / std:.1g} of their standard deviation.",
            f"{percent(value['top1_agreement'])} of the predicted tokens are the same; rounding in another order moves "
            "logits by far less than their own size, a wrong architecture does not.",
        ]

    def tables(self) -> list[Listing]:
        """List each quantity."""
        rows = [list(item) for item in self.record.items() if item[0] != "model"]
        return [Listing("Parity with transformers", ["quantity", "value"], rows)]


class Reproduction(RecordResult):
    """Experiments, run or listed."""

    def summary(self) -> list[str]:
        """Give the leading result, and say how many there are."""
        value = self.record
        if "experiments" in value:
            return [
                f"{count(len(value['experiments']), 'experiment')} at scale {value['scale']}, each with what it costs.",
                "`bornbiased reproduce NAME` runs one; what was run before is kept.",
            ]
        num_done, num_failed = len(value["done"]), len(value["failed"])
        num_results = num_done + len(value["kept"])
        without = f"; {count(num_failed, 'other')} {'has' if num_failed == 1 else 'have'} none" if num_failed else ""
        return [
            *list(value.get("headlines", {}).values())[:1],
            f"{count(num_results, 'experiment')} {'has' if num_results == 1 else 'have'} a result, {num_done} of them "
            f"made now{without}.",
            f"{value['page']} shows each next to what was printed and what theory says.",
        ]

    def tables(self) -> list[Listing]:
        """List the experiments and their cost, where that was the question."""
        if "experiments" not in self.record:
            return []
        columns = {name: name for name in ("name", "paper", "title")} | {"cost": f"cost ({self.record['scale']})"}
        return [listing("Experiments", columns, self.record["experiments"])]


class StoreStatus(RecordResult):
    """Progress of the chunks of a store."""

    def summary(self) -> list[str]:
        """Say how many chunks of a store are done, and how to compute the rest."""
        value = self.record
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
        pages = self.record["pages"]
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


class Diagnosis(RecordResult):
    """Versions, devices and extras of an installation."""

    def summary(self) -> list[str]:
        """Say whether anything is wrong, and which extras lack something."""
        value = self.record
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
        value, cache = self.record, self.record["cache"]
        libraries = {name: version or "missing" for name, version in value["libraries"].items()}
        versions = {"bornbiased": value["version"], "Python": value["python"], **libraries}
        machine = [
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


def _sizes(settings: Mapping[str, Any]) -> str:
    """Describe the sizes among the settings of a page, for a reader."""
    model, inputs = settings.get("subject", {}).get("model", {}), settings.get("inputs", {})
    parts = [f"{model[name]} {name}" for name in ("num_layers", "d_model") if name in model]
    return ", ".join(parts + [f"{name} {inputs[name]}" for name in ("seq_len", "num_inputs") if name in inputs])
