"""``bornbiased plan``."""

from __future__ import annotations

from typing import Any

import click

from bornbiased_jax.cli import options
from bornbiased_jax.cli.catalogue import COMMANDS, LazyGroup
from bornbiased_jax.errors import InputError
from bornbiased_jax.schema import shown

# bornbiased_jax.hardware.ACCELERATORS, named here because --help does not wait for it; a test holds them together.
ACCELERATORS = ("a100-40gb", "a100", "h100", "h200", "b200", "l4", "rtx4090", "tpu-v4", "tpu-v5e", "tpu-v5p")


@click.command("plan", context_settings={"ignore_unknown_options": True})
@click.option(
    "--on",
    type=click.Choice(ACCELERATORS),
    help="Rates and memory of this device, by its data sheet, instead of those measured here.",
)
@click.argument("planned", metavar="COMMAND ARGS…", nargs=-1, required=True, type=click.UNPROCESSED)
@options.result_options
def plan(planned: tuple[str, ...], on: str | None, json_file: str | None) -> None:
    """What does a command need, in devices, memory and hours? Nothing is run, and of a checkpoint only its
    configuration is read.

    The command stands as it would be typed; --on and --json are those of plan wherever they stand.
    A birth serves as a shape: seed:0@llama-nano,num_layers=80,d_model=8192, and so on; so does a folder with a
    config.json alone.

    \b
    Example:
      bornbiased plan probe preference --model gpt2-nano --seeds 0:10000 --seq-len 64 --num-inputs 2000
      bornbiased plan --on h100 fingerprint seed:0@llama-nano,num_layers=32,d_model=4096,num_heads=32,d_ff=11008 --out a
    """
    options.prepare_json(json_file)
    request = parsed(planned, on)
    from bornbiased_jax import hardware
    from bornbiased_jax.plan import estimate, needs_of, rates

    needs = needs_of(request)
    if on is not None and not needs.host_only:
        found = estimate(needs, rates.assumed(needs, on), on=on)
        found["assumed"] = {"fraction_of_peak": hardware.ASSUMED_FRACTION[needs.dtype], "dtype": needs.dtype}
    else:
        measured = rates.measure(needs)
        held = {"process_bytes": measured.process_bytes, "passes_take": measured.passes_take}
        found = estimate(needs, measured.rates, on=on, **held)
        found["measured_at"] = measured.widths
    found = {"command": list(planned), **found}
    options.write_result(json_file, found)
    to_stderr = json_file == "-"
    options.print_table("Memory and time", ["what", "memory", "time"], _rows(found), to_stderr=to_stderr)
    options.tell(found, to_stderr=to_stderr)


def _rows(found: dict[str, Any]) -> list[list[str]]:
    from bornbiased_jax.progress import duration
    from bornbiased_jax.words.phrases import size

    process = [["the process itself", size(found["process_bytes"]), ""]] if found["process_bytes"] else []
    memory = [[row["part"], size(row["bytes"]), ""] for row in found["memory"]]
    times = [[row["part"], "", duration(row["seconds"])] for row in found["times"]]
    host = [["on the host", size(found["host_memory_bytes"]), ""]] if found["host_memory_bytes"] else []
    return [
        *process,
        *memory,
        *times,
        *host,
        ["in all, on each device", size(found["memory_bytes"]), duration(found["seconds"])],
    ]


def parsed(words: tuple[str, ...], on: str | None) -> Any:
    """The planned command's arguments, refused where the command itself would refuse them.

    Args:
        words: the command line, without the program's name.
        on: the accelerator in question; None for this machine.

    Returns:
        A :class:`bornbiased_jax.plan.commands.Planned`.

    Raises:
        InputError: no such command, or one that cannot be planned.
        click.UsageError: as the command's own parser.
    """
    from bornbiased_jax.plan.commands import PLANNED, Planned

    name, rest = words[0], list(words[1:])
    if name not in COMMANDS:
        raise InputError(f"no command {shown(name)} to plan: plan {', '.join(PLANNED)}")
    # As of the command by itself, so that what is refused names its own help.
    root = click.Context(click.Group(), info_name="bornbiased")
    command = LazyGroup().get_command(root, name)
    assert command is not None
    context = command.make_context(name, rest, parent=root)
    if isinstance(command, click.Group):
        below, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        context = command.make_context(below, rest, parent=context)
        name = f"{name} {below}"
    if name not in PLANNED:
        raise InputError(f"{name} cannot be planned, its needs hang on what it reads: plan {', '.join(PLANNED)}")
    with context:
        return Planned(name, context.params, on=on, **_settled(name, context.params))


def _settled(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """What the command makes of its arguments before it begins."""
    from bornbiased_jax import parallel

    parallel.parse_mesh(arguments.get("mesh"))
    settled: dict[str, Any] = {}
    if name == "pretrain":
        from bornbiased_jax.cli.pretrain import settings_of

        return {"pretraining": settings_of(arguments)}
    if name.startswith("probe"):
        settled["seeds"] = options.parse_seeds(arguments["seeds"])
        settled["lengths"] = options.parse_lengths(arguments["seq_len"], "--seq-len")
        if arguments["checkpoint"] and (arguments["model"] or arguments["settings"]):
            raise InputError("--checkpoint and --model exclude each other: give one of them")
        if not arguments["checkpoint"]:
            settled["cfg"] = options.model_config(arguments["model"], arguments["settings"])
    elif name in ("fingerprint", "seedprint"):
        options.scratch_folder(arguments["stream"], arguments["scratch"])
    return settled
