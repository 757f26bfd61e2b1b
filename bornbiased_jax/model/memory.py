"""Memory and operations of a forward pass, counted from the configuration before anything is allocated.

Estimates of memory are from below: what they exceed cannot be done. They count the arrays that are alive together at
the widest place of a forward pass, in float32 unless told otherwise, and leave out what compilers add.
"""

from __future__ import annotations

import math

import jax

from bornbiased_jax import hardware
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.model.attention import row_blocks
from bornbiased_jax.parameters import Parameter, parameter_table

FLOAT = 4
"""Bytes of a number."""


def weights_bytes(cfg: ModelConfig) -> int:
    """Count the bytes of all parameters.

    Example:
        >>> from bornbiased_jax.config import preset
        >>> from bornbiased_jax.init import parameter_shapes
        >>> from bornbiased_jax.parameters import count_parameters
        >>> cfg = preset("gpt2-tiny")
        >>> weights_bytes(cfg) == 4 * count_parameters(parameter_shapes(cfg))
        True
    """
    return FLOAT * sum(math.prod(row.shape) for row in parameter_table(cfg).values())


def largest_tensor_bytes(cfg: ModelConfig) -> int:
    """Count the bytes of the largest parameter, of one block where it lies in the blocks."""
    rows = parameter_table(cfg).values()
    return FLOAT * max(math.prod(row.block_shape) for row in rows)


def streamed_bytes(cfg: ModelConfig) -> int:
    """Count the bytes of weights held at once where blocks are read one at a time: two blocks, or the vocabulary.

    One block is applied while the next is read; the embedding is needed before the first, the head after the last.

    Example:
        >>> from bornbiased_jax.config import preset
        >>> cfg = preset("gpt2-1.2b")
        >>> 11 < weights_bytes(cfg) / streamed_bytes(cfg) < 13
        True
    """
    # Two blocks at the widest place between, or the larger of embedding and head before and after.
    rows = parameter_table(cfg).values()
    block = sum(math.prod(row.shape[1:]) for row in rows if row.is_stacked)
    outside = max(math.prod(row.shape) for row in rows if not row.is_stacked)
    return FLOAT * max(2 * block, outside)


def forward_bytes(
    cfg: ModelConfig,
    sequences: int,
    length: int,
    *,
    logits: int = 0,
    all_weights: bool = False,
    keep_activations: bool = False,
    itemsize: int = FLOAT,
) -> int:
    """Estimate the bytes of a forward pass without the parameters.

    Args:
        cfg: the architecture.
        sequences: in one batch.
        length: of each, in tokens.
        logits: at how many positions of a sequence they are made.
        all_weights: attention weights of all queries at once, as where they are captured; else block of rows by block.
        keep_activations: of all blocks, as for a backward pass; else those of the widest block.
        itemsize: bytes of a number of the computation.
    """
    # Activations of one position: queries, keys, values and their aggregate; the MLP; the residual stream.
    heads = cfg.num_heads * cfg.key_dim + 2 * cfg.kv_heads * cfg.key_dim
    attention = heads + cfg.num_heads * cfg.key_dim if cfg.attention else 0
    # A token's experts together, then the shared expert.
    experts = 1 if cfg.num_experts is None else cfg.experts_per_token
    arrays = 2 + cfg.gated_mlp if cfg.mlp else 0
    hidden, shared = arrays * experts * cfg.d_ff, arrays * (cfg.shared_expert_width or 0)
    stream = 2 * cfg.d_model
    block = stream + max(attention, hidden, shared)
    # A backward pass keeps products with weights alone of the other blocks, and computes those of experts again.
    dense = (1 + cfg.gated_mlp) * ((cfg.shared_expert_width or 0) if cfg.num_experts else cfg.d_ff) * cfg.mlp
    kept = (cfg.num_layers - 1) * (stream + heads * cfg.attention + dense) if keep_activations else 0
    numbers = sequences * length * (block + kept)
    # Attention weights, of all queries or of the widest block of rows. Layers that differ are one program, of all keys;
    # captured weights are those of all keys, also where a window leaves zeros.
    if cfg.attention:
        blocks = row_blocks(length, length, cfg.window if cfg.is_local is None else None)
        rows = length**2 if all_weights else max((a.stop - a.start) * (b.stop - b.start) for a, b in blocks)
        numbers += sequences * cfg.num_heads * rows
    # Logits are made after the blocks. On the CPU a product with experts copies the rows for each of them before, zeros
    # where another one was chosen.
    has_copies = cfg.num_experts is not None and jax.default_backend() == "cpu"
    copies = (cfg.num_experts or 0) * experts * max(cfg.d_ff, cfg.d_model) if has_copies else 0
    return itemsize * (numbers + sequences * max(logits * cfg.vocab_size, length * copies))


