"""Decoding token by token, with a cache of keys and values: the most probable token, or one that is drawn."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import schema
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.keys import check_seed, stream_key
from bornbiased_jax.model import Cache, ForwardOptions, apply, empty_cache
from bornbiased_jax.model.limits import check_tokens
from bornbiased_jax.model.memory import cache_bytes, check_forward
from bornbiased_jax.model.streaming import check_overflow
from bornbiased_jax.parameters import Params
from bornbiased_jax.text import Tokenizer


@dataclasses.dataclass(frozen=True)
class Sampling:
    """The rule by which the next token is chosen.

    Attributes:
        temperature: logits are divided by it before one token is drawn; 0 takes the most probable one.
        top_k: tokens are drawn among so many of the most probable; None: among all.
        top_p: … among the most probable that together have this probability, at the temperature.
        seed: of the draws.

    Raises:
        InputError: a number out of range.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        schema.within(schema.Temperature, self.temperature, "temperature")
        schema.within(schema.TopProbability, self.top_p, "top_p")
        if self.top_k is not None:
            schema.within(schema.Count, self.top_k, "top_k")
        if self.temperature == 0 and (self.top_k is not None or self.top_p < 1.0):
            raise InputError("top_k and top_p choose what is drawn from: give a temperature above 0 too")
        check_seed(self.seed)


GREEDY = Sampling()


def generate(
    checkpoint: Checkpoint,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    *,
    stop_id: int | None = None,
    sampling: Sampling = GREEDY,
) -> list[int]:
    """Continue a prompt, greedily unless sampling is asked for.

    Args:
        checkpoint: the model.
        prompt_ids: at least one token id.
        max_new_tokens: how many to add at most.
        stop_id: a token after which nothing more is added.
        sampling: how each token is chosen.

    Returns:
        The prompt and its continuation (with the stop token, if it came).

    Raises:
        InputError: an empty prompt, an id outside the vocabulary, or more positions than the model has.
        Overflow: logits that are not finite.

    Example:
        >>> from bornbiased_jax.checkpoints import open_checkpoint
        >>> initial = open_checkpoint("seed:0@gpt2-tiny,num_layers=1,d_model=16,num_heads=2,d_ff=32,vocab_size=32")
        >>> ids = generate(initial, [5, 17], max_new_tokens=3)
        >>> ids[:2], len(ids)
        ([5, 17], 5)
    """
    cfg = checkpoint.cfg
    prompt = [int(token) for token in prompt_ids]
    if not prompt:
        raise InputError("the prompt is empty: give at least one token")
    check_tokens(prompt, cfg.vocab_size)
    if max_new_tokens < 0:
        raise InputError(f"max_new_tokens={max_new_tokens} is negative: give a number of tokens")
    if len(prompt) + max_new_tokens > cfg.max_seq_len:
        raise InputError(
            f"a prompt of {len(prompt)} and {max_new_tokens} new tokens exceed the model's {cfg.max_seq_len} "
            "positions: shorten one of them"
        )
    if max_new_tokens == 0:
        return prompt
    # In the weights' own type; the cache twice, before and after a token.
    itemsize = jnp.dtype(checkpoint.dtype or jnp.float32).itemsize
    caches = 2 * cache_bytes(cfg, 1, len(prompt) + max_new_tokens, itemsize)
    check_forward(cfg, 1, len(prompt), logits=1, also=caches, itemsize=itemsize)
    check_overflow(cfg, checkpoint.params())
    stop = -1 if stop_id is None else stop_id
    key = stream_key(sampling.seed, "generate")
    first = np.asarray(prompt, np.int32)[None]
    # The key alone holds the seed: one program for all seeds.
    unseeded = dataclasses.replace(sampling, seed=GREEDY.seed)
    tokens, count = _decode(cfg, checkpoint.params(), first, stop, key, max_new_tokens, unseeded)
    return prompt + [int(token) for token in np.asarray(tokens)[: int(count)]]


