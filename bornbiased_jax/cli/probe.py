"""``bornbiased probe preference``, ``contraction`` and ``scaling``, the coordinate check."""

from __future__ import annotations

from typing import Any, NamedTuple, get_args

import click
from jax.sharding import Mesh

from bornbiased_jax import parallel, progress
from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.cli import dry_run, engines, options, outputs
from bornbiased_jax.cli.sections import Command
from bornbiased_jax.config import FieldValue, ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.model.layers import precision_named
from bornbiased_jax.probes import ProbedModel, run
from bornbiased_jax.probes.inputs import RANDOM_KINDS, parse_inputs
from bornbiased_jax.probes.subject import from_weights, untrained
from bornbiased_jax.results import Contraction, Preference, theory
from bornbiased_jax.results.initialization import WidthCheck
from bornbiased_jax.results.probes import Part, part_of
from bornbiased_jax.results.theory import ProbeRow
from bornbiased_jax.schema import BatchSize, Count, LearningRate, Seed, SeqLen, Steps
from bornbiased_jax.training.config import Optimizer, PretrainConfig
from bornbiased_jax.training.scaling import scaling


@click.group("probe")
def probe() -> None:
    """Measure untrained models, or a checkpoint in the same way."""


_probe_options = options.together(
    options.quiet_option,
    options.process_options,
    outputs.output_options,
    dry_run.dry_run_option,
    engines.store_options(
        "Sequences in one chunk of the store; chosen from the sizes of model and inputs unless given."
    ),
    click.option(
        "--chunk", type=options.Ranged(Count), help="Seeds held in memory together; chosen by memory unless given."
    ),
    click.option(
        "--mode",
        type=click.Choice(["auto", "vmap", "map"]),
        default="auto",
        help="Seeds at once, or one after the other in one program.",
    ),
    click.option(
        "--batch-size", type=options.Ranged(BatchSize), help="Sequences in a batch; chosen by size unless given."
    ),
    options.precision_option,
    options.model_options,
    click.option("--seq-len", "seq_len", required=True, metavar="T[,T…]", help="Lengths, as in 64,256."),
    click.option(
        "--num-inputs", type=options.Ranged(Count), required=True, metavar="N", help="Sequences to probe with."
    ),
    click.option("--seeds", default="0", help="As in 0:64 or 42,43."),
    click.option("--checkpoint", metavar="C", help="Probe this checkpoint instead of untrained models."),
    click.option(
        "--theory",
        is_flag=True,
        help="Add theory's prediction for untrained models, and whether the measurement fits it.",
    ),
    options.sweep_option,
    click.option(
        "--inputs",
        "input_spec",
        default="tokens",
        metavar="KIND",
        help="tokens, gaussian, text:PATH, builtin:prose or builtin:code.",
    ),
    click.option("--tokenizer", metavar="NAME|FILE", default=None, help="For text: bytes, bpe:4096 or a file."),
    click.option(
        "--fix-embeddings/--no-fix-embeddings",
        default=True,
        help="Share embeddings and head between seeds (Appendix B.2).",
    ),
    click.option("--embedding-seed", type=options.Ranged(Seed), default=0, help="Seed of the fixed embeddings."),
    click.option("--input-seed", type=options.Ranged(Seed), default=0, help="Seed of the inputs."),
)


@probe.command("preference", cls=Command, short_help="which token does each seed predict most?")
@_probe_options
def preference_command(**arguments: Any) -> None:
    """Count each seed's most predicted token, with a p of that count (Table 1, Figure 1).

    \b
    Example:
      bornbiased probe preference --model gpt2-tiny --set init=normal-0.02 \\
        --seeds 0:8 --seq-len 64 --num-inputs 2000
    """
    _run(arguments, "preference")


@probe.command("contraction", cls=Command, short_help="how alike do unrelated inputs become?")
@_probe_options
def contraction_command(**arguments: Any) -> None:
    """Measure cosines between last-token states of different sequences, block by block (Figure 2, Table 2).

    \b
    Example:
      bornbiased probe contraction --model gpt2-tiny --seeds 0:4 --seq-len 64 \\
        --num-inputs 1000 --theory
      bornbiased probe contraction --model gpt2-tiny --sweep num_layers=2,4,8 \\
        --seq-len 64 --num-inputs 1000 --figures depth --csv depth.csv
    """
    _run(arguments, "contraction")


