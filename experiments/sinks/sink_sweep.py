"""Sinks made at every position from every block: layer sweeps of the mask and of variance amplification.

"The Structural Origin of Attention Sink" masks and amplifies in one block; here each acts in every block alone, at
every position from 2 to T/2, and then in all blocks. Nearer the end few rows see k, and its own row, which an
intervention may turn to k alone, is most of them: a first run on our own models found "sinks" there that no other token
attended to, and only there; positions were cut for it. The rest was stated before any number:

- *Mask*: token k sees only itself in block b, so that its aggregated value keeps a first token's variance there.
- *Variance amplification*: o'_k = μ_k + λ(o_k − μ_k) in block b, μ over random-token sequences.
- *Control*: λ·o_k in block b.
- What is read is the fraction of the heads of *later* blocks for which k is a sink, its mean score over the rows from k
  on above ε; an intervention in block b cannot reach earlier ones. Next to it, the fraction of all heads for which the
  first position still is one.
- If the sinks go back to the variance of attention outputs in early blocks, mask and amplification make a sink at k
  where they act before the block whose neurons write the massive channel, at most positions, and none after it; the
  control makes fewer anywhere. A sink at k that comes from every block alike, or from the control as well, speaks
  against it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bornbiased_jax import progress
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.evaluation.sink_report import cut_sequences
from bornbiased_jax.experiments.base import SCALES, Context, Entry, Experiment, Record, by_scale, where_attempted
from bornbiased_jax.experiments.sinks.settings import EPSILON
from bornbiased_jax.experiments.sinks.subject import SinkModel, attempt
from bornbiased_jax.model.interventions import Edit, Edits, amplify_variance, scale_output, self_only
from bornbiased_jax.parameters import Params
from bornbiased_jax.probes.sinks import SinkOptions, measure_sinks
from bornbiased_jax.probes.variance import ensemble_mean
from bornbiased_jax.report.numbers import fixed, integer, percent
from bornbiased_jax.report.tables import Claim, Table, tabulate

MASK, AMPLIFICATION, CONTROL = "mask", "variance amplification", "control λ·o"
MASS = 0.1
"""A sink counts as made where so many more of the later heads attend to k than without the intervention."""


def run(context: Context) -> Entry:
    """Run the sweep on one model, or return the reason why not."""
    settings = context.settings

    def measure(subject: SinkModel) -> Entry:
        opened = subject.opened
        tokens_NT = cut_sequences(subject.ids_T, settings["length"], settings["num_sequences"])
        random_NT = random_tokens(settings["random_sequences"], settings["length"], opened.cfg.vocab_size)
        return context.cached(
            "sink_sweep/effects",
            [opened.digest(), tokens_NT.tolist(), dict(settings)],
            lambda _folder: sweep(opened.cfg, opened.params(), tokens_NT, random_NT, settings, quiet=context.quiet),
        )

    return attempt(context, measure)


def sweep(
    cfg: ModelConfig,
    params: Params,
    tokens_NT: np.ndarray,
    random_NT: np.ndarray,
    settings: Entry,
    *,
    quiet: bool = True,
) -> Entry:
    """Make every intervention in every block at every position: fractions of heads, [blocks + all, positions].

    Args:
        cfg: the architecture.
        params: its weights.
        tokens_NT: sequences that the sinks are read on.
        random_NT: random-token sequences of the same length, that μ is the mean over.
        settings: ``factor`` (λ), ``blocks_every`` and ``positions_every`` (1: all of them).
        quiet: show no progress.

    Returns:
        ``blocks`` (None: all at once), ``positions``, ``plain`` (the later heads as they are, same shape), ``first``
        (all heads as they are) and for each intervention ``made`` and ``first``.
    """
    L, T = cfg.num_layers, tokens_NT.shape[1]
    mu_LTHK = ensemble_mean(cfg, params, random_NT)
    blocks: list[int | None] = [*range(1, L + 1, settings["blocks_every"]), None]
    positions = list(range(2, T // 2 + 1, settings["positions_every"]))

    def sinks(edit: Edit | Edits | None) -> np.ndarray:
        measured = measure_sinks(
            cfg, params, tokens_NT, SinkOptions(convention="rows_from_k", epsilon=EPSILON), edit=edit
        )
        is_sink_LHT: np.ndarray = measured["profile_LHT"] > EPSILON
        return is_sink_LHT

    def later(is_sink_LHT: np.ndarray, block: int | None, position: int) -> float | None:
        heads = is_sink_LHT[0 if block is None else block :, :, position - 1]
        return float(heads.mean()) if heads.size else None

    # The unedited model, then every edit by block and position.
    plain_LHT = sinks(None)
    rows_by_kind: dict[str, dict[str, list[list[float | None]]]] = {}
    total = 3 * len(blocks) * len(positions)
    with progress.bar(total, "layer sweep", unit="runs", quiet=quiet) as advance:
        for kind, make in interventions(L, T, settings["factor"], mu_LTHK).items():
            rows_by_kind[kind] = {"made": [], "first": []}
            for block in blocks:
                fractions: list[float | None] = []
                first: list[float | None] = []
                for position in positions:
                    is_sink_LHT = sinks(make(position, None if block is None else [block]))
                    fractions.append(later(is_sink_LHT, block, position))
                    first.append(float(is_sink_LHT[:, :, 0].mean()))
                    advance(1)
                rows_by_kind[kind]["made"].append(fractions)
                rows_by_kind[kind]["first"].append(first)
    return {
        "blocks": blocks,
        "positions": positions,
        "plain": [[later(plain_LHT, block, position) for position in positions] for block in blocks],
        "first": float(plain_LHT[:, :, 0].mean()),
        "kinds": rows_by_kind,
    }


def random_tokens(num_sequences: int, length: int, vocab_size: int) -> np.ndarray:
    """Draw the sequences that μ is the mean over."""
    return np.random.default_rng(0).integers(0, vocab_size, (num_sequences, length), dtype=np.int32)


def interventions(
    L: int, T: int, factor: float, mu_LTHK: np.ndarray
) -> dict[str, Callable[[int, list[int] | None], Edit | Edits]]:
    """Return each intervention as a function of the position and the blocks."""
    return {
        MASK: lambda k, blocks: self_only(T, [k], num_layers=L, blocks=blocks),
        AMPLIFICATION: lambda k, blocks: amplify_variance([k], factor, mean_LTHK=mu_LTHK, blocks=blocks),
        CONTROL: lambda k, blocks: scale_output([k], factor, num_layers=L, blocks=blocks, length=T),
    }


def added(sweep: Entry, kind: str) -> np.ndarray:
    """Subtract the plain model's fraction of later heads, [blocks, positions], by single blocks; NaN after the last."""
    fractions = np.array(sweep["kinds"][kind]["made"], float)
    return (fractions - np.array(sweep["plain"], float))[:-1]


