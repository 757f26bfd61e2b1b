"""``bornbiased pretrain``, ``runs``, ``plot`` and ``export``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

import click

from bornbiased_jax import schema
from bornbiased_jax.checkpoints import export_hugging_face, open_checkpoint
from bornbiased_jax.checkpoints.export import check_folder
from bornbiased_jax.cli import dry_run, options, outputs
from bornbiased_jax.cli.sections import Command
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.derive.peft import export_adapter
from bornbiased_jax.errors import InputError
from bornbiased_jax.results import Training
from bornbiased_jax.results.run_reports import AdapterExport, Curves, Export, Runs
from bornbiased_jax.training import PretrainConfig, TrainingSummary, from_schedule, list_runs, open_initial, plot_run
from bornbiased_jax.training import pretrain as train
from bornbiased_jax.training.config import Optimizer, Schedule
from bornbiased_jax.training.initial import drawn_as

# What shells report of a command that SIGTERM ended: a run that was stopped is not done.
TERMINATED = 143

RECIPES = ["tiny", "paper", "seedprint"]
SHAPES = list(get_args(Schedule))

# Options that override a recipe's number, when given: name on the command line -> type, help.
OVERRIDES: dict[str, tuple[Any, str]] = {
    "steps": (options.Ranged(schema.Steps), "Number of updates; with the recipe seedprint one epoch unless given."),
    "schedule-steps": (
        options.Ranged(schema.Steps),
        "Plan the learning rate for this many steps; a later call may continue up to them.  [default: steps]",
    ),
    "batch-size": (options.Ranged(schema.BatchSize), "Sequences per step."),
    "accumulation": (
        options.Ranged(schema.BatchSize),
        "Micro-batches of a batch, which go through the model one after the other.",
    ),
    "context": (options.Ranged(schema.SeqLen), "Predicted tokens in a sequence."),
    "schedule": (
        click.Choice(SHAPES),
        "How the learning rate falls after the warm-up: as half a cosine, linearly, not at all, or linearly in "
        "the last fifth (wsd).",
    ),
    "optimizer": (click.Choice(get_args(Optimizer)), "Muon is for the matrices of blocks, AdamW for the rest."),
    "learning-rate": (options.Ranged(schema.LearningRate), "Peak learning rate, after the warm-up."),
    "min-learning-rate": (options.Ranged(schema.LearningRateOrNone), "At the schedule's end, unless it is constant."),
    "warmup": (options.Ranged(schema.StepsOrNone), "Steps of linear warm-up."),
    "weight-decay": (options.Ranged(schema.LearningRateOrNone), "Decoupled, on matrices only."),
    "clip": (options.Ranged(schema.Clip), "Largest norm of the gradient."),
    "beta1": (options.Ranged(schema.Decay), "AdamW's decay of the mean gradient."),
    "beta2": (options.Ranged(schema.Decay), "AdamW's decay of the mean squared gradient."),
    "epsilon": (options.Ranged(schema.LearningRate), "AdamW's epsilon."),
    "dtype": (click.Choice(["float32", "bfloat16"]), "Type to compute in; weights and optimizer stay float32."),
    "tokenizer": (str, "bytes, bpe, bpe:4096 or a file; else that of given weights, or the bpe of the model's size."),
    "validation-fraction": (options.Ranged(schema.HeldOut), "Fraction of the documents held out."),
    "init-from": (str, "Begin with these weights: a checkpoint, or a run that has all the seeds."),
    "checkpoint-every": (
        options.Ranged(schema.Steps),
        "Steps between two checkpoints; the first and the last are always kept.",
    ),
    "keep-latest": (options.Ranged(schema.Steps), "How many of the regular checkpoints to keep."),
    "eval-every": (options.Ranged(schema.Steps), "Steps between two held-out losses; the last step always has one."),
    "eval-sequences": (options.Ranged(schema.Count), "Sequences of the held-out loss."),
    "log-every": (options.Ranged(schema.Steps), "Steps between two lines of metrics.jsonl."),
    "seeds-mode": (click.Choice(["auto", "vmap", "map"]), "Seeds at once, or one after the other in one program."),
    "processes": (options.Ranged(schema.Processes), "Threads that tokenize."),
    "token-cache": (str, "Folder of tokenized data; the user's cache unless given."),
}


def run_options(*left_out: str) -> Callable[[Any], Any]:
    """Return the options of every kind of training: flags, and those of ``OVERRIDES``, but for some."""
    return options.together(
        click.option("--checkpoint-log-spaced", is_flag=True, help="Also keep steps 1, 2, 4, 8, …"),
        click.option("--remat", is_flag=True, help="Recompute activations in the backward pass to save memory."),
        click.option("--no-tensorboard", is_flag=True, help="Write no event files for TensorBoard."),
        click.option("--metrics-csv", is_flag=True, help="Also write metrics.csv, a column for each seed's numbers."),
        click.option(
            "--wandb", is_flag=True, help="Also log to Weights & Biases, offline unless WANDB_MODE says otherwise."
        ),
        *(
            click.option(f"--{name}", type=kind, default=None, help=text)
            for name, (kind, text) in OVERRIDES.items()
            if name not in left_out
        ),
    )


def run_fields(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a run that its options give; overrides that were not typed are left out.

    Raises:
        InputError: two that contradict each other.
    """
    if arguments["schedule"] == "constant" and arguments["min_learning_rate"] is not None:
        raise InputError("--min-learning-rate is where a rate ends, and --schedule constant keeps it: leave one out")
    names = ["data", "out", "data_seed", "checkpoint_log_spaced", "remat", "wandb", "quiet"]
    names += [option.replace("-", "_") for option in OVERRIDES]
    fields = {name: arguments[name] for name in names if arguments.get(name) is not None}
    return {**fields, "tensorboard": not arguments["no_tensorboard"], "csv": arguments["metrics_csv"]}


