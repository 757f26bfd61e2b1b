"""Adapters: few trained parameters for a frozen model, kept as a tree of their own.

====================  ==========================================================  ===================================
method                what is computed                                            parameters of each block
====================  ==========================================================  ===================================
``lora``              x W + (α/r) (x A) B for each chosen matrix                  A [in, r], B [r, out]
``prefix``            attention over P trained keys and values and the input      P keys and P values [G, K]
``prefix-plus``       softmax-attention(x)_i + φ(q_i)ᵀ M                          M [K, K] of each query head
====================  ==========================================================  ===================================

B and M begin at zero, so that the adapted model begins as its base. A is N(0, 1/(3 in)), the variance that PEFT draws
it with; keys and values of a prefix are N(0, 0.02²). Sources: Hu et al., 2021 (LoRA); Li and Liang, 2021 (prefix
tuning); Wang et al., 2025 (Prefix-Tuning+).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from bornbiased_jax import keys
from bornbiased_jax.config import FieldValue, ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import distribution, draw_blocks
from bornbiased_jax.parameters import Params, flatten, parameter_table, unflatten
from bornbiased_jax.schema import LearningRate, Length, Width, within
from bornbiased_jax.schemes import Distribution

Method = Literal["lora", "prefix", "prefix-plus"]
MATRICES = {
    "query": "attention/query",
    "key": "attention/key",
    "value": "attention/value",
    "output": "attention/output",
    "gate": "mlp/gate",
    "up": "mlp/up",
    "down": "mlp/down",
}
"""The matrices that LoRA adapts, in every block: name -> module."""
IN, OUT = "lora_in", "lora_out"


@dataclasses.dataclass(frozen=True)
class Adapter:
    """Parameters that are trained for a frozen model; :func:`lora`, :func:`prefix` and :func:`prefix_plus` make one.

    Attributes:
        method: "lora", "prefix" or "prefix-plus".
        rank, alpha, matrices: of LoRA, r, α and names of ``MATRICES``.
        prefix_length: of a prefix, P.
        feature_map: of Prefix-Tuning+, the name of φ.
    """

    method: Method
    rank: int | None = None
    alpha: float | None = None
    matrices: tuple[str, ...] = ()
    prefix_length: int | None = None
    feature_map: str | None = None

    def to_dict(self) -> dict[str, object]:
        """Return all fields as JSON-ready values."""
        return {**dataclasses.asdict(self), "matrices": list(self.matrices)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Adapter:
        """Invert :meth:`to_dict`.

        Raises:
            InputError: an unknown field or method.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        for name in values:
            if name not in names:
                raise InputError(f"unknown field {name!r} of an adapter: it was written by another version")
        if values.get("method") not in ("lora", "prefix", "prefix-plus"):
            raise InputError(f"unknown adapter {values.get('method')!r}: choose from lora, prefix, prefix-plus")
        return cls(**{**values, "matrices": tuple(values.get("matrices", ()))})


def lora(rank: int, alpha: float | None = None, matrices: tuple[str, ...] = ("query", "value")) -> Adapter:
    """Make the LoRA adapter of some matrices of every block; α is 2 r by default.

    Raises:
        InputError: no matrix, an unknown one or one named twice, or a rank or α out of range.
    """
    # Each matrix once, in the order of the table, whatever order was typed.
    rank = within(Width, rank, "rank")
    for name in matrices:
        if name not in MATRICES:
            raise InputError(f"unknown matrix {name!r}: choose from {', '.join(MATRICES)}")
    if not matrices or len(set(matrices)) < len(matrices):
        raise InputError(f"matrices {','.join(matrices) or '(none)'}: name at least one, and each once")
    alpha = within(LearningRate, float(2 * rank if alpha is None else alpha), "alpha")
    return Adapter("lora", rank=rank, alpha=alpha, matrices=tuple(name for name in MATRICES if name in matrices))


def prefix(length: int) -> Adapter:
    """Make the prefix-tuning adapter with ``length`` trained keys and values in every block.

    Raises:
        InputError: a length out of range.
    """
    return Adapter("prefix", prefix_length=within(Length, length, "prefix_length"))


