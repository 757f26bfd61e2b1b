"""``bornbiased fingerprint`` and ``bornbiased seedprint``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bornbiased_jax.cli import engines, options
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.lineage_tests import TESTS
from bornbiased_jax.ranges import Batch, Count, Layers, Level, Seed, SeqLen, SketchDim, Vocabulary
from bornbiased_jax.schema import shown

if TYPE_CHECKING:
    from bornbiased_jax.lineage.trace import Side

F = TypeVar("F", bound=Callable[..., Any])
STORAGES = ("float32", "bfloat16")
# What the choices leave open is settled by the models (bornbiased_jax.lineage.trace.Probe).
_READING = ("files", "roles", "ignore_fields")
_PROBE = ("inputs", "num_inputs", "seq_len", "input_seed", "vocab_size", "batch_size")


def _probe_options(function: F) -> F:
    for option in (
        click.option(
            "--batch-size", type=options.Ranged(Batch), help="Sequences in a batch; chosen by size unless given."
        ),
        click.option("--input-seed", type=options.Ranged(Seed), help="Seed of the inputs.  [default: 0]"),
        click.option(
            "--vocab-size",
            type=options.Ranged(Vocabulary),
            help="Draw token ids below this; the smaller vocabulary unless given.",
        ),
        click.option(
            "--seq-len", type=options.Ranged(SeqLen), metavar="T", help="The shorter context, 64 at most, unless given."
        ),
        click.option("--num-inputs", type=options.Ranged(Count), metavar="N", help="How many.  [default: 2000]"),
        click.option("--inputs", type=click.Choice(options.RANDOM_INPUTS), help="[default: tokens]"),
        click.option("--quiet", is_flag=True, help="No progress display."),
    ):
        function = option(function)
    return function


def _tests() -> str:
    """Describe each test for the help."""
    return "; ".join(f"{name}: {test.description}" for name, test in TESTS.items())


class _Neurons(click.ParamType):
    """A number of neurons, or "all"."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number that a text means; "all" stays."""
        return value if value == "all" else options.Ranged(Count).convert(value, param, ctx)


