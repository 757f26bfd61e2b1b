"""What an intervention does to a model's sinks and to its loss, block by block."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from bornbiased_jax import progress
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.evaluation.sink_report import cut_sequences
from bornbiased_jax.model import ForwardOptions, interventions
from bornbiased_jax.model.interventions import Edit, Edits, as_edits, combine, parse_neuron
from bornbiased_jax.model.limits import check_length, check_sequences, check_tokens
from bornbiased_jax.model.loss import loss_of_final
from bornbiased_jax.model.memory import check_forward
from bornbiased_jax.model.model import head_path
from bornbiased_jax.model.streaming import Reading, Weights, check_overflow
from bornbiased_jax.parameters import Params
from bornbiased_jax.probes.batching import read_batches
from bornbiased_jax.probes.sinks import ScoreConvention, SinkOptions, check_epsilon, measure_sinks
from bornbiased_jax.text import Tokenizer, read_text, text_digest


class Effect(TypedDict):
    """Sinks and loss of one model as its activations are edited, JSON-ready."""

    sink_rate: float
    """Fraction of heads whose mean score exceeds epsilon, averaged over sequences."""
    by_block: list[float]
    """The same by block."""
    loss: float
    """Nats a token."""


def effect(
    cfg: ModelConfig,
    params: Weights,
    tokens_NT: ArrayLike,
    edit: Edit | Edits | None = None,
    *,
    epsilon: float = 0.25,
    position: int = 1,
    advance: Callable[[int], None] | None = None,
) -> Effect:
    """Measure sink rate by block, and the loss, of a model with its activations edited.

    Args:
        cfg: the architecture.
        params: its weights, in memory or streamed.
        tokens_NT: N sequences of T token ids.
        edit: what is put in place of activations; nothing unless given.
        epsilon: a head is a sink where its mean score exceeds this.
        position: whose score, from 1; divided by the rows that see it.
        advance: called with the number of sequences done since the last call.

    Raises:
        InputError: inputs that do not fit the model, a model without attention, a setting out of range.
    """
    edits = as_edits(edit)
    convention: ScoreConvention = "all_rows" if position == 1 else "rows_from_k"
    options = SinkOptions(epsilon=epsilon, position=position, convention=convention)
    sinks = measure_sinks(cfg, params, tokens_NT, options, edit=edits, advance=advance)
    return {
        "sink_rate": sinks["sink_rate_per_sequence"],
        "by_block": sinks["rate_LH"].mean(axis=1).tolist(),
        "loss": mean_loss(cfg, params, tokens_NT, edits),
    }


def mean_loss(cfg: ModelConfig, params: Weights, tokens_NT: ArrayLike, edit: Edit | Edits | None = None) -> float:
    """Compute mean next-token loss over sequences of equal length, activations edited, in nats.

    Raises:
        InputError: inputs that do not fit the model, sequences of one token.
    """
    x = check_tokens(check_sequences(cfg, tokens_NT), cfg.vocab_size)
    _check_predicts(x.shape[1])
    reading = Reading(finish=_summed_loss, needs=(head_path(cfg),))
    computed = read_batches(cfg, params, x, reading, options=ForwardOptions(edit=edit))
    return sum(float(loss) for _, loss in computed) / float(len(x) * (x.shape[1] - 1))


def _check_predicts(length: int) -> None:
    if length < 2:
        raise InputError("a sequence of one token predicts nothing: give at least 2")


def _summed_loss(cfg: ModelConfig, params: Params, final_BTD: jax.Array, tokens_BT: jax.Array) -> jax.Array:
    # The last position predicts nothing, and positions keep their length for edits.
    labels_BT = jnp.concatenate([tokens_BT[:, 1:], jnp.full_like(tokens_BT[:, :1], -1)], axis=1)
    return loss_of_final(cfg, params, final_BTD, labels_BT, precision="highest")[0]


def first_activations(cfg: ModelConfig, params: Weights, tokens_NT: ArrayLike) -> np.ndarray:
    """Average the activation of hidden units at the first position, [L, F], float64: what ``write`` restores.

    Raises:
        InputError: inputs that do not fit the model, or a model without MLP.
    """
    x = check_sequences(cfg, tokens_NT)
    if not cfg.mlp:
        raise InputError("the model has no MLP (mlp=false), so it has no hidden units: choose another")
    total_LF = np.zeros((cfg.num_layers, cfg.d_ff))
    # No later position can change the first.
    for _, sums_LF in read_batches(cfg, params, x[:, :1], Reading(("mlp_hidden",), _first_sums)):
        total_LF += sums_LF
    return total_LF / len(x)


def _first_sums(captured: dict[str, jax.Array]) -> jax.Array:
    return jnp.sum(captured["mlp_hidden"][:, 0].astype(jnp.float32), axis=0)


@dataclasses.dataclass(frozen=True)
class InterventionOptions:
    """Interventions by name, and what is measured of them.

    Attributes:
        silence: neurons that write nothing, ``blocks/12/mlp:1229``.
        write: neurons with their mean activation at the first token at one position alone, ``blocks/12/mlp:1229@8``.
        clear: channels of the residual stream, ``507`` after every block or ``507@12`` after one, 0 at ``position``.
        first_token: an id that takes the place of every sequence's first.
        position: whose score is measured, from 1.
        epsilon: a head is a sink where its mean score exceeds this.
        length: tokens a sequence.
        num_sequences: windows drawn from the text.
    """

    silence: Sequence[str] = ()
    write: Sequence[str] = ()
    clear: Sequence[str] = ()
    first_token: int | None = None
    position: int = 1
    epsilon: float = 0.25
    length: int = 64
    num_sequences: int = 20


class Interventions(TypedDict):
    """Interventions by name."""

    silence: list[str]
    write: list[str]
    clear: list[str]
    first_token: int | None


class InterventionReport(Effect):
    """An effect, that of the model as it is, and what was done to what, JSON-ready."""

    before: Effect
    interventions: Interventions
    position: int
    epsilon: float
    length: int
    num_sequences: int
    checkpoint: str
    weights_digest: str
    text: str
    text_digest: str


def intervene_checkpoint(
    opened: Checkpoint,
    text: str | Path,
    options: InterventionOptions,
    *,
    tokenizer: Tokenizer | None = None,
    quiet: bool = False,
) -> InterventionReport:
    """Apply interventions by name to an opened model, as ``bornbiased intervene`` does.

    Args:
        opened: the model.
        text: a file, a folder, ``builtin:prose``, ``builtin:code`` or ``hf:NAME``, taken as one running text.
        options: the interventions, and what is measured.
        tokenizer: in place of the checkpoint's own.
        quiet: show no progress.

    Raises:
        InputError: no intervention, one of an unknown form, what the model does not have, a text that is too short.
    """
    epsilon, position, length = options.epsilon, options.position, options.length
    first_token = options.first_token
    check_epsilon(epsilon)
    cfg = opened.cfg
    check_length(cfg, length)
    _check_predicts(length)
    tokenizer = opened.require_tokenizer(tokenizer)
    if not (options.silence or options.write or options.clear or first_token is not None):
        raise InputError("nothing to intervene with: give --silence, --write, --clear or --first-token")
    # Parse the interventions by name.
    writes = [_at(name, "--write", "blocks/12/mlp:1229@8") for name in options.write]
    neurons = [parse_neuron(name) for name, _ in writes]
    silenced = [parse_neuron(name) for name in options.silence]
    named = [*silenced, *neurons]
    if len(set(named)) < len(named):
        raise InputError("a neuron is named twice: silence it, or write it at one position")
    for neuron, (_, place) in zip(neurons, writes, strict=True):
        interventions.check_neuron(cfg, neuron)
        if not 1 <= place <= length:
            raise InputError(f"--write {neuron}@{place}: the position is not between 1 and the length {length}")
    if first_token is not None:
        check_tokens(np.asarray([first_token]), cfg.vocab_size)
    edits = [interventions.silence(cfg, silenced)] if silenced else []
    edits += [_cleared(cfg, name, position) for name in options.clear]
    check_forward(cfg, 1, length, all_weights=True)
    check_overflow(cfg, opened.params())
    source_text = read_text(text)
    tokens_NT = cut_sequences(tokenizer.encode(source_text), length, options.num_sequences)
    with progress.bar(2 * len(tokens_NT), "intervening", unit="sequences", quiet=quiet) as advance:
        measure = functools.partial(effect, cfg, opened.params(), epsilon=epsilon, position=position, advance=advance)
        # The model as it is, then with all interventions at once.
        before = measure(tokens_NT)
        if neurons:
            first_LF = first_activations(cfg, opened.params(), tokens_NT)
            for neuron, (_, place) in zip(neurons, writes, strict=True):
                mean = float(first_LF[neuron.block - 1, neuron.unit])
                edits.append(interventions.write(cfg, {neuron: mean}, position=place))
        changed_NT = tokens_NT.copy()
        if first_token is not None:
            changed_NT[:, 0] = first_token
        after = measure(changed_NT, combine(*edits))
    return {
        **after,
        "before": before,
        "interventions": {
            "silence": list(options.silence),
            "write": list(options.write),
            "clear": list(options.clear),
            "first_token": first_token,
        },
        "position": position,
        "epsilon": epsilon,
        "length": length,
        "num_sequences": len(tokens_NT),
        "checkpoint": opened.description,
        "weights_digest": opened.digest(),
        "text": str(text),
        "text_digest": text_digest(source_text),
    }


def _cleared(cfg: ModelConfig, name: str, position: int) -> Edits:
    channel, at, block = name.partition("@")
    try:
        numbers = int(channel), [int(block)] if at else None
    except ValueError as error:
        raise InputError(f"--clear {name!r} is not of the form 507 or 507@12") from error
    return interventions.clear(cfg, [numbers[0]], position=position, blocks=numbers[1])


def _at(name: str, option: str, example: str) -> tuple[str, int]:
    before, _, place = name.rpartition("@")
    try:
        return before, int(place)
    except ValueError as error:
        raise InputError(f"{option} {name!r} is not of the form {example}") from error
