"""``bornbiased pretrain``, ``runs``, ``plot`` and ``export``."""

from __future__ import annotations

from typing import Any

import click

from bornbiased_jax.cli import options

# Options that override a schedule's number, when given: name on the command line -> type.
OVERRIDES: dict[str, Any] = {
    "steps": int,
    "batch-size": int,
    "accumulation": int,
    "context": int,
    "learning-rate": float,
    "min-learning-rate": float,
    "warmup": int,
    "weight-decay": float,
    "clip": float,
    "dtype": click.Choice(["float32", "bfloat16"]),
    "tokenizer": str,
    "validation-fraction": float,
    "init-from": str,
    "checkpoint-every": int,
    "keep-latest": int,
    "eval-every": int,
    "eval-sequences": int,
    "log-every": int,
    "seeds-mode": click.Choice(["auto", "vmap", "map"]),
    "processes": int,
    "token-cache": str,
}


def _overrides(function: Any) -> Any:
    for name, kind in reversed(OVERRIDES.items()):
        function = click.option(f"--{name}", type=kind, default=None)(function)
    return function


@click.command("pretrain")
@options.model_options
@click.option(
    "--data", required=True, metavar="DATA", help="A file, a directory, builtin:prose, builtin:code or hf:NAME."
)
@click.option("--out", required=True, metavar="DIR", help="The run's folder; the same command again resumes it.")
@click.option("--seeds", default="42", show_default=True, help="Trained at once on the same data: 42,123 or 0:4.")
@click.option("--data-seed", type=int, default=0, show_default=True, help="Seed of the order of the data.")
@click.option(
    "--schedule",
    type=click.Choice(["tiny", "paper", "seedprint"]),
    default="tiny",
    show_default=True,
    help="Numbers to start from: minutes on two cores, Appendix B.4, or SeedPrint's toy schedule.",
)
@click.option("--checkpoint-log-spaced", is_flag=True, help="Also keep steps 1, 2, 4, 8, …")
@click.option("--remat", is_flag=True, help="Recompute activations in the backward pass to save memory.")
@_overrides
@options.common_options
def pretrain(
    model: str | None,
    settings: tuple[str, ...],
    data: str,
    out: str,
    seeds: str,
    data_seed: int,
    schedule: str,
    checkpoint_log_spaced: bool,
    remat: bool,
    quiet: bool,
    mesh: str | None,
    coordinator: str | None,
    num_processes: int | None,
    process_id: int | None,
    **overrides: Any,
) -> None:
    """Train one seed or many at once, with Orbax checkpoints; run again to resume.

    \b
    Example:
      bornbiased pretrain --model llama-tiny --data builtin:prose --steps 200 --seeds 42,123 --out runs/a
    """
    cfg = options.model_config(model, settings)
    seed_list = options.parse_seeds(seeds)
    options.start(quiet=quiet, coordinator=coordinator, num_processes=num_processes, process_id=process_id)
    from bornbiased_jax.pretrain import from_schedule
    from bornbiased_jax.pretrain import pretrain as train

    changes = {name: value for name, value in overrides.items() if value is not None}
    config = from_schedule(
        schedule,
        model=cfg,
        data=data,
        out=out,
        seeds=tuple(seed_list),
        data_seed=data_seed,
        checkpoint_log_spaced=checkpoint_log_spaced,
        remat=remat,
        mesh=mesh,
        quiet=quiet,
        **changes,
    )
    initial = None
    if config.init_from is not None:
        from bornbiased_jax.checkpoints import open_checkpoint

        opened = open_checkpoint(config.init_from)
        initial = [(opened.cfg, opened.params)] * len(seed_list)
    summary = train(config, initial)
    losses = ", ".join(f"seed {seed}: {loss:.4f}" for seed, loss in zip(seed_list, summary["loss"], strict=True))
    click.echo(f"{summary['out']}: step {summary['step']} of {summary['steps']}, loss {losses}")


@click.command("runs")
@click.argument("directory", metavar="DIR")
@options.json_option
def runs(directory: str, json_file: str | None) -> None:
    """List the runs in a folder: what they are, how far they are, which checkpoints they have.

    \b
    Example:
      bornbiased runs runs
    """
    from bornbiased_jax.pretrain import list_runs

    options.prepare_json(json_file)
    found = list_runs(directory)
    options.write_result(json_file, {"runs": found})
    rows = [
        [
            run["path"],
            run["model"],
            run["data"],
            ",".join(map(str, run["seeds"])),
            f"{run['step']} of {run['steps']}",
            ", ".join(map(str, run["checkpoints"])),
        ]
        for run in found
    ]
    columns = ["run", "model", "data", "seeds", "step", "checkpoints"]
    options.print_table("Runs", columns, rows, to_stderr=json_file == "-")


@click.command("plot")
@click.argument("directory", metavar="DIR")
@click.option(
    "--out", metavar="FILE", help="The image (.png, .svg, .pdf); curves.png in the run's folder if not given."
)
def plot(directory: str, out: str | None) -> None:
    """Draw a run's loss, learning rate, gradient norm and speed.

    \b
    Example:
      bornbiased plot runs/a
    """
    from bornbiased_jax.pretrain import plot_run

    click.echo(str(plot_run(directory, out)))


@click.command("export")
@click.argument("checkpoint", metavar="RUN@seed=…,step=…")
@click.argument("directory", metavar="DIR")
def export(checkpoint: str, directory: str) -> None:
    """Write a checkpoint as a Hugging Face directory that transformers opens.

    \b
    Example:
      bornbiased export runs/a@seed=42,step=200 exported/a
    """
    from bornbiased_jax.checkpoints import export_hugging_face, open_checkpoint

    opened = open_checkpoint(checkpoint)
    family = export_hugging_face(opened.cfg, opened.params, directory, tokenizer=opened.tokenizer)
    click.echo(f"{directory}: {family}")