@click.command("fingerprint")
@click.argument("checkpoint", metavar="C")
@click.option("--out", required=True, metavar="FILE", help="Where to store it.")
@click.option(
    "--neurons", type=_Neurons(), metavar="N|all", help="Neurons of each MLP that are stored.  [default: 1024]"
)
@click.option("--dim", type=options.Ranged(SketchDim), help="Numbers in each sketched vector.  [default: 16]")
@click.option("--max-bytes", type=options.Ranged(Count), help="Store fewer neurons, so that the file fits.")
@click.option(
    "--sign-key", metavar="HEX", help="Key of the hash that signs come from, drawn after both models are fixed."
)
@click.option(
    "--token-labels",
    type=click.Choice(["strings", "ids"]),
    help="What names a token: its string, where a tokenizer is there, or its number.  [default: strings]",
)
@options.source_options
@options.ignore_option
@click.option("--outputs", is_flag=True, help="Store the model's last outputs on probe inputs instead.")
@click.option(
    "--layer", type=options.Ranged(Layers), help="Read after this block (1 to L) instead of after the final norm."
)
@click.option(
    "--storage",
    type=click.Choice(STORAGES),
    default=STORAGES[0],
    show_default=True,
    help="Of weights in memory: bfloat16 takes half, and is exact where the file is bfloat16. Products are float32.",
)
@_probe_options
@options.process_options
@engines.store_options("Sequences in one chunk of the store; by the sizes of model and inputs unless given.")
@options.stream_options
@options.result_options
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
      bornbiased fingerprint path/to/mixture --out mixture.fingerprint --max-bytes 20000000
      bornbiased fingerprint path/to/model --out all.fingerprint --neurons all --dim 64
      bornbiased fingerprint seed:42@llama-tiny --outputs --num-inputs 2000 --seq-len 64 --out birth.outputs
    """
    from bornbiased_jax import io

    options.prepare_json(json_file)
    # Options of the other kind of fingerprint are refused by name.
    for name in arguments:
        if options.given(name) and name not in _OF_BOTH and (name in _OF_WEIGHTS) == outputs:
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
    from bornbiased_jax import progress
    from bornbiased_jax.checkpoints.naming import open_role_source
    from bornbiased_jax.lineage import Settings, payload_digest, save_fingerprint
    from bornbiased_jax.lineage import fingerprint as make_fingerprint
    from bornbiased_jax.lineage.fingerprint_size import fitted, predicted_bytes
    from bornbiased_jax.results import sentences

    default = Settings()
    neurons = {None: default.neurons, "all": None}.get(choices["neurons"], choices["neurons"])
    settings = Settings(
        dim=choices["dim"] or default.dim,
        neurons=neurons,
        sign_key=_sign_key(choices["sign_key"]),
        token_labels=choices["token_labels"] or default.token_labels,
    )
    # The size is known before the weights are read.
    roles_file = None if choices["roles"] is None else Path(choices["roles"])
    opening = {name: choices[name] for name in _OF_BOTH}
    source = open_role_source(checkpoint, roles_file=roles_file, **opening)
    if choices["max_bytes"] is not None:
        settings = fitted(source, settings, choices["max_bytes"])
    progress.note(f"about {predicted_bytes(source, settings):,} bytes will be stored")
    with progress.bar(len(source.roles), f"fingerprint {checkpoint}", unit="tensors") as advance:
        made = make_fingerprint(source, settings, advance=advance)
    save_fingerprint(out, made)
    language = made.components.get("language")
    facts = {
        "out": str(out),
        "checkpoint": checkpoint,
        "source": made.source.description,
        "digest": payload_digest(made),
        "bytes": out.stat().st_size if out.is_file() else None,
        "weights_digest": made.weights_digest,
        "tokenizer_digest": made.tokenizer_digest,
        "dim": settings.dim,
        "neurons": settings.neurons,
        "sign_key": settings.sign_key.hex(),
        "token_labels": None if language is None else language.token_labels,
        "components": list(made.components),
        "num_tensors": len(made.tensors),
        "unread": list(made.source.unread),
        "repeats": [
            {
                "component": repeats.component,
                "labels": repeats.labels,
                "num_labels": repeats.num_labels,
                "num_equal": repeats.num_equal,
                "z_by_period": {str(parts): z for parts, z in repeats.z_by_period.items()},
            }
            for repeats in made.repeats
        ],
    }
    options.write_result(json_file, facts)
    size = facts["bytes"] if facts["bytes"] is not None else "a fingerprint of"
    click.echo(f"{out}: {size:,} bytes of {len(made.tensors)} tensors of {checkpoint}", err=json_file == "-")
    options.tell(sentences.fingerprint_of_weights(facts), to_stderr=json_file == "-")


def _sign_key(text: str | None) -> bytes:
    """Parse a key of signs.

    Raises:
        InputError: it is not hexadecimal, or too long.
    """
    try:
        key = bytes.fromhex(text or "")
    except ValueError as error:
        raise InputError(
            f"--sign-key {shown(text)} is not hexadecimal: give an even number of digits 0-9, a-f"
        ) from error
    if len(key) > 64:
        raise InputError(f"--sign-key has {len(key)} bytes, more than the 64 of the hash's key: give a shorter one")
    return key


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
    from bornbiased_jax import io, parallel
    from bornbiased_jax.lineage import trace
    from bornbiased_jax.lineage.output_fingerprint import save_outputs
    from bornbiased_jax.results import sentences

    # Check the options before any work.
    store_settings = engines.store_settings(arguments)
    shared = {name: arguments.pop(name) for name in ("mesh", "coordinator", "num_processes", "process_id")}
    mesh = options.start(quiet=quiet, **shared, axis="data")
    io.check_writable(out)
    place = options.scratch_folder(stream, scratch)
    if place is not None and (mesh is not None or store_settings.get("resume") is not None):
        raise InputError("--stream keeps what it has by itself, on one device: leave out --resume and --mesh")
    if place is not None and options.given("storage"):
        raise InputError("--stream holds two blocks at a time, as float32: leave --storage out")
    held = {} if storage == STORAGES[0] else {"dtype": storage}
    chosen = {name: arguments.pop(name) for name in ("file", "ignore_fields")}
    side = trace.Side(options.open_model(checkpoint, place, sharding=parallel.shardings(mesh), **chosen, **held))
    outputs = trace.read_outputs(
        side, trace.Probe(**arguments).fitted(side.cfg), layer=layer, mesh=mesh, **store_settings
    )
    save_outputs(out, outputs)
    side.close()
    num_outputs, width = outputs.outputs_ND.shape
    facts = {
        "out": str(out),
        "checkpoint": checkpoint,
        "source": outputs.source,
        "num_outputs": num_outputs,
        "width": width,
    }
    about = {
        "layer": outputs.layer,
        "storage": outputs.storage,
        "inputs": outputs.inputs,
        "weights_digest": outputs.weights_digest,
    }
    # Of the file, so that it can be published: the same model and inputs give the same bytes.
    about["weights_digest"] = outputs.weights_digest
    about["digest"] = io.sha256(out) if out.is_file() else None
    options.write_result(json_file, facts | about)
    click.echo(f"{out}: {num_outputs:,} outputs of width {width} of {outputs.source}", err=json_file == "-")
    options.tell(sentences.fingerprint_of_outputs(facts), to_stderr=json_file == "-")


@click.command("seedprint")
@click.argument("base", metavar="BASE")
@click.argument("suspect", metavar="SUSPECT")
@click.option(
    "--test",
    type=click.Choice(list(TESTS)),
    help=f"{_tests()}.  [default: auto, and permutation with a stored fingerprint]",
)
@click.option(
    "--alpha", type=options.Ranged(Level), help="Level of the decision; that of the test unless given (0.01 or 1e-4)."
)
@click.option(
    "--num-permutations", type=options.Ranged(Count), help="Relabellings drawn; enough for alpha unless given."
)
@click.option(
    "--labels",
    type=click.Choice(["coordinates", "units", "heads"]),
    help="For weights: what is permuted; units are neurons.  [default: coordinates]",
)
@click.option(
    "--sign-key", metavar="HEX", help="Key of the sketches' signs; by default the digests of both models decide it."
)
@click.option(
    "--neurons", type=_Neurons(), metavar="N|all", help="Of each MLP, where checkpoints are compared.  [default: 4096]"
)
@click.option(
    "--signs",
    type=click.Choice(["kept", "free"]),
    help="For the permutation test: free is blind to negated coordinates, and weaker.  [default: kept]",
)
@click.option(
    "--base-digest",
    metavar="HEX",
    help="The digest under which the base was published beforehand (bornbiased digest); another base is refused.",
)
@click.option("--num-references", type=options.Ranged(Count), help="Fresh seeds, for population.  [default: 200]")
@click.option(
    "--baselines", is_flag=True, help="Also published scores of the weights: Intrinsic, PCS, ICS, phi_U, AWM."
)
@click.option(
    "--file",
    "files",
    multiple=True,
    metavar="NAME",
    help="Which set of weights, in each folder that holds it; given twice, the base's and the suspect's.",
)
@options.roles_option
@options.ignore_option
@_probe_options
@options.stream_options
@click.option("--page", metavar="FILE", help="Draw the verdict as one HTML page here: where it shows, and its null.")
@options.result_options
def seedprint(
    base: str,
    suspect: str,
    baselines: bool,
    stream: bool,
    scratch: str | None,
    page: str | None,
    json_file: str | None,
    quiet: bool,
    **arguments: Any,
) -> None:
    """Were two models born from the same seed? Checkpoints or stored fingerprints.

    The verdict is "same-lineage", "unrelated" or "undefined"; exit code 0 for each of them. Inputs are needed by tests
    of outputs alone; with --num-inputs or --seq-len given the permutation test of outputs joins auto. Tests of weights
    read both models tensor by tensor, those of outputs do so with --stream.

    \b
    Example:
      bornbiased seedprint seed:42@llama-tiny seed:43@llama-tiny
      bornbiased seedprint birth.fingerprint runs/a@seed=42,step=1000 --json verdict.json
      bornbiased seedprint model suspect --base-digest $(cat digest-published-in-2024)
    """
    from bornbiased_jax import io
    from bornbiased_jax.lineage import trace
    from bornbiased_jax.lineage.baselines import weight_scores
    from bornbiased_jax.results import Lineage

    options.prepare_json(json_file)
    if page is not None:
        io.check_writable(page)
    options.start(quiet=quiet)
    place = options.scratch_folder(stream, scratch)
    sides = _sides((base, suspect), place, **{name: arguments.pop(name) for name in _READING})
    # Other methods need both models in memory.
    if baselines:
        if stream:
            raise InputError("--baselines takes both models into memory, --stream neither: leave one of them out")
        if any(side.stored is not None for side in sides):
            raise InputError("--baselines compares weights: name two checkpoints, not stored fingerprints")
    # The test, and the verdict as JSON and page.
    probe = trace.Probe(**{name: arguments.pop(name) for name in _PROBE})
    verdict = trace.trace(*sides, probe=probe, **arguments)
    scores = weight_scores(*(side.checkpoint for side in sides)) if baselines else None
    result = Lineage(base, suspect, verdict, scores)
    options.write_result(json_file, result.to_json())
    if page is not None:
        from bornbiased_jax.report.lineage_page import draw_verdict

        command = options.command_line("page", "json_file", "quiet")
        io.write_text(page, draw_verdict(result.to_json(), command=command))
    click.echo(result.text(), err=json_file == "-")


def _sides(
    refs: tuple[str, str],
    scratch: Path | None,
    *,
    files: tuple[str, ...],
    roles: str | None,
    ignore_fields: tuple[str, ...],
) -> list[Side]:
    """Return both models with what was chosen for the folders among them.

    Raises:
        InputError: a file or a field that neither folder has.
    """
    from bornbiased_jax.lineage.trace import Side

    if not (files or roles or ignore_fields):
        first = Side(refs[0], scratch)
        return [first, first if refs[0] == refs[1] else Side(refs[1], scratch)]
    folders = [_folder(ref) for ref in refs]
    if len(files) > len(refs):
        raise InputError(f"--file was given {len(files)} times: once, or for the base and for the suspect")
    # One name is chosen wherever it is there, two are the base's and the suspect's.
    chosen: list[str | None] = list(files)
    if len(files) < len(refs):
        chosen = [next((name for name in files if folder and (folder / name).is_file()), None) for folder in folders]
        if files and not any(chosen):
            raise InputError(f"neither {refs[0]} nor {refs[1]} holds {files[0]}: choose a file of their weights")
    ignored = [tuple(name for name in ignore_fields if name in _fields(folder)) for folder in folders]
    for name in ignore_fields:
        if not any(name in names for names in ignored):
            raise InputError(
                f"neither {refs[0]} nor {refs[1]} has a field {shown(name)}: leave it out of the fields to ignore"
            )
    roles_file = None if roles is None else Path(roles)
    sides = [
        Side(ref, scratch, file, None if folder is None else roles_file, names)
        for ref, folder, file, names in zip(refs, folders, chosen, ignored, strict=True)
    ]
    return [sides[0], sides[0]] if refs[0] == refs[1] and chosen[0] == chosen[1] else sides


def _folder(ref: str) -> Path | None:
    """Return the folder of weights that a reference names, fetched from the hub if need be; None of anything else."""
    from bornbiased_jax.checkpoints.reference import parse_ref
    from bornbiased_jax.lineage.trace import Side

    side = Side(ref)
    if side.sketches is not None or side.stored is not None:
        return None
    reference = parse_ref(ref).fetched()
    return reference.path if reference.kind == "huggingface" else None


def _fields(folder: Path | None) -> dict[str, Any]:
    from bornbiased_jax import io

    place = None if folder is None else folder / "config.json"
    content = io.read_json(place) if place is not None and place.is_file() else {}
    return content if isinstance(content, dict) else {}