def cache_bytes(cfg: ModelConfig, sequences: int, length: int, itemsize: int = FLOAT) -> int:
    """Count the bytes of the keys and values of ``length`` positions, all blocks."""
    return itemsize * 2 * cfg.num_layers * sequences * length * cfg.kv_heads * cfg.key_dim


def check_weights(cfg: ModelConfig, *, copies: float = 1) -> None:
    """Refuse a model whose parameters do not fit.

    Args:
        cfg: the architecture.
        copies: how many times they are held.

    Raises:
        InputError: they do not.
    """
    number = weights_bytes(cfg) // FLOAT
    hardware.check_memory(
        copies * FLOAT * number,
        f"a model of {number:,} parameters (num_layers={cfg.num_layers}, d_model={cfg.d_model}, "
        f"vocab_size={cfg.vocab_size})",
        "choose a smaller one",
    )


def check_forward(
    cfg: ModelConfig,
    sequences: int,
    length: int,
    *,
    logits: int = 0,
    all_weights: bool = False,
    also: float = 0.0,
    itemsize: int = FLOAT,
) -> None:
    """Refuse a forward pass that does not fit (:func:`forward_bytes`) together with ``also`` more bytes.

    Raises:
        InputError: it does not; the sentence says what to lower.
    """
    # With what is held during the pass, such as logits of a reference.
    needed = also + forward_bytes(cfg, sequences, length, logits=logits, all_weights=all_weights, itemsize=itemsize)
    many = "sequence" if sequences == 1 else "sequences"
    remedy = "ask for shorter sequences" if sequences == 1 else "ask for shorter sequences or a smaller batch"
    hardware.check_memory(needed, f"a forward pass of {sequences:,} {many} of {length:,} tokens", remedy)


def kernels(cfg: ModelConfig) -> list[Parameter]:
    """Return the matrices that multiply in a block: those of linear maps, experts and gates."""
    return [row for row in parameter_table(cfg).values() if row.is_stacked and row.leaf == "kernel"]


def needed_operations(cfg: ModelConfig, seq_len: int) -> float:
    """Count the operations needed for the last position's prediction of one sequence.

    Full blocks but for the last one, which needs keys and values of all positions and one query row, one
    output row and one MLP position; causal attention needs half of its square, less in a window; the head needs one
    position.
    """
    position, keys_and_values, query = _of_a_position(cfg)
    *before, _ = seen_keys(cfg, seq_len)
    *_, last_row = widths_seen(cfg, seq_len)
    rows = 2 * query * (sum(before) + last_row)
    positions = (cfg.num_layers - 1) * seq_len + 1
    return 2.0 * (
        positions * position + cfg.num_layers * seq_len * keys_and_values + rows + cfg.d_model * cfg.vocab_size
    )


def loop_operations(cfg: ModelConfig, seq_len: int) -> float:
    """Count the operations of a plain forward pass: every block at all positions, the head at the last one."""
    position, keys_and_values, query = _of_a_position(cfg)
    blocks = cfg.num_layers * seq_len * (position + keys_and_values) + 2 * query * sum(seen_keys(cfg, seq_len))
    return 2.0 * (blocks + cfg.d_model * cfg.vocab_size)


def _of_a_position(cfg: ModelConfig) -> tuple[int, int, int]:
    """Count a position's multiplications with a block's matrices but keys and values, with those, and query width."""
    # Matrices of keys and values are counted by themselves.
    of_keys = [row for row in kernels(cfg) if row.group in ("key", "value", "value_gate")]
    keys_and_values = sum(multiplications(cfg, row) for row in of_keys)
    position = sum(multiplications(cfg, row) for row in kernels(cfg)) - keys_and_values
    return position, keys_and_values, cfg.num_heads * cfg.key_dim * cfg.attention


def widths_seen(cfg: ModelConfig, length: int) -> list[int]:
    """Return how many of ``length`` positions the last query sees in each layer: all, or those in a window."""
    is_local = cfg.is_local or (True,) * cfg.num_layers
    return [min(length, cfg.window or length) if local else length for local in is_local]


def seen_keys(cfg: ModelConfig, length: int) -> list[int]:
    """Count the pairs of a query and a key that it sees, of ``length`` positions, in each layer.

    Example:
        >>> from bornbiased_jax.config import preset
        >>> seen_keys(preset("gemma3-tiny", num_layers=2, attention_pattern="lg", window=2), 4)
        [7, 10]
    """
    # Half of a square for the beginning, as many keys as the window is wide for each later query.
    return [width * length - width * (width - 1) // 2 for width in widths_seen(cfg, length)]


def multiplications(cfg: ModelConfig, matrix: Parameter) -> int:
    """Count the multiplications of one token with a matrix of one block; of experts with those that it chooses."""
    # A router sends each token to a few experts of all; a value gate multiplies each of the heads' values.
    size = math.prod(matrix.block_shape) * (cfg.kv_heads if matrix.group == "value_gate" else 1)
    return size // cfg.num_experts * cfg.experts_per_token if cfg.num_experts and matrix.in_expert else size
