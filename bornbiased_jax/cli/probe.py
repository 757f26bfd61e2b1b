"""``bornbiased probe preference`` and ``bornbiased probe contraction``."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from bornbiased_jax.cli import dry_run, engines, options
from bornbiased_jax.cli.scaling import scaling_command
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.ranges import Batch, Count, Seed

if TYPE_CHECKING:
    from bornbiased_jax.results.birth import Part

F = TypeVar("F", bound=Callable[..., Any])


@click.group("probe")
def probe() -> None:
    """Measure what a transformer prefers before anybody has trained it."""


probe.add_command(scaling_command)


def _probe_options(function: F) -> F:
    for option in (
        click.option(
            "--batch-size", type=options.Ranged(Batch), help="Sequences in a batch; chosen by size unless given."
        ),
        click.option(
            "--mode",
            type=click.Choice(["auto", "vmap", "map"]),
            default="auto",
            show_default=True,
            help="Seeds at once, or one after the other in one program.",
        ),
        click.option(
            "--chunk", type=options.Ranged(Count), help="Seeds held in memory together; chosen by memory unless given."
        ),
        engines.store_options("Sequences in one chunk of the store; by the sizes of model and inputs unless given."),
        click.option(
            "--input-seed", type=options.Ranged(Seed), default=0, show_default=True, help="Seed of the inputs."
        ),
        click.option(
            "--embedding-seed",
            type=options.Ranged(Seed),
            default=0,
            show_default=True,
            help="Seed of the fixed embeddings.",
        ),
        click.option(
            "--fix-embeddings/--no-fix-embeddings",
            default=True,
            show_default=True,
            help="Share embeddings and head between seeds (Appendix B.2).",
        ),
        click.option("--tokenizer", metavar="NAME|FILE", default=None, help="For text: byte, bpe:4096 or a file."),
        click.option(
            "--inputs",
            "input_spec",
            default="tokens",
            show_default=True,
            metavar="KIND",
            help="tokens, gaussian, text:PATH, builtin:prose or builtin:code.",
        ),
        click.option(
            "--num-inputs", type=options.Ranged(Count), required=True, metavar="N", help="Sequences to probe with."
        ),
        click.option("--seq-len", "seq_len", required=True, metavar="T[,T…]", help="Lengths, as in 64,256."),
        click.option("--seeds", default="0", show_default=True, help="As in 0:64 or 42,43."),
        click.option("--checkpoint", metavar="C", help="Probe this checkpoint instead of newborn models."),
        click.option(
            "--theory", is_flag=True, help="Set beside it what theory predicts of newborn models, and whether it fits."
        ),
        dry_run.dry_run_option,
    ):
        function = option(function)
    return options.model_options(options.result_options(options.common_options(function)))


@probe.command("preference")
@_probe_options
def preference_command(**arguments: Any) -> None:
    """Which token each seed predicts most often, and how improbable that is (Table 1, Figure 1).

    \b
    Example:
      bornbiased probe preference --model gpt2-tiny --set init=normal-0.02 --seeds 0:8 --seq-len 64 --num-inputs 2000
    """
    if arguments["dry_run"]:
        _dry_run(arguments, "preference")
        return
    cfg, records = _run(arguments, "preference")
    from bornbiased_jax.results import Preference, beside_theory

    if arguments["theory"]:
        shared = arguments["fix_embeddings"] and arguments["checkpoint"] is None
        table_seed = arguments["embedding_seed"] if shared else None
        tokens = arguments["input_spec"] == "tokens"
        beside_theory.add_fractions(cfg, records, tokens=tokens, table_seed=table_seed)
    result = Preference(records)
    options.print_result(result.to_json(), [result.table()], result.summary(), arguments["json_file"])


@probe.command("contraction")
@_probe_options
def contraction_command(**arguments: Any) -> None:
    """How alike the last-token states of different sequences are, block by block (Figure 2, Table 2).

    \b
    Example:
      bornbiased probe contraction --model gpt2-tiny --seeds 0:4 --seq-len 64 --num-inputs 1000 --theory
    """
    if arguments["dry_run"]:
        _dry_run(arguments, "contraction")
        return
    cfg, records = _run(arguments, "contraction")
    from bornbiased_jax.results import Contraction, beside_theory

    if arguments["theory"]:
        beside_theory.add_cosines(cfg, records, tokens=arguments["input_spec"] == "tokens")
    result = Contraction(records)
    options.print_result(result.to_json(), result.tables(), result.summary(), arguments["json_file"])


class _Prepared(NamedTuple):
    """The checked options of a probe.

    Attributes:
        store: ``resume``, ``engine`` and ``range_size``.
        mesh: of the devices, if one was given; None in a dry run.
        seeds, lengths: in the order given.
    """

    store: dict[str, Any]
    mesh: Any
    seeds: list[int]
    lengths: list[int]


def _prepare(arguments: dict[str, Any]) -> _Prepared:
    """Check the options of a probe before any work, and join the other processes unless in a dry run."""
    from bornbiased_jax.results import beside_theory

    options.prepare_json(arguments["json_file"])
    if arguments["theory"]:
        beside_theory.check(arguments["input_spec"])
        # As in `bornbiased predict`.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    store_settings = engines.store_settings(arguments)
    common = ("quiet", "mesh", "coordinator", "num_processes", "process_id", "dry_run")
    axis = "data" if arguments["checkpoint"] else "seed"
    mesh = options.start(**{name: arguments[name] for name in common}, axis=axis)
    seeds = options.parse_seeds(arguments["seeds"])
    lengths = options.parse_lengths(arguments["seq_len"], "--seq-len")
    if options.given("seeds") and not arguments["checkpoint"]:
        options.note_single_seed(arguments["seeds"])
    if arguments["checkpoint"] and (arguments["model"] or arguments["settings"]):
        raise InputError("--checkpoint and --model exclude each other: give one of them")
    return _Prepared(store_settings, mesh, seeds, lengths)


def _dry_run(arguments: dict[str, Any], part: Part) -> None:
    prepared = _prepare(arguments)
    needed = dry_run.probe_requirements(arguments, part, prepared.seeds, prepared.lengths)
    dry_run.report(needed, arguments["json_file"])


def _run(arguments: dict[str, Any], part: Part) -> tuple[ModelConfig, list[dict[str, Any]]]:
    """Probe; return the configuration, and of each seed and length that part of its record."""
    from bornbiased_jax import parallel, progress
    from bornbiased_jax.probes.inputs import parse_inputs
    from bornbiased_jax.probes.run import ProbeOptions
    from bornbiased_jax.probes.subject import given, newborn
    from bornbiased_jax.results.birth import measured

    store_settings, mesh, seeds, lengths = _prepare(arguments)
    # What is probed: a checkpoint, or untrained models of all seeds.
    tokenizer: Any = arguments["tokenizer"]
    of_checkpoint: dict[str, Any] = {}
    if arguments["checkpoint"]:
        if options.given("seeds"):
            progress.warn("--seeds has no meaning here: a checkpoint has its weights already")
        from bornbiased_jax.checkpoints import open_checkpoint

        checkpoint = open_checkpoint(arguments["checkpoint"], sharding=parallel.shardings(mesh))
        subject = given(checkpoint.cfg, checkpoint.params(), checkpoint.digest(), checkpoint.reference)
        if tokenizer is None and arguments["input_spec"] not in options.RANDOM_INPUTS:
            tokenizer = checkpoint.tokenizer
        seeds = seeds[:1]
        of_checkpoint = {"seed": None, "is_initial": checkpoint.is_initial}
        if checkpoint.cfg.positions == "rope" and max(lengths) > checkpoint.cfg.max_seq_len:
            progress.warn(
                f"--seq-len {max(lengths)} is longer than the {checkpoint.cfg.max_seq_len} positions of the checkpoint"
            )
    else:
        cfg = options.model_config(arguments["model"], arguments["settings"])
        fixed = arguments["embedding_seed"] if arguments["fix_embeddings"] else None
        subject = newborn(cfg, fixed_embedding_seed=fixed)
    probe_options = ProbeOptions(
        range_size=store_settings.pop("range_size"),
        **{name: arguments[name] for name in ("batch_size", "mode", "chunk")},
    )
    # One pass over the inputs for each length.
    records: list[dict[str, Any]] = []
    for seq_len in lengths:
        inputs = parse_inputs(
            arguments["input_spec"],
            num_inputs=arguments["num_inputs"],
            seq_len=seq_len,
            cfg=subject.cfg,
            seed=arguments["input_seed"],
            tokenizer=tokenizer,
        )
        total = len(set(seeds)) * inputs.num_inputs
        label = f"{len(seeds)} seed{'s' * (len(seeds) > 1)}, T = {seq_len}"
        with progress.bar(total, label, unit="sequences") as advance:
            rows = measured(
                subject,
                seeds,
                inputs,
                part,
                probe_options,
                mesh=mesh,
                advance=advance,
                **store_settings,
            )
        records += [{**row, **of_checkpoint} for row in rows]
    return subject.cfg, records
