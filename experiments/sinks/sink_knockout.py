"""Causes of a real model's sinks, cut and joined: super neurons, massive channel, first token.

No paper's table; "The Structural Origin of Attention Sink" names the chain variance discrepancy → super neurons →
dimension disparity → sinks. Stated before any number:

- *Named* neurons are those that :func:`~bornbiased_jax.probes.outliers.super_neurons` calls super, of the ten that
  write most at the first token. Each is silenced alone, then every pair.
- *Controls* are 20 pairs of neurons drawn from the blocks of the strongest named pair, each with a row of W_down whose
  norm is among the 20 nearest to that of the neuron whose place it takes.
- *Restoration*: a silenced neuron's mean activation at the first token is written back there and nowhere else. If the
  neuron matters by what it writes at the first token alone, every block's sink rate comes back.
- *Elsewhere*: the strongest pair's activation is written at position k and not at the first. If what they write makes a
  sink, k becomes one and the first stops being one.
- *The channel* that the strongest neuron writes to is cleared at the first token after one block, for every block, and
  after all of them. If the sinks need the massive channel, those of later blocks go and those of earlier ones stay.
- *The first token* is replaced by others. If the sink is the position's, it stays.

A link holds where its cut takes the sinks and the control's does not.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.evaluation.intervention import effect, first_activations
from bornbiased_jax.evaluation.sink_report import cut_sequences
from bornbiased_jax.experiments.base import (
    SCALES,
    Context,
    Entry,
    Experiment,
    Record,
    by_scale,
    each,
    variants,
    where_attempted,
)
from bornbiased_jax.experiments.sinks.subject import SinkModel, attempt
from bornbiased_jax.model.interventions import Edits, Neuron, clear, silence, write
from bornbiased_jax.parameters import Params
from bornbiased_jax.probes.outliers import super_neurons
from bornbiased_jax.report.numbers import fixed, integer, percent
from bornbiased_jax.report.tables import Claim, Table, tabulate

AS_IT_IS, SILENCED, CONTROL, RESTORED = "as it is", "silenced", "control pair silenced", "restored"
ELSEWHERE, CLEARED, FIRST_TOKEN = "written elsewhere", "channel cleared", "another first token"
NEAREST = 20
"""Rows of W_down, by norm, that a control is drawn from."""


def run(context: Context, must_be_named: bool = False) -> Entry:
    """Make every cut and join on one model, or return the reason why not."""
    settings = context.settings

    def measure(subject: SinkModel) -> Entry:
        opened = subject.opened
        tokens_NT = cut_sequences(subject.ids_T, settings["length"], settings["num_sequences"])
        return context.cached(
            "sink_knockout/effects",
            [opened.digest(), tokens_NT.tolist(), dict(settings)],
            lambda _folder: knock_out(opened.cfg, opened.params(), tokens_NT, settings, quiet=context.quiet),
        )

    return attempt(context, measure, must_be_named)


def knock_out(cfg: ModelConfig, params: Params, tokens_NT: np.ndarray, settings: Entry, *, quiet: bool = True) -> Entry:
    """Make all runs on one model: rows with the target, the sink rate by block and the loss."""
    neurons = super_neurons(cfg, params, tokens_NT, top=settings["top"])
    targets = [neuron for neuron in neurons if neuron["super"]] or neurons[:2]
    named = [Neuron(neuron["block"], neuron["neuron"]) for neuron in targets]
    channel = targets[0]["channel"]
    first_LF = first_activations(cfg, params, tokens_NT)
    runs = _runs(cfg, params, named, channel, first_LF, settings)
    rows = []
    for kind, target, position, make, first_token in each(runs, "knock-out", "runs", quiet):
        changed_NT = tokens_NT.copy()
        if first_token is not None:
            changed_NT[:, 0] = first_token
        measured = effect(cfg, params, changed_NT, make(), position=position)
        rows.append({"kind": kind, "what": target, "position": position, **measured})
    return {"neurons": neurons, "named": [str(neuron) for neuron in named], "channel": channel, "rows": rows}


def _no_edit() -> None:
    """Make no edit."""


Run = tuple[str, str, int, Callable[[], Any], int | None]


def _runs(
    cfg: ModelConfig,
    params: Params,
    named: Sequence[Neuron],
    channel: int,
    first_LF: np.ndarray,
    settings: Entry,
) -> list[Run]:
    """List each run's kind, its target, the position of the sink, how the edit is made, the first token."""

    def write_at(neurons: Sequence[Neuron], position: int) -> Edits:
        values = {neuron: float(first_LF[neuron.block - 1, neuron.unit]) for neuron in neurons}
        return write(cfg, values, position=position)

    k = settings["position"]
    runs: list[Run] = [(AS_IT_IS, "", 1, _no_edit, None), (AS_IT_IS, "", k, _no_edit, None)]
    # Silence single neurons and pairs, then restore the strongest alone.
    groups = [(neuron,) for neuron in named] + list(itertools.combinations(named, 2))
    for group in groups:
        runs.append((SILENCED, name(group), 1, functools.partial(silence, cfg, group), None))
    strongest = tuple(named[:2])
    for group in [(neuron,) for neuron in named] + ([strongest] if len(strongest) == 2 else []):
        runs.append((RESTORED, name(group), 1, functools.partial(write_at, group, 1), None))
    # Random neurons, as controls.
    for pair in controls(params, strongest, named, settings["controls"]):
        runs.append((CONTROL, name(pair), 1, functools.partial(silence, cfg, pair), None))
    # The strongest neurons' output written at another position.
    for position in (1, k):
        runs.append((ELSEWHERE, f"{name(strongest)} at {k}", position, functools.partial(write_at, strongest, k), None))
    # Clear the channel after one block or every block.
    for blocks in [*([block] for block in range(1, cfg.num_layers + 1, settings["cleared_every"])), None]:
        target = f"channel {channel} after " + ("every block" if blocks is None else f"block {blocks[0]}")
        runs.append((CLEARED, target, 1, functools.partial(clear, cfg, [channel], position=1, blocks=blocks), None))
    # Replace the first token.
    rng = np.random.default_rng(settings["seed"])
    ids: np.ndarray = rng.choice(cfg.vocab_size, int(settings["first_tokens"]), replace=False)
    runs += [(FIRST_TOKEN, f"token {token}", 1, _no_edit, int(token)) for token in ids]
    return runs