def finish(summary: TrainingSummary, model: ModelConfig, json_file: str | None, prefix: str = "") -> int:
    """Print how far a run of a model came, as JSON too where requested; return the exit code."""
    reached = f"{summary['out']}: {prefix}step {summary['step']} of {summary['steps']}"
    if summary["loss"] is not None:
        pairs = zip(summary["seeds"], summary["loss"], strict=True)
        reached += ", loss " + ", ".join(f"seed {seed}: {loss:.4f}" for seed, loss in pairs) + " nats per token"
    outputs.OutputFiles(json_file).show(Training(summary, model=model.to_dict()), line=reached)
    if not summary["finished"]:
        click.echo("stopped before its end: the same command resumes there", err=True)
        return TERMINATED
    return 0


def settings_of(arguments: Mapping[str, Any]) -> PretrainConfig:
    """Return the run that the arguments of ``pretrain`` describe.

    Raises:
        InputError: a value out of range, or two that contradict each other.
    """
    # The names of recipes were those of --schedule once, and still do there.
    schedule = arguments["schedule"]
    if schedule in RECIPES and options.is_given("recipe") and schedule != arguments["recipe"]:
        raise InputError(f"--recipe {arguments['recipe']} and --schedule {schedule} are two recipes: give one of them")
    recipe = schedule if schedule in RECIPES else arguments["recipe"]
    return from_schedule(
        recipe,
        model=options.model_config(arguments["model"], arguments["settings"]),
        seeds=tuple(options.parse_seeds(arguments["seeds"])),
        mesh=arguments["mesh"],
        **run_fields({**arguments, "schedule": schedule if schedule in SHAPES else None}),
    )