def prefix_plus(feature_map: str = "elu") -> Adapter:
    """Make the Prefix-Tuning+ adapter with φ "elu", "relu" or "identity"."""
    return Adapter("prefix-plus", feature_map=feature_map)


def adapted(cfg: ModelConfig, adapter: Adapter | None) -> ModelConfig:
    """Return the architecture of an adapted model: that of the base where the adapter can be merged.

    Raises:
        InputError: the base has no attention, or such an adapter already.
    """
    if adapter is None or adapter.method == "lora":
        return cfg
    # What cannot be merged into a matrix is a field of the architecture.
    changes: dict[str, FieldValue] = {"prefix_length": adapter.prefix_length}
    if adapter.method == "prefix-plus":
        changes = {"prefix_memory": adapter.feature_map}
    for name in changes:
        if getattr(cfg, name) not in (None, "none"):
            raise InputError(f"the model has {name}={getattr(cfg, name)} already: adapt the one that it was made from")
    return cfg.replace(**changes)


def adapter_shapes(cfg: ModelConfig, adapter: Adapter) -> Params:
    """Return the tree of an adapter's parameters as ``jax.ShapeDtypeStruct`` leaves [L, …], float32.

    Args:
        cfg: the base.
        adapter: what is trained.

    Raises:
        InputError: the base lacks a matrix, or the rank is above the width of one.
    """
    shapes = {path: shape for path, (shape, _) in _parameters(cfg, adapter).items()}
    return unflatten({path: jax.ShapeDtypeStruct(shape, jnp.float32) for path, shape in shapes.items()})


def _parameters(cfg: ModelConfig, adapter: Adapter) -> dict[str, tuple[tuple[int, ...], float]]:
    """Return the shape and the initial standard deviation of each parameter, by path."""
    table = parameter_table(cfg)
    if adapter.method != "lora":
        # A memory is a constant, zero.
        adapted_rows = parameter_table(adapted(cfg, adapter)).items()
        return {path: (row.shape, distribution(cfg, row).std) for path, row in adapted_rows if path not in table}
    assert adapter.rank is not None
    parameters: dict[str, tuple[tuple[int, ...], float]] = {}
    for name in adapter.matrices:
        module = f"blocks/{MATRICES[name]}"
        if f"{module}/kernel" not in table:
            have = ", ".join(name for name, place in MATRICES.items() if f"blocks/{place}/kernel" in table)
            raise InputError(f"the model has no matrix {name}: choose from {have}")
        if table[f"{module}/kernel"].in_expert:
            raise InputError(f"LoRA of {name} in a mixture of experts is not supported: choose matrices of attention")
        # A [in, r] and B [r, out] of every block; B begins at zero.
        L, width, out = table[f"{module}/kernel"].shape
        if adapter.rank > min(width, out):
            raise InputError(
                f"rank={adapter.rank} is above the width of {name} ({width} by {out}): lower it, or fine-tune in full"
            )
        parameters[f"{module}/{IN}"] = (L, width, adapter.rank), 1 / math.sqrt(3 * width)
        parameters[f"{module}/{OUT}"] = (L, adapter.rank, out), 0.0
    return dict(sorted(parameters.items()))


def init_adapter(cfg: ModelConfig, adapter: Adapter, seed: int | jax.Array) -> Params:
    """Draw the initial adapter: a pure function of the seed, from a stream of keys of its own.

    Args:
        cfg: the base.
        adapter: what is trained.
        seed: 0 to 2³² − 1; may be traced.
    """
    # A stream of its own: the same seed draws the base, and must not draw the adapter alike.
    key = keys.stream_key(seed, "adapter")
    flat = {}
    for path, (shape, std) in _parameters(cfg, adapter).items():
        # As for the base, a key for each path; what begins at zero needs none.
        leaf = keys.leaf_key(key, path)
        dist = Distribution("normal", (std,))
        flat[path] = draw_blocks(leaf, shape[1:], dist, shape[0]) if std else jnp.zeros(shape, jnp.float32)
    return unflatten(flat)


