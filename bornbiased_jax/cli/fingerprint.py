"""``bornbiased fingerprint`` and ``digest``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bornbiased_jax import io, parallel, progress
from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.checkpoints.by_role import read_by_role
from bornbiased_jax.checkpoints.digests import combine
from bornbiased_jax.cli import engines, options
from bornbiased_jax.cli import outputs as writing
from bornbiased_jax.cli.sections import CHECKPOINT, Command
from bornbiased_jax.errors import InputError
from bornbiased_jax.executors import DEFAULT
from bornbiased_jax.lineage import Settings, save_fingerprint
from bornbiased_jax.lineage.fingerprint_pass import fingerprint as make_fingerprint
from bornbiased_jax.lineage.fingerprint_pass import weights_digests
from bornbiased_jax.lineage.fingerprint_size import fitted, predicted_bytes
from bornbiased_jax.lineage.fingerprints import read_sign_key
from bornbiased_jax.lineage.output_fingerprint import save_outputs
from bornbiased_jax.lineage.outputs import OutputOptions
from bornbiased_jax.lineage.probe_inputs import ProbeInputs, read_outputs
from bornbiased_jax.probes.inputs import RANDOM_KINDS
from bornbiased_jax.results.lineage_reports import Digest, OutputFile, SketchFile
from bornbiased_jax.schema import BatchSize, Count, Layers, Seed, SeqLen, SketchDim, Vocabulary

STORAGES = ("float32", "bfloat16")


# Of probe inputs.
probe_options = options.together(
    options.quiet_option,
    click.option("--inputs", type=click.Choice(RANDOM_KINDS), help="Kind of probe inputs.  [default: tokens]"),
    click.option(
        "--num-inputs", type=options.Ranged(Count), metavar="N", help="Probe inputs to draw.  [default: 2000]"
    ),
    click.option(
        "--seq-len",
        type=options.Ranged(SeqLen),
        metavar="T",
        help="Length of probe inputs; the shorter context, at most 64, unless given.",
    ),
    click.option(
        "--vocab-size",
        type=options.Ranged(Vocabulary),
        help="Draw token ids below this; the smaller vocabulary unless given.",
    ),
    click.option("--input-seed", type=options.Ranged(Seed), help="Seed of the inputs.  [default: 0]"),
    click.option(
        "--batch-size", type=options.Ranged(BatchSize), help="Sequences in a batch; chosen by size unless given."
    ),
)


def refuse_vocabulary(inputs: str | None, vocab_size: int | None) -> None:
    """Refuse a vocabulary of inputs that are no tokens.

    Raises:
        InputError: both were given.
    """
    if inputs == "gaussian" and vocab_size is not None:
        raise InputError("--vocab-size is of token ids, and gaussian inputs are vectors: leave it out")


class NeuronsType(click.ParamType[int | str]):
    """A number of neurons, or "all"."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number that a text means; "all" stays."""
        return value if value == "all" else options.Ranged(Count).convert(value, param, ctx)


@click.command("fingerprint", cls=Command)
@click.argument("checkpoint", metavar="C", help=CHECKPOINT)
@click.option("--out", type=options.FILE, required=True, metavar="FILE", help="Where to store it.")
@click.option(
    "--neurons", type=NeuronsType(), metavar="N|all", help="Neurons of each MLP that are stored.  [default: 1024]"
)
@click.option("--dim", type=options.Ranged(SketchDim), help="Numbers in each sketched vector.  [default: 16]")
@click.option("--max-bytes", type=options.Ranged(Count), help="Store fewer neurons, so that the file fits.")
@click.option(
    "--sign-key", metavar="HEX", help="Key of the hash that signs come from, drawn after both models are fixed."
)
@click.option(
    "--token-labels",
    type=click.Choice(["strings", "ids"]),
    help="Match tokens by their strings, if there is a tokenizer, or by their numbers.  [default: strings]",
)
@options.file_option
@options.roles_option
@options.ignore_option
@click.option("--outputs", is_flag=True, help="Store the model's last outputs on probe inputs instead.")
@click.option(
    "--layer", type=options.Ranged(Layers), help="Read after this block (1 to L) instead of after the final norm."
)
@click.option(
    "--storage",
    type=click.Choice(STORAGES),
    default=STORAGES[0],
    help="Of weights in memory: bfloat16 takes half, and is exact where the file is bfloat16. Products are float32.",
)
@probe_options
@options.process_options
@engines.store_options("Sequences in one chunk of the store; chosen from the sizes of model and inputs unless given.")
@options.stream_options
@writing.result_options
def fingerprint(
    checkpoint: str,
    out: str,
    outputs: bool,
    json_file: str | None,
    quiet: bool,
    **arguments: Any,
) -> None:
    """Store a model's fingerprint: sketches and digests of its weights, from one read.

    With --outputs it holds the model's last outputs on probe inputs.

    \b
    Example:
      bornbiased fingerprint path/to/model --out model.fingerprint
      bornbiased fingerprint path/to/mixture --out mixture.fingerprint \\
        --max-bytes 20000000
      bornbiased fingerprint path/to/model --out all.fingerprint --neurons all \\
        --dim 64
      bornbiased fingerprint seed:42@llama-tiny --outputs --num-inputs 2000 \\
        --seq-len 64 --out initial.outputs
    """
    # Options of the other kind of fingerprint are refused by name.
    for name in arguments:
        if options.is_given(name) and name not in _OF_BOTH and (name in _OF_WEIGHTS) == outputs:
            flag = f"--{name.replace('_', '-')}"
            remedy = f"leave out --outputs, or {flag}" if outputs else f"add --outputs, or leave out {flag}"
            kind = "weights" if outputs else "outputs on probe inputs"
            raise InputError(f"{flag} is for fingerprints of {kind}: {remedy}")
    if outputs:
        settings = {name: value for name, value in arguments.items() if name not in _OF_WEIGHTS or name in _OF_BOTH}
        _store_outputs(checkpoint, Path(out), json_file, quiet=quiet, **settings)
        return
    options.start(quiet=quiet)
    io.check_writable(Path(out))
    _store_sketches(checkpoint, Path(out), json_file, {name: arguments[name] for name in _OF_WEIGHTS})


