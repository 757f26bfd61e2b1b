"""Identity of two checkpoints: by source, files, tensors, and the function they compute.

Equal matrices make no equal function: the same weights under another activation compute something else. So settings
that change numbers are named with every identity, and logits on a few tokens identify a copy whose weights were
rotated or permuted.
"""

from __future__ import annotations

import dataclasses
import filecmp
import functools
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np

from bornbiased_jax import hardware, progress
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.roles import Role, RoleSource, path_in_words
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.fields import unread_fields
from bornbiased_jax.lineage.blockwise import logits_memory, probe_ids, probe_outputs
from bornbiased_jax.lineage.fingerprints import LARGE
from bornbiased_jax.lineage.roundings import Explanations, pieces
from bornbiased_jax.parameters import parameter_table

NEAR = 0.05
"""Models are nearly equal where no number differs by more than this fraction of its tensor's root mean square."""
SAME_LOGITS = 1e-3
"""Logits agree up to this fraction of their standard deviation: what float32 leaves of a rotated copy."""
SAME_WEIGHTS = "the two models have the same weights, tensor by tensor"
# Settings that compute nothing by themselves: how weights were drawn, and what the shapes of parameters determine.
_NEUTRAL = {
    *("init", "init_groups", "num_layers", "d_model", "d_ff", "shared_expert_width", "vocab_size", "tie_embeddings"),
    *("bias", "qkv_bias"),
}
# GGUF holds settings in single precision.
_SINGLE = 1e-6
# Biases and norms of heads of a rotated or reordered copy have the same size, up to what float32 leaves.
_SAME_SIZE = 1e-3
# Logits that vary less than this fraction of their size do not depend on the tokens.
_CONSTANT = 1e-5