def name(group: Sequence[Neuron]) -> str:
    """Name neurons as a reader would."""
    return " + ".join(str(neuron) for neuron in group)


def controls(
    params: Params, strongest: Sequence[Neuron], named: Sequence[Neuron], count: int
) -> list[tuple[Neuron, ...]]:
    """Draw random neurons of the same blocks as the strongest, their rows of W_down of nearly equal norm."""
    down_LFD = np.asarray(params["blocks"]["mlp"]["down"]["kernel"], np.float64)
    norm_LF = np.linalg.norm(down_LFD, axis=-1)
    draws = np.random.default_rng(1)
    pools = []
    for neuron in strongest:
        distance_F = np.abs(norm_LF[neuron.block - 1] - norm_LF[neuron.block - 1, neuron.unit])
        order = [Neuron(neuron.block, int(unit)) for unit in np.argsort(distance_F)]
        pools.append([candidate for candidate in order if candidate not in named][:NEAREST])
    pairs: list[tuple[Neuron, ...]] = []
    while len(pairs) < count:
        pair = tuple(pool[draws.integers(len(pool))] for pool in pools)
        if len(set(pair)) == len(pair):
            pairs.append(pair)
    return pairs


def _rows(record: Record, *kinds: str) -> list[Entry]:
    return [row for row in record["result"]["rows"] if row["kind"] in kinds]


def _base(record: Record, position: int = 1) -> Entry:
    return next(row for row in _rows(record, AS_IT_IS) if row["position"] == position)


def _control(record: Record) -> str:
    """Return what the controls are: pairs, or neurons where one alone was named."""
    return "neuron" if any(" + " not in row["what"] for row in _rows(record, CONTROL)) else "pair"


def change(row: Entry, base: Entry) -> float:
    """Return the largest change of a block's sink rate."""
    return float(np.max(np.abs(np.subtract(row["by_block"], base["by_block"]))))


@where_attempted
def tables(record: Record) -> Sequence[Table]:
    """Show every run, but of random pairs the one that changes most, and of cleared channels that after every block."""
    base = _base(record)
    listing = _rows(record, AS_IT_IS, SILENCED, RESTORED, ELSEWHERE, FIRST_TOKEN)
    listing += [row for row in _rows(record, CLEARED) if row["what"].endswith("every block")]
    rows = [_row(row, base if row["position"] == 1 else _base(record, row["position"])) for row in listing]
    random = _rows(record, CONTROL)
    if random:
        weakest = max(random, key=lambda row: change(row, base))
        what = f"the one of {len(random)} that changes most: {weakest['what']}"
        rows.append(_row({**weakest, "kind": CONTROL.replace("pair", _control(record)), "what": what}, base))
    settings = record["settings"]
    note = (
        "Heads that are sinks at the position named (ε = 0.25), and loss in nats a token, on "
        f"{settings['num_sequences']} sequences of {settings['length']} tokens. Changes are from the model as it is; "
        "the largest in a block is that of the fraction of its heads that are sinks. Restored: the neuron's mean "
        "activation at the first token is written there and nowhere else. Blocks and positions count from 1, neurons "
        "and channels from 0."
    )
    return [tabulate("Cut and restored", ["change", "of", "sink read at"], rows, note)]