_OF_WEIGHTS = ("neurons", "dim", "max_bytes", "sign_key", "token_labels", "roles", "file", "ignore_fields")
_OF_BOTH = ("file", "ignore_fields")


def _store_sketches(checkpoint: str, out: Path, json_file: str | None, choices: dict[str, Any]) -> None:
    """Read the weights once, and write their fingerprint."""
    default = Settings()
    neurons = {None: default.neurons, "all": None}.get(choices["neurons"], choices["neurons"])
    settings = Settings(
        dim=choices["dim"] or default.dim,
        neurons=neurons,
        sign_key=read_sign_key(choices["sign_key"] or ""),
        token_labels=choices["token_labels"] or default.token_labels,
    )
    # The size is known before the weights are read.
    roles_file = None if choices["roles"] is None else Path(choices["roles"])
    opening = {name: choices[name] for name in _OF_BOTH}
    source = read_by_role(checkpoint, roles_file=roles_file, **opening)
    if choices["max_bytes"] is not None:
        settings = fitted(source, settings, choices["max_bytes"])
    progress.note(f"about {predicted_bytes(source, settings):,} bytes will be stored")
    with progress.bar(len(source.roles), f"fingerprint {checkpoint}", unit="tensors") as advance:
        stored = make_fingerprint(source, settings, advance=advance)
    save_fingerprint(out, stored)
    num_bytes = out.stat().st_size if out.is_file() else None
    writing.OutputFiles(json_file).show(SketchFile(str(out), checkpoint, stored, settings, num_bytes))


def _store_outputs(
    checkpoint: str,
    out: Path,
    json_file: str | None,
    *,
    layer: int | None,
    storage: str,
    stream: bool,
    scratch: str | None,
    quiet: bool,
    **arguments: Any,
) -> None:
    """Run the model on the probe inputs, and write its last outputs."""
    # Check the options before any work.
    refuse_vocabulary(arguments["inputs"], arguments["vocab_size"])
    is_local = arguments["engine"] == DEFAULT
    store_settings = engines.store_settings(arguments)
    shared = {name: arguments.pop(name) for name in ("mesh", "coordinator", "num_processes", "process_id")}
    mesh = options.start(quiet=quiet, **shared, axis="data")
    io.check_writable(out)
    place = options.scratch_folder(stream, scratch)
    if place is not None and (mesh is not None or store_settings.get("resume") is not None):
        raise InputError("--stream keeps what it has by itself, on one device: leave out --resume and --mesh")
    if place is not None and options.is_given("storage"):
        raise InputError("--stream holds two blocks at a time, as float32: leave --storage out")
    dtype = {} if storage == STORAGES[0] else {"dtype": storage}
    opening = {name: arguments.pop(name) for name in _OF_BOTH}
    if not is_local and any(opening.values()):
        raise InputError(
            "--file and --ignore-field say how this process opens the model, and others open it by its name alone: "
            "leave --engine out"
        )
    opened = open_checkpoint(checkpoint, scratch=place, sharding=parallel.shardings(mesh), **opening, **dtype)
    outputs = read_outputs(
        opened, ProbeInputs(**arguments).fitted(opened.config), OutputOptions(layer=layer, mesh=mesh), **store_settings
    )
    save_outputs(out, outputs)
    opened.close()
    file_digest = io.sha256(out) if out.is_file() else None
    result = OutputFile(str(out), checkpoint, outputs, opened.config.to_dict(), file_digest)
    writing.OutputFiles(json_file).show(result)


@click.command("digest", cls=Command)
@click.argument("checkpoint", metavar="C", help=CHECKPOINT)
@options.file_option
@options.roles_option
@options.ignore_option
@writing.result_options
def digest(
    checkpoint: str, file: str | None, roles: str | None, ignore_fields: tuple[str, ...], json_file: str | None
) -> None:
    """Print the digest of a model's weights: a commitment to them and to the order of their coordinates and units.

    It is the same for the same numbers in the same places, whatever the file format, and changes when one number does
    or when coordinates or hidden units are permuted. Published where dates can be proved, it fixes the base of a
    later `bornbiased seedprint BASE SUSPECT --base-digest HEX`.

    \b
    Example:
      bornbiased digest runs/a@seed=42,step=0
      bornbiased digest seed:42@llama-tiny --json digest.json
    """
    roles_file = None if roles is None else Path(roles)
    source = read_by_role(checkpoint, file=file, roles_file=roles_file, ignore_fields=ignore_fields)
    tensors = dict(weights_digests(source).parameters)
    config = None if source.config is None else source.config.to_dict()
    combined = combine(tensors)
    # The digest alone on standard output: --base-digest "$(bornbiased digest C)".
    result = Digest(combined, source.description, config, tensors)
    writing.OutputFiles(json_file).show(result, line=combined, is_piped=True)
