"""Options and argument forms that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import jax
from jax.sharding import Mesh

from bornbiased_jax import io, parallel, progress
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.config import PRESETS, ModelConfig, parse_setting, preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.keys import check_seed
from bornbiased_jax.model.layers import HIGHEST, PRECISIONS
from bornbiased_jax.parameters import check_read
from bornbiased_jax.schema import Processes, Rank, SeqLen, cut, ends, in_words, shown, whole, within
from bornbiased_jax.text import Tokenizer, tokenizer_for
from bornbiased_jax.text.cache import cache_dir

F = TypeVar("F", bound=Callable[..., Any])
MAX_SEEDS = 1_000_000


def together(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return one decorator that adds several options to a command, in this order."""

    def decorate(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


class TextType(click.types.StringParamType):
    """A text that is not empty: as a path, an empty one would stand for the folder that one is in."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text itself.

        Raises:
            click.BadParameter: it is empty.
        """
        if not str(value).strip():
            self.fail("it is empty: give a value, or leave it out", param, ctx)
        return str(super().convert(value, param, ctx))


class OutputType(TextType):
    """A file to write, or - for standard output, which /dev/stdout stands for as well."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text, or "-"."""
        text = super().convert(value, param, ctx)
        return "-" if io.descriptor_of(text) == 1 else text


class FileType(TextType):
    """A file to write; - is no name for one, as it is standard output elsewhere."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text itself.

        Raises:
            click.BadParameter: it is empty, or "-".
        """
        if str(value) == "-":
            self.fail("- is standard output, which only --json writes to: name a file", param, ctx)
        return super().convert(value, param, ctx)


TEXT = TextType()
PROMPT = click.types.StringParamType()
"""Any text: a space can be continued, and after a BOS token nothing at all."""
OUTPUT = OutputType()
FILE = FileType()


class Ranged(click.ParamType[int | float]):
    """A number of a type of :mod:`bornbiased_jax.ranges`; what lies outside is refused by option, value and range."""

    def __init__(self, kind: Any) -> None:
        number_type = ends(kind)
        assert number_type is not None
        self.kind, self.number = kind, number_type[0]
        self.name = "integer" if self.number is int else "float"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number that a text means."""
        try:
            return within(self.kind, self.number(value), "")
        except (ValueError, OverflowError) as error:  # InputError is a ValueError
            option = "" if param is None else param.opts[0]
            raise click.UsageError(f"{option} {cut(str(value))} is not {in_words(self.kind)}", ctx) from error


def parse_seeds(text: str) -> list[int]:
    """Parse seeds from "0:64" (64 is left out), "42,43" or a mixture "0:4,42".

    Raises:
        InputError: not of that form, an empty range, no seed at all, or one that is none.

    Example:
        >>> parse_seeds("0:3,42")
        [0, 1, 2, 42]
    """
    seeds: list[int] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        first, colon, last = part.partition(":")
        try:
            span = range(int(first), int(last)) if colon else range(int(first), int(first) + 1)
        except ValueError as error:
            raise InputError(f"--seeds {shown(text)} is not of the form 0:64 or 42,43") from error
        if not span:
            raise InputError(f"--seeds {shown(text)}: the range {part} is empty, its end is left out")
        if span.stop - span.start > MAX_SEEDS:  # len() has no number beyond 2^63
            raise InputError(f"--seeds {shown(text)}: more than {MAX_SEEDS} seeds in one call")
        seeds.extend(span)
    if not seeds:
        raise InputError("no seeds: give at least one, as in --seeds 0:8 or --seeds 42,43")
    return [check_seed(seed) for seed in seeds]


def note_single_seed(text: str) -> None:
    """Tell a user whose --seeds is one number how to write that many seeds."""
    number = whole(text.strip())
    if number is not None and 1 < number <= MAX_SEEDS:
        progress.note(f"--seeds {number} is the one seed {number}: for {number} seeds write --seeds 0:{number}")


def is_given(name: str) -> bool:
    """Return whether the user gave this parameter of the command under way, rather than its default holding."""
    source = click.get_current_context().get_parameter_source(name)
    return source is not None and source is not click.core.ParameterSource.DEFAULT


def parse_ids(text: str, option: str, example: str = "5,17,3") -> list[int]:
    """Parse token ids, or other integers, separated by commas.

    Raises:
        InputError: anything but integers.
    """
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"{option} {shown(text)} is not a list of integers such as {example}") from error


def parse_lengths(text: str, option: str) -> list[int]:
    """Parse lengths of sequences separated by commas, each once.

    Raises:
        InputError: anything else, or one out of range.
    """
    numbers = parse_ids(text, option, "64,256")
    for number in numbers:
        try:
            within(SeqLen, number, option)
        except InputError as error:
            raise InputError(f"{option} {shown(number)} is not {in_words(SeqLen)}") from error
    return list(dict.fromkeys(numbers))


def model_config(name: str | None, settings: Sequence[str], swept: str = "") -> ModelConfig:
    """Return the configuration of --model and --set.

    Args:
        name: the preset.
        settings: FIELD=VALUE each.
        swept: the field of --sweep, at some values of which a model may not read others.

    Raises:
        InputError: no model, an unknown one, a bad setting, or one that the model has no use for.
    """
    if name is None:
        raise InputError("no model: give --model PRESET (bornbiased models lists them)")
    cfg = preset(name, **dict(parse_setting(setting) for setting in settings))
    for setting in settings:
        check_read(cfg, *parse_setting(setting), f"--set {setting}", swept)
    return cfg


def swept_configs(
    name: str | None, settings: Sequence[str], sweep: str | None
) -> list[tuple[ModelConfig, dict[str, Any]]]:
    """Return the configurations of --model, --set and --sweep, one a value, or one without a sweep.

    Returns:
        Each with the swept field and its value, as records carry them; empty without a sweep.

    Raises:
        InputError: as :func:`model_config`; a sweep of another form, of a value twice, of one that is refused, or of a
            field that is set as well.
    """
    if sweep is None:
        return [(model_config(name, settings), {})]
    field, equals, texts = sweep.partition("=")
    values = texts.split(",")
    if not (field and equals and all(values)):
        raise InputError(f"--sweep {shown(sweep)} is not of the form field=a,b,c, as in d_model=64,128,256")
    labels = [dict([parse_setting(f"{field}={text}")]) for text in values]
    if any(label in labels[:index] for index, label in enumerate(labels)):
        raise InputError(f"--sweep {shown(sweep)} names a value twice: leave one of them out")
    for setting in settings:
        if setting.partition("=")[0] == field:
            raise InputError(
                f"--set {shown(setting)} and --sweep {shown(sweep)} set one field: leave --set {field} out"
            )
    configs = []
    for text, label in zip(values, labels, strict=True):
        setting = f"{field}={text}"
        try:
            configs.append((model_config(name, [*settings, setting], field), label))
        except InputError as error:
            raise InputError(f"--sweep {shown(setting)}: {error}") from error
    return configs


def refuse_model(name: str | None, settings: Sequence[str], sweep: str | None) -> None:
    """Refuse --model, --set and --sweep together with --checkpoint.

    Raises:
        InputError: one of them was given.
    """
    if name is not None or settings:
        raise InputError("--checkpoint and --model exclude each other: give one of them")
    if sweep is not None:
        raise InputError("--sweep changes the model of --model, and a checkpoint has its own: leave one of them out")


def note_width(name: str | None, settings: Sequence[str], sweep: str | None = None) -> None:
    """Tell a user who changes the width of a preset that its MLPs keep theirs."""
    fields = {setting.partition("=")[0] for setting in (*settings, sweep or "")}
    if name in PRESETS and "d_model" in fields and "d_ff" not in fields:
        d_ff = PRESETS[name].d_ff
        progress.note(f"d_ff stays {d_ff} while d_model changes: --set d_ff=N changes it too")


model_options = together(
    click.option("--model", "model", metavar="PRESET", help="A preset of `bornbiased models`."),
    click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="FIELD=VALUE",
        help="Change one field of the model; repeat for more.",
    ),
)
sweep_option = click.option(
    "--sweep", metavar="FIELD=A,B,C", help="Run once for each value of a field of the model; tables compare them."
)
stream_options = together(
    click.option("--stream", is_flag=True, help="Read the model block by block: for one that does not fit in memory."),
    click.option(
        "--scratch", metavar="DIR", help="Where --stream keeps hidden states; below the user's cache unless given."
    ),
)
file_option = click.option("--file", metavar="NAME", help="Which set of weights, where a folder holds several.")
roles_option = click.option("--roles", metavar="FILE", help="JSON that says what tensors with unknown names are.")
ignore_option = click.option(
    "--ignore-field",
    "ignore_fields",
    multiple=True,
    metavar="NAME",
    help="Leave out a field of config.json that is known not to change the model; repeat for more.",
)
# How float32 matrices are multiplied.
precision_option = click.option(
    "--precision",
    type=click.Choice(list(PRECISIONS)),
    default=HIGHEST,
    help="Float32 products: exact, or as three shorter products, which an H100 makes up to twice as fast.",
)
quiet_option = click.option("--quiet", is_flag=True, help="No progress display.")
# Devices, and processes that run one computation together.
process_options = together(
    click.option("--mesh", "mesh", metavar="AXIS=N,…", help="Devices by axis, as in seed=2,data=4."),
    click.option("--coordinator", metavar="HOST:PORT", help="Address of process 0."),
    click.option("--num-processes", type=Ranged(Processes), help="How many processes run this same command."),
    click.option("--process-id", type=Ranged(Rank), help="Rank of this process, from 0."),
)


def chosen_tokenizer(name: str | None, opened: Checkpoint) -> Tokenizer | None:
    """Return the tokenizer of --tokenizer, None without it; warn where the model has another one.

    Raises:
        InputError: no such tokenizer, or a corrupted one.
    """
    if name is None:
        return None
    tokenizer = tokenizer_for(name, opened.cfg.vocab_size)
    try:
        expected = opened.tokenizer
    except InputError:  # a GGUF file without one, or with one that is not read: hence the option
        expected = None
    if expected is not None and expected.digest != tokenizer.digest:
        progress.warn(
            f"{opened.reference} has a tokenizer of its own, and ids of {name} mean other tokens to it: leave "
            "--tokenizer out"
        )
    return tokenizer


def scratch_folder(stream: bool, scratch: str | None) -> Path | None:
    """Return where a streamed model keeps its hidden states; None where it is not streamed.

    Raises:
        InputError: --scratch without --stream.
    """
    if scratch is not None and not stream:
        raise InputError("--scratch is where --stream keeps hidden states: give --stream too")
    if not stream:
        return None
    return io.user_path(scratch) if scratch is not None else cache_dir() / "streamed"


def start(
    *,
    quiet: bool = False,
    mesh: str | None = None,
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    axis: str | None = None,
    dry_run: bool = False,
) -> Mesh | None:
    """Apply the common options; return the mesh, or None.

    Several processes without --mesh have one of all their devices, along ``axis``. A dry run checks the options, joins
    no other process and needs no devices.

    Raises:
        InputError: options that lack each other or cannot be, or a mesh with axes along which nothing is cut.
    """
    progress.set_quiet(quiet)
    sizes = parallel.parse_mesh(mesh)
    # Along the other axes every device would compute the same.
    if axis == "seed" and max(sizes["data"], sizes["fsdp"]) > 1:
        raise InputError(f"--mesh {mesh}: untrained models are cut by seeds alone, so name seed=N")
    if axis == "data" and sizes["seed"] > 1:
        raise InputError(f"--mesh {mesh}: one model is not cut by seeds, so name data=N or fsdp=N")
    # Join the other processes, unless in a dry run.
    several = (coordinator, num_processes, process_id)
    if any(option is not None for option in several):
        if coordinator is None or num_processes is None or process_id is None:
            raise InputError("--coordinator, --num-processes and --process-id go together: give all three")
        if dry_run:
            parallel.check_process(coordinator, num_processes, process_id)
        else:
            parallel.initialize_distributed(coordinator, num_processes, process_id)
            progress.set_quiet(quiet or process_id > 0)
            if not mesh and axis is not None:
                return parallel.build_mesh({axis: jax.device_count()})
    return parallel.build_mesh(sizes) if mesh and not dry_run else None
