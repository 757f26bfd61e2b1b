"""Probe inputs by the name that is typed."""

from __future__ import annotations

from pathlib import Path

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.probes.inputs.kinds import RANDOM_KINDS, Inputs, check_sizes, random_inputs
from bornbiased_jax.probes.inputs.windows import text
from bornbiased_jax.text import Tokenizer, tokenizer_for
from bornbiased_jax.text.documents import check_source


def parse_inputs(
    spec: str,
    *,
    num_inputs: int,
    seq_len: int,
    cfg: ModelConfig,
    seed: int = 0,
    tokenizer: Tokenizer | str | Path | None = None,
) -> Inputs:
    """Parse ``--inputs``: ``tokens``, ``gaussian``, ``text:PATH``, ``builtin:prose`` or ``builtin:code``.

    Args:
        spec: the name.
        num_inputs: N.
        seq_len: T.
        cfg: of the model that is to be probed.
        seed: of the stream "inputs".
        tokenizer: for text; a name or path as in :func:`bornbiased_jax.text.tokenizer_for`, or None for the
            BPE of the model's vocabulary size trained on ``builtin:prose``.

    Raises:
        InputError: an unknown name, sizes below 1, or text that cannot be used.

    Example:
        >>> from bornbiased_jax.config import preset
        >>> parse_inputs("tokens", num_inputs=2, seq_len=3, cfg=preset("gpt2-tiny")).batch(0, 2).shape
        (2, 3)
    """
    if spec in RANDOM_KINDS:
        inputs = random_inputs(spec, num_inputs, seq_len, cfg, seed=seed)
    else:
        source = _text_source(spec)
        check_sizes(num_inputs=num_inputs, seq_len=seq_len)
        if tokenizer is None or isinstance(tokenizer, (str, Path)):
            tokenizer = tokenizer_for(tokenizer, cfg.vocab_size)
        inputs = text(source, tokenizer, num_inputs=num_inputs, seq_len=seq_len, vocab_size=cfg.vocab_size)
    inputs.check_fits(cfg)
    return inputs


def outline_inputs(spec: str, *, num_inputs: int, seq_len: int, cfg: ModelConfig) -> Inputs:
    """Make inputs of the sizes of :func:`parse_inputs`; in the place of a text, which is not read, stand random ids.

    Args:
        spec: as of :func:`parse_inputs`.
        num_inputs: N.
        seq_len: T.
        cfg: the architecture that the inputs are for.

    Raises:
        InputError: an unknown name, sizes below 1 or that do not fit the model, or a text that is not there.
    """
    if spec not in RANDOM_KINDS:
        check_source(_text_source(spec))
    inputs = random_inputs(spec if spec in RANDOM_KINDS else "tokens", num_inputs, seq_len, cfg)
    inputs.check_fits(cfg)
    return inputs


def _text_source(spec: str) -> str:
    source = spec.removeprefix("text:")
    if not source or not spec.startswith(("text:", "builtin:")):
        raise InputError(
            f"unknown inputs {spec!r}: name {', '.join(RANDOM_KINDS)}, text:PATH, builtin:prose or builtin:code"
        )
    return source