@dataclasses.dataclass(frozen=True)
class Identity:
    """In which way two models are one.

    Attributes:
        kind: what is the same; "rounded" where tensors are equal after rounding.
        sentence: the same for a reader.
    """

    kind: Literal["files", "tensors", "rounded", "logits"]
    sentence: str


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference of two models with the same tensors, measured on every number.

    Attributes:
        largest: the largest difference, as a fraction of its tensor's root mean square.
        path: of that tensor.
        rounding: what makes all tensors equal once both are rounded to it, in words; None where nothing does.
        alone: by side, "base" or "suspect", paths of tensors outside the blocks that it alone has.
    """

    largest: float
    path: str
    rounding: str | None
    alone: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)

    @property
    def kind(self) -> Literal["tensors", "rounded"] | None:
        """In which way the weights are one: equal, or equal after rounding; None where they are nearly equal."""
        if self.largest == 0.0:
            return "tensors"
        return None if self.rounding is None else "rounded"

    @property
    def sentence(self) -> str:
        """A sentence on how equal the weights are."""
        if self.largest == 0.0:
            return f"{SAME_WEIGHTS}{self._scope}"
        equality = "nearly equal" if self.rounding is None else f"equal after rounding to {self.rounding}"
        return (
            f"the weights are {equality} (largest difference {self.largest:.2g} of its tensor's root mean square, in "
            f"{path_in_words(self.path)}){self._scope}"
        )

    @property
    def _scope(self) -> str:
        """Name the tensors that one model alone has, after a sentence about those that both have."""
        owners = [
            f"the {side} alone has {' and '.join(map(path_in_words, paths))}" for side, paths in self.alone.items()
        ]
        return f", in all tensors that both have: {', and '.join(owners)}" if owners else ""


def identify(
    base: Checkpoint | None, suspect: Checkpoint | None, difference: Difference | None = None, *, with_logits: bool
) -> Identity | None:
    """Identify two checkpoints as one model, by source, files, tensors or logits; None where they are not.

    Args:
        base, suspect: the models; None for one that this package cannot run.
        difference: of their tensors, where it was measured.
        with_logits: compare logits where nothing else identifies them.
    """
    kind = None if difference is None else difference.kind
    if base is None or suspect is None:
        return None if kind is None or difference is None else Identity(kind, difference.sentence)
    # By source and files.
    has_same_files = same_files(base, suspect)
    source = _same_source(base, suspect)
    if source is not None:
        return Identity("files" if has_same_files else "tensors", source)
    settings = differing_settings(base.cfg, suspect.cfg)
    differences = [f"settings differ: {', '.join(settings)}"] if settings else []
    if has_same_files:
        return Identity("files", "; ".join(["the two models' weight files are the same, byte for byte", *differences]))
    # By tensors, equal or equal after rounding.
    if difference is not None:
        # Models that are nearly equal in their numbers are not called the same by their logits.
        return None if kind is None else Identity(kind, "; ".join([difference.sentence, *differences]))
    if with_logits and same_logits(base, suspect):
        differences += _differing_vectors(base.by_role(), suspect.by_role())
        tail = f"; {'; '.join(differences)}" if differences else ": the same function, written otherwise"
        return Identity("logits", f"the two models give the same logits on random tokens{tail}")
    return None


def _same_source(base: Checkpoint, suspect: Checkpoint) -> str | None:
    """Describe base and suspect as one and the same model, by where they come from; None where they are not."""
    is_seed_or_run = base.kind == suspect.kind and base.kind in ("birth", "run") and base.cfg == suspect.cfg
    if is_seed_or_run and base.description == suspect.description:
        return f"the base is the suspect: both are the {base.description}"
    base_files, suspect_files = ([path.resolve() for path in reader.files] for reader in (base, suspect))
    if base_files and base_files == suspect_files and base.cfg == suspect.cfg:
        return f"the base is the suspect: both are read from {base.files[0]}"
    return None


def same_files(base: Checkpoint, suspect: Checkpoint) -> bool:
    """Return whether the files that hold the weights are the same, byte for byte."""
    if not base.files or len(base.files) != len(suspect.files):
        return False
    return all(filecmp.cmp(*paths, shallow=False) for paths in zip(base.files, suspect.files, strict=True))


# ---------------------------------------------------------------------------------------------------------------------
# Tensors


def tensor_difference(
    base: RoleSource,
    suspect: RoleSource,
    advance: Callable[[int], None] = lambda _count: None,
    equal: Collection[str] = (),
) -> Difference | None:
    """Measure how far two models differ, tensor by tensor; None where they are not even nearly equal.

    The first tensor that differs too much ends it, so that different models cost a tensor or two. Of the tensors
    outside the blocks one model may have fewer, as one without a head has: then the others are measured.

    Args:
        base, suspect: the models.
        advance: called with 1 for each tensor that was compared.
        equal: paths of tensors that are known to be equal, which are not read.
    """
    # The same blocks with the same shapes, or no comparison.
    base_roles, suspect_roles = ({role.path: role for role in source.roles} for source in (base, suspect))
    sides = (("base", base_roles, suspect_roles), ("suspect", suspect_roles, base_roles))
    alone = {
        side: [path for path in roles if path not in other] for side, roles, other in sides if roles.keys() - other
    }
    if any((base_roles | suspect_roles)[path].block is not None for paths in alone.values() for path in paths):
        return None
    pairs = [(role, suspect_roles[role.path]) for role in base.roles if role.path in suspect_roles]
    if any(base.array_shape(role) != suspect.array_shape(suspect_role) for role, suspect_role in pairs):
        return None
    unequal = [(role, suspect_role) for role, suspect_role in pairs if role.path not in equal]
    advance(len(base.roles) - len(unequal))
    largest, path, explanations = 0.0, "", Explanations()
    for role, tensors in _read_ahead(base, suspect, unequal):
        for name, base_tensor, suspect_tensor in tensors:
            relative = _measured(base_tensor, suspect_tensor, explanations, is_scale=role.leaf == "scale")
            if relative is None:
                return None
            if relative >= largest and relative > 0.0:
                largest, path = relative, name
        advance(1)
    return Difference(largest, path, explanations.sentence if largest else None, alone)


def _read_ahead(
    base: RoleSource, suspect: RoleSource, pairs: Sequence[tuple[Role, Role]]
) -> Iterator[tuple[Role, list[tuple[str, np.ndarray, np.ndarray]]]]:
    """Yield each role of the base with what both files store of it, the next of which is read in a thread meanwhile."""
    compared: set[str] = set()

    def read(roles: tuple[Role, Role]) -> list[tuple[str, np.ndarray, np.ndarray]]:
        return list(_stored(base, suspect, roles, compared))

    with ThreadPoolExecutor(1) as reader:
        following = reader.submit(read, pairs[0]) if pairs else None
        for number, (role, _) in enumerate(pairs, 1):
            assert following is not None
            tensors = following.result()
            following = reader.submit(read, pairs[number]) if number < len(pairs) else None
            yield role, tensors


def _stored(
    base: RoleSource, suspect: RoleSource, roles: tuple[Role, Role], compared: set[str]
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield what both files store of a role, each tensor once: it itself, or those that it is a product or a part of.

    Rounding is of what is stored: a product of rounded matrices is no rounded product, and the scales of a fused matrix
    are those of the whole.
    """
    base_names, suspect_names = (source.stored_in(role) for source, role in zip((base, suspect), roles, strict=True))
    names = base_names if base_names == suspect_names else ()
    stored = [(name, base.read_stored(name), suspect.read_stored(name)) for name in names if name not in compared]
    # Quantized copies of GPT-2 have its matrices transposed.
    if not names or any(first.shape != second.shape for _, first, second in stored):
        yield roles[0].path, base.read(roles[0]), suspect.read(roles[1])
        return
    compared.update(names)
    yield from stored


