"""``bornbiased fingerprint`` and ``bornbiased seedprint``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bornbiased_jax.cli import options
from bornbiased_jax.errors import InputError

if TYPE_CHECKING:
    from bornbiased_jax.seedprint.verdict import Verdict

F = TypeVar("F", bound=Callable[..., Any])


def _input_options(function: F) -> F:
    for option in (
        click.option("--batch-size", type=int, help="Sequences in a batch; chosen by size unless given."),
        click.option("--input-seed", type=int, default=0, show_default=True, help="Seed of the inputs."),
        click.option("--vocab-size", type=int, help="Draw token ids below this; the model's own unless given."),
        click.option("--seq-len", type=int, default=64, show_default=True, metavar="T"),
        click.option("--num-inputs", type=int, default=2_000, show_default=True, metavar="N"),
        click.option("--inputs", type=click.Choice(options.RANDOM_INPUTS), default="tokens", show_default=True),
        click.option("--quiet", is_flag=True, help="No progress display."),
    ):
        function = option(function)
    return function


@click.command("fingerprint")
@click.argument("checkpoint", metavar="C")
@click.option("--out", required=True, metavar="FILE", help="Where to store it.")
@click.option("--layer", type=int, help="Read after this block (1 to L) instead of after the final norm.")
@_input_options
@options.json_option
def fingerprint(checkpoint: str, out: str, layer: int | None, json_file: str | None, **arguments: Any) -> None:
    """Store a model's last-position outputs with the digests of its inputs and weights.

    \b
    Example:
      bornbiased fingerprint seed:42@llama-tiny --num-inputs 2000 --seq-len 64 --out birth.fingerprint
    """
    from bornbiased_jax import files
    from bornbiased_jax.checkpoints import open_checkpoint
    from bornbiased_jax.seedprint.fingerprint import save_fingerprint

    options.prepare_json(json_file)
    options.start(quiet=arguments["quiet"])
    files.check_writable(Path(out))
    opened = open_checkpoint(checkpoint)
    vocab = arguments["vocab_size"] or opened.cfg.vocab_size
    found = _compute(opened, checkpoint, arguments, vocab, None, layer)
    save_fingerprint(out, found)
    num_outputs, width = found.outputs_ND.shape
    facts = {"out": out, "checkpoint": checkpoint, "source": found.source, "num_outputs": num_outputs, "width": width}
    about = {"layer": found.layer, "inputs": found.inputs, "weights_digest": found.weights_digest}
    options.write_result(json_file, facts | about)
    click.echo(f"{out}: {num_outputs:,} outputs of width {width} of {found.source}", err=json_file == "-")


@click.command("seedprint")
@click.argument("base", metavar="BASE")
@click.argument("suspect", metavar="SUSPECT")
@click.option(
    "--test",
    type=click.Choice(["permutation", "paper", "iclr", "population"]),
    default="permutation",
    show_default=True,
)
@click.option("--alpha", type=float, default=0.01, show_default=True, help="Level of the decision.")
@click.option("--num-permutations", type=int, help="For the permutation test; enough for alpha unless given.")
@click.option("--num-references", type=int, default=200, show_default=True, help="Fresh seeds, for population.")
@click.option("--baselines", is_flag=True, help="Also published similarity scores of the weights: Intrinsic, PCS, ICS.")
@_input_options
@options.json_option
def seedprint(
    base: str,
    suspect: str,
    test: Any,
    alpha: float,
    num_permutations: int | None,
    num_references: int,
    baselines: bool,
    json_file: str | None,
    **arguments: Any,
) -> None:
    """Were two models born from the same seed? Checkpoints or stored fingerprints.

    The verdict is "same-lineage", "unrelated" or "undefined"; exit code 0 for each of them.

    \b
    Example:
      bornbiased seedprint seed:42@llama-tiny seed:43@llama-tiny --num-inputs 2000 --seq-len 64
      bornbiased seedprint birth.fingerprint runs/a@seed=42,step=1000 --json verdict.json
    """
    from bornbiased_jax.checkpoints import open_checkpoint
    from bornbiased_jax.inputs import KINDS
    from bornbiased_jax.seedprint.compare import compare
    from bornbiased_jax.seedprint.fingerprint import is_fingerprint, load_fingerprint
    from bornbiased_jax.seedprint.permutation import check_permutations
    from bornbiased_jax.seedprint.population import check_references
    from bornbiased_jax.seedprint.verdict import undefined

    options.prepare_json(json_file)
    options.start(quiet=arguments["quiet"])
    if not 0.0 < alpha < 1.0:
        raise InputError(f"--alpha {alpha} is outside (0, 1)")
    # Said now, not after the fingerprints.
    if test == "permutation" and num_permutations is not None:
        check_permutations(num_permutations, alpha)
    if test == "population":
        check_references(num_references, alpha)
    stored = {ref: load_fingerprint(ref) for ref in (base, suspect) if Path(ref).is_file() and is_fingerprint(ref)}
    opened = {ref: open_checkpoint(ref) for ref in dict.fromkeys((base, suspect)) if ref not in stored}
    for ref, found in stored.items():
        kept = {
            "inputs": found.inputs["kind"],
            "num_inputs": found.inputs["num_inputs"],
            "seq_len": found.inputs["seq_len"],
            "input_seed": found.inputs["seed"],
            "vocab_size": found.inputs.get("vocab_size"),
        }
        for name, value in kept.items():
            if options.given(name) and arguments[name] != value:
                option = f"--{name.replace('_', '-')}"
                raise InputError(f"{ref} was made with {option} {value}, not {arguments[name]}: leave {option} out")
        arguments |= kept
    vocab = arguments["vocab_size"] or min((model.cfg.vocab_size for model in opened.values()), default=0)
    layers = {found.layer for found in stored.values()}
    layer = layers.pop() if len(layers) == 1 else None
    moments = next(((f.inputs["mean"], f.inputs["std"]) for f in stored.values() if "mean" in f.inputs), None)
    prints = dict(stored)
    widths = {ref: model.cfg.d_model for ref, model in opened.items()}
    widths |= {ref: found.outputs_ND.shape[1] for ref, found in stored.items()}
    # Said before anything is computed; two stored ones of tokens have their inputs compared first.
    vectors = KINDS[arguments["inputs"]].vectors
    if widths[base] != widths[suspect] and (vectors or (opened and not baselines)):
        both = f"{widths[base]} and {widths[suspect]}"
        fed = f"vectors of one width cannot be fed to models of widths {both}, and "
        reason = (
            fed if vectors else f"the widths differ ({both}): "
        ) + "no coordinate of one model corresponds to one of the other"
        _report(undefined(test, reason, num_inputs=arguments["num_inputs"], alpha=alpha), json_file, {})
        return
    for ref, model in opened.items():
        prints[ref] = _compute(model, ref, arguments, vocab, moments, layer)
        moments = moments or ((prints[ref].inputs["mean"], prints[ref].inputs["std"]) if vectors else None)
    extra: dict[str, Any] = {"num_permutations": num_permutations} if test == "permutation" and num_permutations else {}
    references = None
    if test == "population":
        references, extra = _references(prints[base], arguments, vocab, num_references), {}
    verdict = compare(prints[base], prints[suspect], test=test, alpha=alpha, references=references, **extra)
    _report(verdict, json_file, {"baselines": _baselines(base, suspect, opened)} if baselines else {})


def _report(verdict: Verdict, json_file: str | None, extra: dict[str, Any]) -> None:
    """Write the JSON, and say the same to a reader."""
    value = verdict.to_json() | extra
    options.write_result(json_file, value)
    err = json_file == "-"
    facts = [verdict.test, f"N = {verdict.num_inputs:,}", f"alpha = {verdict.alpha:g}"]
    if verdict.p_value is not None and verdict.log10_p is not None:
        facts.append(f"p = {verdict.p_value:.4g}")
        # That of the permutation test comes from moments, not from the permutations that p counts.
        facts.append(f"log10 p {'≈' if verdict.test == 'permutation' else '='} {verdict.log10_p:.2f}")
    if verdict.z is not None:
        facts.append(f"z = {verdict.z:.2f}")
    click.echo(f"{verdict.verdict} ({', '.join(facts)})", err=err)
    click.echo(verdict.reason, err=err)
    for note in value.get("notes", ()):
        click.echo(note, err=err)
    click.echo(value["scope"], err=err)


def _compute(
    opened: Any,
    ref: str,
    arguments: dict[str, Any],
    vocab_size: int,
    moments: tuple[float, float] | None,
    layer: int | None,
) -> Any:
    from bornbiased_jax import progress
    from bornbiased_jax.inputs import random_inputs
    from bornbiased_jax.seedprint.fingerprint import fingerprint as compute

    sizes = (arguments["num_inputs"], arguments["seq_len"])
    inputs = random_inputs(arguments["inputs"], *sizes, opened.cfg, seed=arguments["input_seed"], vocab_size=vocab_size)
    with progress.bar(inputs.num_inputs, f"fingerprint {ref}", unit="sequences") as advance:
        return compute(
            opened, inputs, moments=moments, layer=layer, batch_size=arguments["batch_size"], advance=advance
        )


def _references(base: Any, arguments: dict[str, Any], vocab_size: int, num_references: int) -> Any:
    """Outputs of fresh seeds of the base's architecture, one at a time."""
    from bornbiased_jax.config import ModelConfig
    from bornbiased_jax.inputs import random_inputs
    from bornbiased_jax.seedprint.births import final_outputs

    if base.layer is not None:
        raise InputError("the population test reads the final norm's output: make fingerprints without --layer")
    cfg = ModelConfig.from_dict(base.config)
    sizes = (arguments["num_inputs"], arguments["seq_len"])
    inputs = random_inputs(arguments["inputs"], *sizes, cfg, seed=arguments["input_seed"], vocab_size=vocab_size)
    x = inputs.scaled(inputs.batch(0, sizes[0]), base.inputs.get("mean", 0.0), base.inputs.get("std", 1.0))
    # Seeds far from those that people choose, so that a reference is never the model itself.
    seeds = range(3_000_000_000, 3_000_000_000 + num_references)
    return (outputs_ND for chunk in final_outputs(cfg, seeds, x) for outputs_ND in chunk)


def _baselines(base: str, suspect: str, opened: dict[str, Any]) -> list[dict[str, Any]]:
    from bornbiased_jax.seedprint.baselines import ics, intrinsic, pcs

    if base not in opened or suspect not in opened:
        raise InputError("--baselines compares weights: name two checkpoints, not stored fingerprints")
    ours, theirs = opened[base], opened[suspect]
    scores = [
        intrinsic(ours.params, theirs.params),
        pcs(ours.params, theirs.params),
        ics(ours.cfg, ours.params, theirs.cfg, theirs.params),
    ]
    return [score.to_json() for score in scores]