def attach(adapter: Adapter, frozen: Params, trained: Params) -> Params:
    """Combine base and adapter into parameters for :func:`bornbiased_jax.model.apply`, without merging them.

    A pure function, differentiable in both. Of LoRA the factor α/r is taken into B.

    Args:
        adapter: its settings.
        frozen: the base.
        trained: the adapter, as :func:`init_adapter` lays it out.
    """
    # x W + (α/r) (x A) B: the layer multiplies with A and B, and the scale goes into B.
    flat = flatten(trained)
    if adapter.method == "lora":
        flat = {path: leaf * _scale(adapter) if path.endswith(OUT) else leaf for path, leaf in flat.items()}
    return unflatten({**flatten(frozen), **flat})


def merge(adapter: Adapter, frozen: Params, trained: Params) -> Params:
    """Merge an adapter into the base as the adapted architecture has it, NumPy float32: LoRA added to the matrices.

    What cannot be added to a matrix stays apart from it (:func:`adapted` says so).
    """
    flat = {path: np.asarray(leaf, np.float32) for path, leaf in flatten(trained).items()}
    merged = {path: merge_parameter(adapter, path, leaf, flat) for path, leaf in flatten(frozen).items()}
    return unflatten(merged if adapter.method == "lora" else {**merged, **flat})


def merge_parameter(adapter: Adapter, path: str, frozen: ArrayLike, trained: Mapping[str, ArrayLike]) -> np.ndarray:
    """Merge one parameter of the base with the adapter's factors for it, if there are any.

    Args:
        adapter: its settings.
        path: of the parameter.
        frozen: the parameter.
        trained: the adapter, flat.
    """
    # Only matrices that have factors change.
    leaf = np.asarray(frozen, np.float32)
    module = path.rpartition("/")[0]
    if not path.endswith("/kernel") or f"{module}/{IN}" not in trained:
        return leaf
    # W + (α/r) A B, of all blocks at once.
    product: np.ndarray = np.matmul(trained[f"{module}/{IN}"], trained[f"{module}/{OUT}"])
    return leaf + np.float32(_scale(adapter)) * product


def _scale(adapter: Adapter) -> float:
    assert adapter.rank is not None and adapter.alpha is not None
    return adapter.alpha / adapter.rank


def count_trained(cfg: ModelConfig, adapter: Adapter) -> int:
    """Count the scalars that an adapter trains."""
    return sum(math.prod(shape) for shape, _ in _parameters(cfg, adapter).values())


def within_budget(cfg: ModelConfig, adapter: Adapter, budget: int) -> Adapter:
    """Return the adapter with the largest rank or prefix whose parameters are at most ``budget``.

    Args:
        cfg: the base.
        adapter: the method with its matrices or φ; its rank or length is replaced. α keeps its ratio to the rank.
        budget: numbers to train, as :func:`count_trained` counts them.

    Raises:
        InputError: the budget is too small for any, or for the memory of Prefix-Tuning+, which has one size.

    >>> from bornbiased_jax.config import preset
    >>> cfg = preset("llama-tiny")
    >>> memory = count_trained(cfg, prefix_plus())
    >>> same = within_budget(cfg, prefix(1), memory)
    >>> same.prefix_length, count_trained(cfg, same) == memory
    (16, True)
    """
    if adapter.method == "lora":
        assert adapter.rank is not None and adapter.alpha is not None
        smallest = dataclasses.replace(adapter, rank=1, alpha=_scale(adapter))
    elif adapter.method == "prefix":
        smallest = dataclasses.replace(adapter, prefix_length=1)
    else:
        smallest = adapter
    # Parameters grow in proportion to the rank or the length.
    least = count_trained(cfg, smallest)
    if least > budget:
        raise InputError(f"{adapter.method} trains at least {least:,} parameters of this model, more than {budget:,}")
    if adapter.method == "lora":
        # No matrix has a rank above its narrower side; at rank 1 that of factors is their longer one.
        narrowest = min(max(shape[1:]) for shape, _ in _parameters(cfg, smallest).values())
        rank = min(budget // least, narrowest)
        return dataclasses.replace(smallest, rank=rank, alpha=_scale(smallest) * rank)
    return dataclasses.replace(smallest, prefix_length=budget // least) if adapter.method == "prefix" else adapter