def _measured(base: np.ndarray, suspect: np.ndarray, explanations: Explanations, *, is_scale: bool) -> float | None:
    """Return the largest difference of a tensor over its root mean square; None where it is large and not explained."""
    # The largest difference of any entry, in pieces that fit a cache.
    difference = max(float(np.abs(first - second).max()) for first, second in pieces(base, suspect))
    if difference == 0.0:
        return 0.0
    explanations.see(base, suspect, difference, is_scale=is_scale)
    # Relative to the tensor's root mean square, of one that was zero to what it became; rounding to a narrower type may
    # explain more.
    size = _root_mean_square(first for first, _ in pieces(base, suspect))
    if size == 0.0:
        size = _root_mean_square(second for _, second in pieces(base, suspect))
    if difference > NEAR * size and explanations.sentence is None:
        return None
    return difference / size


def _root_mean_square(parts: Iterable[np.ndarray]) -> float:
    sizes, squares = zip(*((part.size, float(np.square(part, dtype=np.float64).sum())) for part in parts), strict=True)
    return math.sqrt(math.fsum(squares) / sum(sizes))


def _differing_vectors(base: RoleSource, suspect: RoleSource) -> list[str]:
    """Name biases and per-head norms that no rotation and no other order explains, as one item for each kind."""
    sizes = [_vector_squares(source) for source in (base, suspect)]
    differing: dict[str, list[str]] = defaultdict(list)
    for kind, name in sorted(sizes[0].keys() | sizes[1].keys()):
        if not math.isclose(*(math.sqrt(squares[kind, name]) for squares in sizes), rel_tol=_SAME_SIZE):
            differing[kind].append(name)
    return [f"{kind} differ: {', '.join(names)}" for kind, names in differing.items()]