def summary(sweep: Entry, kind: str) -> Entry:
    """Find where the intervention makes most, at how many positions some block does, and what all blocks at once do."""
    added_BK = added(sweep, kind)
    reached = np.where(np.isnan(added_BK), -np.inf, added_BK)
    block, position = np.unravel_index(int(np.argmax(reached)), reached.shape)
    best_K = reached.max(axis=0)
    added_by = [sweep["blocks"][row] for row in np.flatnonzero(reached.mean(axis=1) >= MASS)]
    everywhere = np.array(sweep["kinds"][kind]["made"][-1], float) - np.array(sweep["plain"][-1], float)
    first = np.array(sweep["kinds"][kind]["first"][:-1], float)
    return {
        "largest": float(best_K.max()),
        "block": sweep["blocks"][block],
        "position": sweep["positions"][position],
        "positions": float(np.mean(best_K >= MASS)),
        "blocks": added_by,
        "everywhere": float(everywhere.mean()),
        "least first": float(first.min()),
    }


NOTE = (
    "The intervention is made in one block at a time, at each position k. Heads added: of the heads of later blocks, "
    f"the fraction whose mean score of k exceeds ε = {EPSILON}, less that without an intervention; the most, with "
    f"its block and k. Positions with a sink: those at which some block adds {MASS:.0%} or more; blocks that make "
    "one on average: those whose mean over k is as large. In all blocks: heads added by the intervention in all at "
    "once, mean over k. First, at least: the lowest fraction of all heads for which the first position still is a "
    "sink."
)


