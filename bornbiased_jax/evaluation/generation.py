"""Greedy decoding: the most probable token, again and again, with a cache of keys and values."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.model import ForwardOptions, apply, empty_cache
from bornbiased_jax.model.limits import check_tokens
from bornbiased_jax.model.memory import cache_bytes, check_forward
from bornbiased_jax.parameters import Params


def generate(
    checkpoint: Checkpoint, prompt_ids: Sequence[int], max_new_tokens: int, *, stop_id: int | None = None
) -> list[int]:
    """Continue a prompt greedily.

    Args:
        checkpoint: the model.
        prompt_ids: at least one token id.
        max_new_tokens: how many to add at most.
        stop_id: a token after which nothing more is added.

    Returns:
        The prompt and its continuation (with the stop token, if it came).

    Raises:
        InputError: an empty prompt, an id outside the vocabulary, or more positions than the model has.

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
    check_forward(cfg, 1, len(prompt), logits=1, also=2 * cache_bytes(cfg, 1, len(prompt) + max_new_tokens))
    stop = -1 if stop_id is None else stop_id
    tokens, count = _decode(cfg, checkpoint.params(), np.asarray(prompt, np.int32)[None], stop, max_new_tokens)
    return prompt + [int(token) for token in np.asarray(tokens)[: int(count)]]


def generate_text(checkpoint: Checkpoint, prompt: str, max_new_tokens: int) -> tuple[list[int], str]:
    """Continue a text greedily, until the tokenizer's end of text at the latest.

    The token that the tokenizer's models expect before a text is put there, if there is one.

    Returns:
        All ids, and the text of prompt and continuation.

    Raises:
        InputError: the checkpoint has no tokenizer, or as :func:`generate`.
    """
    tokenizer = checkpoint.tokenizer
    if tokenizer is None:
        raise InputError(f"{checkpoint.reference} has no tokenizer: give token ids in place of text")
    first = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
    ids = first + [int(token) for token in tokenizer.encode(prompt)]
    output_ids = generate(checkpoint, ids, max_new_tokens, stop_id=tokenizer.eos_id)
    text_ids = output_ids[:-1] if len(output_ids) > len(ids) and output_ids[-1] == tokenizer.eos_id else output_ids
    return output_ids, tokenizer.decode(text_ids[len(first) :])


@functools.partial(jax.jit, static_argnames=("cfg", "max_new_tokens"))
def _decode(
    cfg: ModelConfig, params: Params, prompt_1T: jax.Array, stop: int, max_new_tokens: int
) -> tuple[jax.Array, jax.Array]:
    """Return new tokens [max_new_tokens], and how many of them count. Compiled once a prompt length."""
    cache = empty_cache(cfg, 1, prompt_1T.shape[1] + max_new_tokens, params["embed"]["embedding"].dtype)

    def choose(logits_1TV: jax.Array | None) -> jax.Array:
        assert logits_1TV is not None
        return jnp.argmax(logits_1TV[0, -1]).astype(jnp.int32)

    first = apply(cfg, params, prompt_1T, positions="last", options=ForwardOptions(cache=cache))
    token = choose(first.logits_BTV)
    tokens = jnp.full((max_new_tokens,), -1, jnp.int32).at[0].set(token)

    def is_unfinished(state: tuple[Any, ...]) -> jax.Array:
        _, count, last, _ = state
        goes_on: jax.Array = (count < max_new_tokens) & (last != stop)
        return goes_on

    def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
        tokens, count, last, cache = state
        out = apply(cfg, params, last[None, None], positions="last", options=ForwardOptions(cache=cache))
        token = choose(out.logits_BTV)
        return tokens.at[count].set(token), count + 1, token, out.cache

    state: tuple[Any, ...] = (tokens, jnp.asarray(1, jnp.int32), token, first.cache)
    tokens, count, _, _ = jax.lax.while_loop(is_unfinished, step, state)
    return tokens, count
