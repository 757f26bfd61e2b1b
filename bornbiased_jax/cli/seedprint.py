"""``bornbiased seedprint``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bornbiased_jax import io
from bornbiased_jax.checkpoints.reference import parse_ref
from bornbiased_jax.cli import options, outputs
from bornbiased_jax.cli.fingerprint import NeuronsType, probe_options, refuse_vocabulary
from bornbiased_jax.cli.sections import Command
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import trace
from bornbiased_jax.lineage.baselines import weight_scores
from bornbiased_jax.lineage.compared_model import ComparedModel
from bornbiased_jax.lineage.lineage_tests import TESTS
from bornbiased_jax.lineage.probe_inputs import ProbeInputs
from bornbiased_jax.results import Lineage, verdicts, verdicts_by_step
from bornbiased_jax.results.model_facts import facts_listing
from bornbiased_jax.schema import Count, Level, shown

# What the choices leave open is settled by the models (bornbiased_jax.lineage.probe_inputs).
_READING = ("files", "roles", "ignore_fields")
_PROBE = ("inputs", "num_inputs", "seq_len", "input_seed", "vocab_size", "batch_size")
_DESCRIPTIONS = "; ".join(f"{name}: {test.description}" for name, test in TESTS.items())


@click.command("seedprint", cls=Command)
@click.argument("base", metavar="BASE", help="The model that came first: a checkpoint, or a stored fingerprint.")
@click.argument(
    "suspect", metavar="SUSPECT", help="The model that may descend from it: a checkpoint, or a stored fingerprint."
)
@click.option(
    "--test",
    type=click.Choice(list(TESTS)),
    help=f"{_DESCRIPTIONS}.  [default: auto, and permutation with a stored fingerprint of outputs]",
)
@click.option(
    "--alpha", type=options.Ranged(Level), help="Level of the decision; that of the test unless given (0.01 or 1e-4)."
)
@click.option(
    "--num-permutations", type=options.Ranged(Count), help="Relabelings drawn; enough for alpha unless given."
)
@click.option(
    "--labels",
    type=click.Choice(["coordinates", "units", "heads"]),
    help="For --test weights: what is permuted; units are neurons.  [default: coordinates]",
)
@click.option(
    "--sign-key", metavar="HEX", help="Key of the sketches' signs; by default the digests of both models decide it."
)
@click.option(
    "--neurons",
    type=NeuronsType(),
    metavar="N|all",
    help="Neurons of each MLP that are compared, of two checkpoints.  [default: 4096, and all to be matched]",
)
@click.option(
    "--signs",
    type=click.Choice(["kept", "free"]),
    help="For --test permutation: free ignores signs of coordinates, and is weaker.  [default: kept]",
)
@click.option(
    "--base-digest",
    metavar="HEX",
    help="The digest under which the base was published beforehand (bornbiased digest); another base is refused.",
)
@click.option(
    "--num-references", type=options.Ranged(Count), help="For --test population: fresh seeds.  [default: 200]"
)
@click.option(
    "--baselines", is_flag=True, help="Also compute published scores of the weights: Intrinsic, PCS, ICS, phi_U, AWM."
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
@probe_options
@options.stream_options
@click.option(
    "--by-step",
    is_flag=True,
    help="If the base is a pretraining run: also give the verdict at each of its checkpoints.",
)
@outputs.output_options
def seedprint(
    base: str,
    suspect: str,
    baselines: bool,
    stream: bool,
    scratch: str | None,
    by_step: bool,
    quiet: bool,
    **arguments: Any,
) -> None:
    """Do two models share an initialization? Checkpoints or stored fingerprints.

    The verdict is "same-lineage", "unrelated" or "undefined"; exit code 0 for each of them. Inputs are needed by tests
    of outputs alone; with --num-inputs or --seq-len given the permutation test of outputs joins auto. Tests of weights
    read both models tensor by tensor, those of outputs do so with --stream.

    \b
    Example:
      bornbiased seedprint seed:42@llama-tiny seed:43@llama-tiny
      bornbiased seedprint base.fingerprint runs/a@seed=42,step=1000 \\
        --json verdict.json
      bornbiased seedprint model suspect \\
        --base-digest $(cat digest-published-in-2024)
      bornbiased seedprint runs/a@seed=42 suspect --by-step --figures steps
    """
    places = outputs.OutputFiles.take(arguments)
    # Inputs are of tests that run the models.
    needless = next((name for name in _PROBE if arguments[name] is not None), None)
    if arguments["test"] == "weights" and needless is not None:
        flag = f"--{needless.replace('_', '-')}"
        raise InputError(f"{flag} is of inputs, and --test weights computes no outputs: leave it out")
    refuse_vocabulary(arguments["inputs"], arguments["vocab_size"])
    options.start(quiet=quiet)
    if by_step:
        # Refuse what is no run before anything is read.
        verdicts_by_step.run_steps(base)
    place = options.scratch_folder(stream, scratch)
    pair = _models((base, suspect), place, **{name: arguments.pop(name) for name in _READING})
    # Other methods need both models in memory.
    if baselines:
        if stream:
            raise InputError("--baselines takes both models into memory, --stream neither: leave one of them out")
        if any(model.stored_outputs is not None for model in pair):
            raise InputError("--baselines compares weights: name two checkpoints, not stored fingerprints")
    # The test, and the verdict of each step.
    probe = ProbeInputs(**{name: arguments.pop(name) for name in _PROBE})
    verdict = trace.trace(*pair, probe=probe, **arguments)
    scores = weight_scores(*(model.checkpoint for model in pair)) if baselines else None
    steps = None
    if by_step:
        arguments["base_digest"] = None
        steps = verdicts_by_step.by_step(base, pair[1], probe=probe, **arguments)
    sheet = None if places.page is None else verdicts.sheet_of(*pair)
    models = verdicts.models_of(*pair)
    facts = None if places.page is None else facts_listing(pair[0], pair[1], models, verdict.to_json())
    result = Lineage(base, suspect, verdict, scores, models, steps, sheet, facts)
    paths = places.write(result, f"{base} and {suspect}")
    to_stderr = places.json_file == "-"
    click.echo(result.text(), err=to_stderr)
    outputs.print_tables(result.step_tables(), to_stderr=to_stderr)
    for path in paths:
        click.echo(str(path), err=to_stderr)


def _models(
    refs: tuple[str, str],
    scratch: Path | None,
    *,
    files: tuple[str, ...],
    roles: str | None,
    ignore_fields: tuple[str, ...],
) -> list[ComparedModel]:
    """Return both models with what was chosen for the folders among them.

    Raises:
        InputError: a file or a field that neither folder has.
    """
    if not (files or roles or ignore_fields):
        first = ComparedModel(refs[0], scratch)
        return [first, first if refs[0] == refs[1] else ComparedModel(refs[1], scratch)]
    folders = [_folder(ref) for ref in refs]
    if len(files) > len(refs):
        raise InputError(f"--file was given {len(files)} times: once, or for the base and for the suspect")
    # One name is chosen wherever it is there, two are the base's and the suspect's.
    choices: list[str | None] = list(files)
    if len(files) < len(refs):
        choices = [next((name for name in files if folder and (folder / name).is_file()), None) for folder in folders]
        if files and not any(choices):
            raise InputError(f"neither {refs[0]} nor {refs[1]} holds {files[0]}: choose a file of their weights")
    ignored = [tuple(name for name in ignore_fields if name in _fields(folder)) for folder in folders]
    for name in ignore_fields:
        if not any(name in names for names in ignored):
            raise InputError(
                f"neither {refs[0]} nor {refs[1]} has a field {shown(name)}: leave it out of the fields to ignore"
            )
    if roles is not None and not any(folders):
        raise InputError(f"neither {refs[0]} nor {refs[1]} is a folder of weights, which --roles is for: leave it out")
    roles_file = None if roles is None else Path(roles)
    pair = [
        ComparedModel(ref, scratch, file, None if folder is None else roles_file, names)
        for ref, folder, file, names in zip(refs, folders, choices, ignored, strict=True)
    ]
    return [pair[0], pair[0]] if refs[0] == refs[1] and choices[0] == choices[1] else pair


def _folder(ref: str) -> Path | None:
    """Return the folder of weights that a reference names, fetched from the hub if need be; None of anything else."""
    if ComparedModel(ref).stored is not None:
        return None
    reference = parse_ref(ref).fetched()
    return reference.path if reference.kind == "huggingface" else None


def _fields(folder: Path | None) -> dict[str, Any]:
    place = None if folder is None else folder / "config.json"
    content = io.read_json(place) if place is not None and place.is_file() else {}
    return content if isinstance(content, dict) else {}