@click.command("pretrain", cls=Command)
@options.model_options
@click.option(
    "--data", required=True, metavar="DATA", help="A file, a directory, builtin:prose, builtin:code or hf:NAME."
)
@click.option("--out", required=True, metavar="DIR", help="The run's folder; the same command again resumes it.")
@click.option("--seeds", default="42", help="Trained at once on the same data: 42,123 or 0:4.")
@click.option("--data-seed", type=options.Ranged(schema.Seed), default=0, help="Seed of the order of the data.")
@click.option(
    "--recipe",
    type=click.Choice(RECIPES),
    default="tiny",
    help="Values of options without a default here: minutes on two cores, Appendix B.4, or SeedPrint's toy schedule.",
)
@click.option(
    "--schedule",
    type=click.Choice([*SHAPES, *RECIPES]),
    metavar=f"[{'|'.join(SHAPES)}]",
    help=f"{OVERRIDES['schedule'][1]} A recipe's name chooses that recipe.",
)
@run_options("schedule")
@dry_run.dry_run_option
@outputs.result_options
@options.quiet_option
@options.process_options
def pretrain(json_file: str | None, **arguments: Any) -> int:
    """Train one seed or many at once, with Orbax checkpoints; run again to resume.

    \b
    Example:
      bornbiased pretrain --model llama-tiny --data builtin:prose --steps 200 \\
        --seeds 42,123 --out runs/a
      bornbiased pretrain --model llama-tiny --data builtin:prose --steps 200 \\
        --out runs/b --json summary.json
    """
    options.model_config(arguments["model"], arguments["settings"])
    options.note_width(arguments["model"], arguments["settings"])
    seed_list = options.parse_seeds(arguments["seeds"])
    # Before a device is touched: the mesh is of all processes, and the run builds it.
    processes = ("quiet", "coordinator", "num_processes", "process_id", "dry_run")
    options.start(**{name: arguments[name] for name in processes})
    config = settings_of(arguments)
    if arguments["dry_run"]:
        dry_run.report(*dry_run.pretrain_requirements(config), json_file)
        return 0
    initial, tokenizer = open_initial(config.init_from, seed_list) if config.init_from is not None else (None, None)
    model, config = config.model, drawn_as(config, initial)
    schemes = [setting for setting in arguments["settings"] if setting.startswith("init")]
    if schemes and model != config.model:
        raise InputError(f"--set {schemes[0]} draws no weights where --init-from gives them: leave it out")
    return finish(train(config, initial, tokenizer), config.model, json_file)


@click.command("runs", cls=Command)
@click.argument("directory", metavar="DIR", help="A folder that holds runs.")
@outputs.result_options
def runs(directory: str, json_file: str | None) -> None:
    """List the runs in a folder: what they are, how far they are, which checkpoints they have.

    \b
    Example:
      bornbiased runs runs
    """
    outputs.OutputFiles(json_file).show(Runs(list_runs(directory)))


@click.command("plot", cls=Command)
@click.argument("directory", metavar="DIR", help="A run's folder.")
@click.option(
    "--out", metavar="FILE", help="The image (.png, .svg, .pdf); curves.png in the run's folder if not given."
)
@outputs.result_options
def plot(directory: str, out: str | None, json_file: str | None) -> None:
    """Draw a run's loss, learning rate, gradient norm and speed.

    \b
    Example:
      bornbiased plot runs/a --out curves.svg
    """
    image = str(plot_run(directory, out))
    outputs.OutputFiles(json_file).show(Curves(directory, image), line=image, is_piped=True)


@click.command("export", cls=Command)
@click.argument("checkpoint", metavar="RUN@seed=…,step=…", help="Which seed of a run, at which step.")
@click.argument("directory", metavar="DIR", help="A new or empty folder, or one of an earlier export.")
@click.option("--peft", is_flag=True, help="Of a run that trained LoRA: the adapter alone, in PEFT's layout.")
@click.option("--overwrite", is_flag=True, help="Replace a model in DIR that no export wrote, or that was changed.")
@outputs.result_options
def export(checkpoint: str, directory: str, peft: bool, overwrite: bool, json_file: str | None) -> None:
    """Write a checkpoint as a Hugging Face directory that transformers opens; LoRA is merged in.

    \b
    Example:
      bornbiased export runs/a@seed=42,step=200 exported/a
      bornbiased export runs/lora exported/adapter --peft
    """
    if peft:
        base = export_adapter(checkpoint, directory, overwrite=overwrite)
        outputs.OutputFiles(json_file).show(AdapterExport(checkpoint, directory, base))
        return
    check_folder(directory, checkpoint, overwrite=overwrite)
    opened = open_checkpoint(checkpoint)
    context = opened.info.get("context")
    family = export_hugging_face(
        opened.cfg, opened.params(), directory, tokenizer=opened.tokenizer, context=context, overwrite=overwrite
    )
    tokenizer = None if opened.tokenizer is None else opened.tokenizer.name
    exported = Export(checkpoint, directory, family, opened.digest(), tokenizer, opened.cfg.to_dict())
    outputs.OutputFiles(json_file).show(exported)