def cells(sweep: Entry, kind: str) -> Entry:
    """Build a row of the table."""
    totals = summary(sweep, kind)
    has_sinks = totals["largest"] > 0
    return {
        "most heads added": (percent(0), totals["largest"]),
        "by block": str(totals["block"]) if has_sinks else "",
        "at k": str(totals["position"]) if has_sinks else "",
        "positions with a sink": (percent(0), totals["positions"]),
        "blocks that make one on average": ", ".join(map(str, totals["blocks"])) or "none",
        "in all blocks": (percent(0), totals["everywhere"]),
        "first, at least": (percent(0), totals["least first"]),
    }


@where_attempted
def tables(record: Record) -> Sequence[Table]:
    """Show the interventions by the sinks they make."""
    result = record["result"]
    rows = [([kind], cells(result, kind)) for kind in result["kinds"]]
    as_it_is = f"without an intervention it is one for {percent(0)(result['first'])}"
    note = f"{NOTE.removesuffix('.')}; {as_it_is}. λ = {record['settings']['factor']:g}."
    return [tabulate("Sinks made from one block", ["intervention"], rows, note)]


@where_attempted
def claims(record: Record) -> Sequence[Claim]:
    """Claim the most that each intervention makes, and at how many positions."""
    result = record["result"]
    settings = record["settings"]
    size = f"{settings['num_sequences']} sequences of {settings['length']} tokens"
    page_claims = []
    for kind in result["kinds"]:
        totals = summary(result, kind)
        page_claims.append(Claim(f"Positions at which some block makes a sink: {kind}, {size}", totals["positions"],
                          format=percent(0)))  # fmt: skip
        page_claims.append(Claim(f"Most later heads added by one block: {kind}, {size}", totals["largest"],
                          format=fixed(2)))  # fmt: skip
    return page_claims


@where_attempted
def headline(record: Record) -> str:
    """Return one sentence."""
    result = record["result"]
    positions = {kind: summary(result, kind)["positions"] for kind in result["kinds"]}
    return (
        f"In some block, the mask makes a sink at {positions[MASK]:.0%} of {integer(len(result['positions']))} "
        f"positions, variance amplification at {positions[AMPLIFICATION]:.0%}, its control at {positions[CONTROL]:.0%}."
    )


EXPERIMENT = Experiment(
    name="sink_sweep",
    title="Sinks made at every position from every block",
    paper="“The Structural Origin of Attention Sink”, interventions",
    description=(
        "SmolLM2-135M, or the checkpoint of --data 'model=PATH;TEXT': token k sees itself alone, or the variance of "
        "its attention output is amplified, or (control) the output scaled, in one block at a time, for every block "
        "and every position of the first half."
    ),
    settings=by_scale(
        seeds=[0],
        characters=(20_000, 20_000, 200_000),
        length=(12, 32, 64),
        num_sequences=(2, 4, 32),
        random_sequences=(4, 64, 256),
        factor=10.0,
        blocks_every=(12, 1, 1),
        positions_every=(2, 1, 1),
    ),
    cost={"smoke": "a minute", "laptop": "see the record", "paper": "not measured"},
    run=run,
    takes_data=SCALES,
    tables=tables,
    claims=claims,
    headline=headline,
)