def generate_text(
    checkpoint: Checkpoint, prompt: str, max_new_tokens: int, *, sampling: Sampling = GREEDY
) -> tuple[list[int], str]:
    """Continue a text, until the tokenizer's end of text at the latest; greedily unless sampling is asked for.

    The token that the tokenizer's models expect before a text is put there, if there is one.

    Returns:
        All ids, and the text of prompt and continuation.

    Raises:
        InputError: the checkpoint has no tokenizer, or as :func:`generate`.
    """
    tokenizer = checkpoint.tokenizer
    if tokenizer is None:
        raise InputError(f"{checkpoint.reference} has no tokenizer: give token ids in place of text (--prompt-ids)")
    first = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
    ids = first + [int(token) for token in tokenizer.encode(prompt)]
    output_ids = generate(checkpoint, ids, max_new_tokens, stop_id=tokenizer.eos_id, sampling=sampling)
    text_ids = output_ids[:-1] if len(output_ids) > len(ids) and output_ids[-1] == tokenizer.eos_id else output_ids
    return output_ids, text_of(tokenizer, text_ids[len(first) :])


def text_of(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Decode ids of a model whose table may be wider than its tokenizer: U+FFFD for each id that the latter lacks."""
    parts: list[list[int]] = [[]]
    for token in ids:
        if token < tokenizer.vocab_size:
            parts[-1].append(token)
        else:
            parts.append([])
    return "\ufffd".join(map(tokenizer.decode, parts))


def next_token(logits_V: jax.Array, key: jax.Array, sampling: Sampling) -> jax.Array:
    """Choose a token by its logits, int32."""
    if sampling.temperature == 0:
        return jnp.argmax(logits_V).astype(jnp.int32)
    # Less the largest logit, and by a normal float32, so that no temperature makes infinite ones.
    below_V = logits_V.astype(jnp.float32) - jnp.max(logits_V)
    scaled_V = below_V / max(sampling.temperature, float(np.finfo(np.float32).tiny))
    # Tokens from the most probable; those beyond k, or beyond probability p of those before them, are not drawn.
    order_V = jnp.argsort(-scaled_V)
    sorted_V = scaled_V[order_V]
    probability_V = jax.nn.softmax(sorted_V)
    is_drawn_V = jnp.cumsum(probability_V) - probability_V < sampling.top_p
    is_drawn_V &= jnp.arange(len(sorted_V)) < (sampling.top_k or len(sorted_V))
    return order_V[jax.random.categorical(key, jnp.where(is_drawn_V, sorted_V, -jnp.inf))].astype(jnp.int32)


class _DecodingState(NamedTuple):
    """Tokens so far, as the loop carries them.

    Attributes:
        tokens: all [max_new_tokens], -1 where none is yet.
        num_tokens: of those that are there.
        last: the latest of them.
        cache: keys and values of all tokens before the latest.
    """

    tokens: jax.Array
    num_tokens: jax.Array
    last: jax.Array
    cache: Cache | None


@functools.partial(jax.jit, static_argnames=("cfg", "max_new_tokens", "sampling"))
def _decode(
    cfg: ModelConfig,
    params: Params,
    prompt_1T: jax.Array,
    stop: int,
    key: jax.Array,
    max_new_tokens: int,
    sampling: Sampling,
) -> tuple[jax.Array, jax.Array]:
    """Return new tokens [max_new_tokens], and how many of them count. Compiled once a prompt length and sampling."""
    cache = empty_cache(cfg, 1, prompt_1T.shape[1] + max_new_tokens, params["embed"]["embedding"].dtype)

    def choose(logits_1TV: jax.Array | None, number: jax.Array | int) -> jax.Array:
        assert logits_1TV is not None
        return next_token(logits_1TV[0, -1], jax.random.fold_in(key, number), sampling)

    first = apply(cfg, params, prompt_1T, positions="last", options=ForwardOptions(cache=cache))
    token = choose(first.logits_BTV, 0)
    tokens = jnp.full((max_new_tokens,), -1, jnp.int32).at[0].set(token)

    def is_unfinished(state: _DecodingState) -> jax.Array:
        goes_on: jax.Array = (state.num_tokens < max_new_tokens) & (state.last != stop)
        return goes_on

    def step(state: _DecodingState) -> _DecodingState:
        out = apply(cfg, params, state.last[None, None], positions="last", options=ForwardOptions(cache=state.cache))
        token = choose(out.logits_BTV, state.num_tokens)
        return _DecodingState(state.tokens.at[state.num_tokens].set(token), state.num_tokens + 1, token, out.cache)

    state = _DecodingState(tokens, jnp.asarray(1, jnp.int32), token, first.cache)
    generated = jax.lax.while_loop(is_unfinished, step, state)
    return generated.tokens, generated.num_tokens