@probe.command("scaling", cls=Command, short_help="do activations keep their size as the width grows?")
@options.model_options
@click.option("--widths", default="64,128,256", metavar="D[,D…]", help="Widths of the model.")
@click.option("--steps", type=options.Ranged(Steps), default=10, help="Updates after the first.")
@click.option("--seeds", default="0:4", help="As in 0:8 or 42,43; at least two.")
@click.option("--optimizer", type=click.Choice(get_args(Optimizer)), default="adamw", help="As in pretrain.")
@click.option(
    "--learning-rate",
    type=options.Ranged(LearningRate),
    default=1e-3,
    help="At every width; with init=mup at the width of --model, and falling with the width for matrices.",
)
@click.option("--batch-size", type=options.Ranged(BatchSize), default=8, help="Sequences of the batch.")
@click.option("--seq-len", type=options.Ranged(SeqLen), default=32, help="Length of the sequences.")
@click.option("--input-seed", type=options.Ranged(Seed), default=0, help="Seed of the tokens.")
@outputs.output_options
def scaling_command(**arguments: Any) -> None:
    """Check whether activations keep their size as the width grows (the coordinate check of muP).

    \b
    Example:
      bornbiased probe scaling --model gpt2-tiny --set init=mup \\
        --set attention_scale=0.03125 --set tie_embeddings=false \\
        --widths 64,128,256 --steps 10

    muP is more than an initialization: with init=mup the learning rates of
    hidden matrices and of the head fall as the width of --model over the width.
    It also needs attention logits scaled by 1/head_dim (attention_scale, here
    1/32) and an untied head.
    """
    places = outputs.OutputFiles.take(arguments)
    widths = options.parse_lengths(arguments["widths"], "--widths")
    cfg = options.model_config(arguments["model"], arguments["settings"])
    config = PretrainConfig(
        model=cfg,
        data="random tokens",
        out=".",
        seeds=tuple(options.parse_seeds(arguments["seeds"])),
        data_seed=arguments["input_seed"],
        context=arguments["seq_len"],
        min_learning_rate=0.0,
        warmup=0,
        schedule="constant",
        **{name: arguments[name] for name in ("steps", "batch_size", "learning_rate", "optimizer")},
    )
    with progress.bar(len(widths), "coordinate check", unit="widths") as advance:
        checked = scaling(config, widths, advance=advance)
    places.show(WidthCheck(checked, cfg), str(arguments["model"]))


class _Prepared(NamedTuple):
    """The checked options of a probe.

    Attributes:
        outputs: where results go.
        store: ``resume``, ``engine`` and ``range_size``.
        mesh: of the devices, if one was given; None in a dry run.
        seeds, lengths: in the order given.
        models: the configurations, each with the field of a sweep and its value; empty where a checkpoint is probed.
    """

    outputs: outputs.OutputFiles
    store: dict[str, Any]
    mesh: Mesh | None
    seeds: list[int]
    lengths: list[int]
    models: list[tuple[ModelConfig, dict[str, Any]]]


def _prepare(arguments: dict[str, Any]) -> _Prepared:
    """Check the options of a probe before any work, and join the other processes unless in a dry run."""
    places = outputs.OutputFiles.take(arguments)
    _refuse_unused(arguments)
    if arguments["theory"]:
        theory.check(arguments["input_spec"])
    store_settings = engines.store_settings(arguments)
    common = ("quiet", "mesh", "coordinator", "num_processes", "process_id", "dry_run")
    axis = "data" if arguments["checkpoint"] else "seed"
    mesh = options.start(**{name: arguments[name] for name in common}, axis=axis)
    # One that is named twice would count twice in means and corrections.
    seeds = list(dict.fromkeys(options.parse_seeds(arguments["seeds"])))
    lengths = options.parse_lengths(arguments["seq_len"], "--seq-len")
    model = arguments["model"], arguments["settings"], arguments["sweep"]
    if arguments["checkpoint"]:
        options.refuse_model(*model)
        models = []
    else:
        if options.is_given("seeds"):
            options.note_single_seed(arguments["seeds"])
        models = options.swept_configs(*model)
        options.note_width(*model)
    if arguments["theory"]:
        theory.check(arguments["input_spec"], *(cfg for cfg, _ in models))
    return _Prepared(places, store_settings, mesh, seeds, lengths, models)


def _refuse_unused(arguments: dict[str, Any]) -> None:
    """Refuse options that would change nothing beside the others.

    Raises:
        InputError: one that was given.
    """
    kind = arguments["input_spec"]
    if kind in RANDOM_KINDS and options.is_given("tokenizer"):
        raise InputError(f"--tokenizer is for text, and --inputs {kind} draws its inputs: leave --tokenizer out")
    if kind.startswith(("text:", "builtin:")) and options.is_given("input_seed"):
        raise InputError(f"--input-seed is of inputs that are drawn, and {kind} is read as it stands: leave it out")
    for name in ("chunk", "mode"):
        if arguments["checkpoint"] and options.is_given(name):
            raise InputError(f"--{name} is of several seeds, and a checkpoint is one model: leave --{name} out")
    for name in ("fix_embeddings", "embedding_seed"):
        if not options.is_given(name):
            continue
        flag = f"--{name.replace('_', '-')}"
        if arguments["checkpoint"]:
            raise InputError(f"{flag} is for untrained models, and a checkpoint has its embeddings: leave it out")
        if name == "embedding_seed" and not arguments["fix_embeddings"]:
            raise InputError(f"{flag} is of embeddings that all seeds share: leave --no-fix-embeddings out")