def _vector_squares(source: RoleSource) -> defaultdict[tuple[str, str], float]:
    """Sum the squares of every bias and of every scale of heads, by kind and module over all blocks."""
    squares: defaultdict[tuple[str, str], float] = defaultdict(float)
    for role in source.roles:
        is_bias = "bias" in (role.leaf, role.group)
        if is_bias or role.module in ("query_norm", "key_norm"):
            key = "biases" if is_bias else "norms of heads", role.module or role.group
            squares[key] += float(np.square(source.read(role), dtype=np.float64).sum())
    return squares


# ---------------------------------------------------------------------------------------------------------------------
# Settings


def differing_settings(base_cfg: ModelConfig, suspect_cfg: ModelConfig) -> list[str]:
    """Name the settings that make two models of the same weights compute something else.

    Example:
        >>> from bornbiased_jax.config import preset
        >>> differing_settings(preset("llama-tiny"), preset("llama-tiny", window=3, init="normal-0.02"))
        ['window']
    """
    base, suspect = _computing_settings(base_cfg), _computing_settings(suspect_cfg)
    return [name for name in base if not _equal_settings(base[name], suspect[name])]


def _computing_settings(cfg: ModelConfig) -> dict[str, object]:
    """Return the settings that change numbers; None for those that other settings switch off."""
    values: dict[str, object] = {field.name: getattr(cfg, field.name) for field in dataclasses.fields(cfg)}
    local = cfg.is_local if cfg.is_local is not None and any(cfg.is_local) else None
    values["attention_pattern"], values["rope_pattern"] = local, cfg.is_rotated
    idle = {*unread_fields(cfg), *cfg.free_fields}
    # Coordinates that stay zero lower the mean square that the constant is added to.
    values["norm_eps"] = cfg.norm_eps * cfg.d_model
    values["attention_scale"] = cfg.attention_scale or 1 / math.sqrt(cfg.key_dim)
    return {name: None if name in idle else value for name, value in values.items() if name not in _NEUTRAL}


def _equal_settings(base: object, suspect: object) -> bool:
    if isinstance(base, float) and isinstance(suspect, float):
        return math.isclose(base, suspect, rel_tol=_SINGLE)
    return base == suspect


# ---------------------------------------------------------------------------------------------------------------------
# Logits


def same_logits(base: Checkpoint, suspect: Checkpoint) -> bool | None:
    """Return whether two models give the same logits on random tokens, up to a constant at each position.

    Returns:
        None where that says nothing: other vocabularies, two initializations (their seeds identify them), logits that
        do not vary over tokens in either model (as with a head of zeros), or a model that does not fit in memory.
    """
    ids_ST = None if base.is_initial and suspect.is_initial else probe_ids(base, suspect)
    if ids_ST is None:
        return None
    # Logits on the same random tokens, each position less its mean; of both models at once where both fit in memory.
    free, needed = hardware.available_memory(), logits_memory(base) + logits_memory(suspect)
    sizes = [sum(math.prod(row.shape) for row in parameter_table(model.cfg).values()) for model in (base, suspect)]
    num_blocks = base.cfg.num_layers + suspect.cfg.num_layers
    with (
        ThreadPoolExecutor(2 if free is None or needed <= free else 1) as pool,
        progress.bar(num_blocks, "logits of both models", unit="blocks", quiet=max(sizes) < LARGE) as advance,
    ):
        outputs = pool.map(functools.partial(probe_outputs, ids_ST=ids_ST, advance=advance), (base, suspect))
        base_PV, suspect_PV = (of_model.logits_PV for of_model in outputs)
    if not (np.isfinite(base_PV).all() and np.isfinite(suspect_PV).all()):
        return False
    # Logits that do not depend on the tokens identify nothing.
    is_varying = [
        bool(logits_PV.std(axis=0).max() > _CONSTANT * max(float(np.abs(logits_PV).max()), 1e-30))
        for logits_PV in (base_PV, suspect_PV)
    ]
    if not all(is_varying):
        return False if any(is_varying) else None
    return float(np.abs(base_PV - suspect_PV).max() / base_PV.std()) <= SAME_LOGITS