def _row(row: Entry, base: Entry) -> tuple[Any, ...]:
    measured = {
        "heads that are sinks": (percent(1), row["sink_rate"]),
        "largest change in a block": (fixed(2), change(row, base)),
        "loss": (fixed(2), row["loss"]),
        "change of the loss": (fixed(3), row["loss"] - base["loss"]),
    }
    return [row["kind"], row["what"], row["position"]], measured


@where_attempted
def claims(record: Record) -> Sequence[Claim]:
    """Claim what the strongest neuron and pair carry, what random pairs do, and whether it all comes back."""
    base = _base(record)
    silenced = _rows(record, SILENCED)
    singles = [row for row in silenced if " + " not in row["what"]]
    pairs = [row for row in silenced if " + " in row["what"]]
    settings = record["settings"]
    words = f"Heads that are sinks, {settings['num_sequences']} sequences of {settings['length']} tokens"
    entries: list[tuple[str, float, Any]] = [(words, base["sink_rate"], percent(0))]
    for words, rows in (("neuron", singles), ("pair of named neurons", pairs)):
        if rows:
            worst = min(rows, key=lambda row: row["sink_rate"])
            entries.append((f"The same without the {words} that matters most ({worst['what']})", worst["sink_rate"],
                            percent(0)))  # fmt: skip
    for words, kind in ((f"Largest change of a block's sink rate by a random {_control(record)}", CONTROL),
                        ("The same after a named neuron's output was cut and written back", RESTORED)):  # fmt: skip
        rows = _rows(record, kind)
        if rows:
            entries.append((words, max(change(row, base) for row in rows), fixed(3)))
    return [Claim(words, value, format=form) for words, value, form in entries]


@where_attempted
def headline(record: Record) -> str:
    """Return one sentence."""
    base = _base(record)
    silenced = _rows(record, SILENCED)
    pairs = [row for row in silenced if " + " in row["what"]]
    worst = min(pairs or silenced, key=lambda row: row["sink_rate"])
    most = max((change(row, base) for row in _rows(record, CONTROL)), default=0.0)
    matched = " + ".join(record["result"]["named"][:2])
    verb = "falls" if worst["sink_rate"] < base["sink_rate"] else "goes"
    return (
        f"Without {worst['what']} the fraction of heads that are sinks {verb} from {base['sink_rate']:.0%} to "
        f"{worst['sink_rate']:.0%}; {integer(len(_rows(record, CONTROL)))} random {_control(record)}s with rows of "
        f"nearly the norms of {matched} change no block by more than {most:.2f}."
    )


EXPERIMENT = Experiment(
    name="sink_knockout",
    title="What a real model's sinks depend on, cut and restored",
    paper="“The Structural Origin of Attention Sink”, the chain of causes",
    description=(
        "SmolLM2-135M, or the checkpoint of --data 'model=PATH;TEXT', with neurons silenced, written back, written at "
        "another position, its massive channel cleared after each block, its first token swapped; for each the sink "
        "rate of every block and the loss.\n\nA link of the chain holds where its cut takes the sinks and the "
        "control's does not."
    ),
    settings=by_scale(
        characters=(20_000, 20_000, 200_000),
        seed=0,
        seeds=[0],
        length=(12, 64, 128),
        num_sequences=(2, 8, 100),
        position=(4, 8, 8),
        top=(2, 10, 10),
        controls=(1, 20, 20),
        first_tokens=(1, 8, 32),
        cleared_every=(10, 1, 1),
    ),
    cost={"smoke": "a minute", "laptop": "see the record", "paper": "not measured"},
    run=run,
    takes_data=SCALES,
    claims=claims,
    tables=tables,
    headline=headline,
)

EXPERIMENTS = variants(
    EXPERIMENT,
    sink_knockout_given=dict(
        title="What a larger real model's sinks depend on",
        run=functools.partial(run, must_be_named=True),
    ),
)