def _run(arguments: dict[str, Any], part: Part) -> None:
    """Probe a checkpoint, or untrained models of each configuration, and show that part of the records."""
    prepared = _prepare(arguments)
    precision_named(arguments["precision"])
    if arguments["dry_run"]:
        needed = dry_run.probe_requirements(
            arguments, part, prepared.seeds, prepared.lengths, [cfg for cfg, _ in prepared.models]
        )
        dry_run.report(*needed, prepared.outputs.json_file)
        return
    kind = Preference if part == "preference" else Contraction
    if arguments["checkpoint"]:
        result = kind(*_probe_checkpoint(arguments, part, prepared), precision=arguments["precision"])
    else:
        fixed = arguments["embedding_seed"] if arguments["fix_embeddings"] else None
        records: list[ProbeRow] = []
        for cfg, value in prepared.models:
            rows = _probe(untrained(cfg, fixed_embedding_seed=fixed), arguments, part, prepared, fixed)
            records += [{**value, **row} for row in rows]
        # All values of a sweep share the other fields, which some of them may not read.
        field = next(iter(prepared.models[0][1]), "")
        base = options.model_config(arguments["model"], arguments["settings"], field)
        result = kind(records, base.to_dict(), swept=field, precision=arguments["precision"])
    prepared.outputs.show(result, arguments["checkpoint"] or arguments["model"])


def _probe_checkpoint(
    arguments: dict[str, Any], part: Part, prepared: _Prepared
) -> tuple[list[ProbeRow], dict[str, FieldValue]]:
    """Probe a checkpoint; return its records and its configuration."""
    if options.is_given("seeds"):
        progress.warn("--seeds has no meaning here: a checkpoint has its weights already")
    checkpoint = open_checkpoint(arguments["checkpoint"], sharding=parallel.shardings(prepared.mesh))
    if arguments["theory"]:
        theory.check(arguments["input_spec"], checkpoint.cfg)
    longest = max(prepared.lengths)
    if checkpoint.cfg.positions == "rope" and longest > checkpoint.cfg.max_seq_len:
        progress.warn(
            f"--seq-len {longest} is longer than the {checkpoint.cfg.max_seq_len} positions of the checkpoint"
        )
    subject = from_weights(checkpoint.cfg, checkpoint.params(), checkpoint.digest(), checkpoint.reference)
    if arguments["tokenizer"] is None and arguments["input_spec"] not in RANDOM_KINDS:
        arguments = {**arguments, "tokenizer": checkpoint.tokenizer}
    rows = _probe(subject, arguments, part, prepared._replace(seeds=prepared.seeds[:1]), None)
    return [{**row, "seed": None, "is_initial": checkpoint.is_initial} for row in rows], checkpoint.cfg.to_dict()


def _probe(
    subject: ProbedModel, arguments: dict[str, Any], part: Part, prepared: _Prepared, table_seed: int | None
) -> list[ProbeRow]:
    """Return that part of the record of each length and seed, with theory where it is wanted.

    Args:
        subject: the model or models.
        arguments: of the command.
        part: of the records.
        prepared: the checked options.
        table_seed: of the embedding tables that all seeds share; None where each has its own.
    """
    seeds, store = prepared.seeds, prepared.store
    probe_options = run.ProbeOptions(
        intra=part == "contraction",
        range_size=store["range_size"],
        **{name: arguments[name] for name in ("batch_size", "mode", "chunk", "precision")},
    )
    records: list[ProbeRow] = []
    # One pass over the inputs for each length.
    for seq_len in prepared.lengths:
        inputs = parse_inputs(
            arguments["input_spec"],
            num_inputs=arguments["num_inputs"],
            seq_len=seq_len,
            cfg=subject.cfg,
            seed=arguments["input_seed"],
            tokenizer=arguments["tokenizer"],
        )
        total = len(set(seeds)) * inputs.num_inputs
        label = f"{len(seeds)} seed{'s' * (len(seeds) > 1)}, T = {seq_len}"
        with progress.bar(total, label, unit="sequences") as advance:
            rows = run.probe(
                subject,
                seeds,
                inputs,
                probe_options,
                mesh=prepared.mesh,
                resume=store["resume"],
                engine=store["engine"],
                advance=advance,
            )
            records += [part_of(row, part, subject.cfg, inputs) for row in rows]
    if not arguments["theory"]:
        return records
    is_tokens = arguments["input_spec"] == "tokens"
    if part == "preference":
        return theory.with_fractions(subject.cfg, records, tokens=is_tokens, table_seed=table_seed)
    return theory.with_cosines(subject.cfg, records, tokens=is_tokens)
