"""The kinds of probe input, and those that a seed draws or a table gives.

Random sequences are never stored: sequence n depends on (seed, n) alone, so any batch of any size, in any
order, can be generated when it is needed, inside or outside of a compiled function.

What sets one kind of input apart stands in its entry of :data:`KINDS`; everybody else asks :class:`Inputs`.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from bornbiased_jax import keys
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.model.limits import check_length, check_tokens, check_width
from bornbiased_jax.schema import Count, SeqLen, Vocabulary, Width, within

AnyArray: TypeAlias = np.ndarray | jax.Array
HostOrDevice = TypeVar("HostOrDevice", np.ndarray, jax.Array)
_CHUNK_TOKENS = 1 << 20


@dataclass(frozen=True, eq=False)
class Inputs:
    """N probe inputs of length T. Make them with the functions of :mod:`bornbiased_jax.probes.inputs`.

    Attributes:
        kind: a name in :data:`KINDS`: "tokens" (uniform random ids), "gaussian" (vectors) or "text".
        num_inputs: N.
        seq_len: T.
        vocab_size: ids are below this; None for vectors.
        d_model: width D of the vectors; None for ids.
        seed: of the stream "inputs"; None where nothing is random.
        tokens_NT: the ids of text, int32.
        source: where text comes from, JSON-ready.
    """

    kind: str
    num_inputs: int
    seq_len: int
    vocab_size: int | None = None
    d_model: int | None = None
    seed: int | None = None
    tokens_NT: np.ndarray | None = field(default=None, repr=False)
    source: Mapping[str, object] = field(default_factory=dict)

    def generate(self, indices: AnyArray) -> AnyArray:
        """Return the sequences with these indices (0 to N − 1, integers [B], possibly traced).

        Returns int32 ids [B, T], or float32 standard normal vectors [B, T, D], to be given the moments of an
        embedding by :meth:`scaled`.
        """
        return KINDS[self.kind].generate(self, indices)

    @property
    def vectors(self) -> bool:
        """True if these are vectors, fed in place of embeddings, rather than token ids."""
        return KINDS[self.kind].vectors

    @property
    def equal_last_tokens_by_chance(self) -> bool:
        """True if two sequences that end in the same token have nothing else in common."""
        return KINDS[self.kind].independent

    def moments(self, mean: float, std: float) -> tuple[float, float] | None:
        """Return the mean and standard deviation to give these inputs: as they are for vectors, None for ids."""
        return (mean, std) if self.vectors else None

    def scaled(self, x: HostOrDevice, mean: float, std: float) -> HostOrDevice:
        """Give a generated batch the mean and standard deviation of an embedding; ids stay as they are."""
        if not self.vectors:
            return x
        scaled: HostOrDevice = x * np.float32(std) + np.float32(mean)
        return scaled

    def batch(self, start: int, stop: int) -> np.ndarray:
        """Return sequences ``start`` to ``stop`` − 1, on the host: int32 [B, T] or float32 [B, T, D].

        Raises:
            InputError: the range is empty or leaves 0 to N.
        """
        if not 0 <= start < stop <= self.num_inputs:
            raise InputError(f"inputs {start} to {stop} are not within the {self.num_inputs} there are")
        return np.asarray(self.generate(np.arange(start, stop)))

    def last_tokens(self) -> np.ndarray | None:
        """Return the last id of each sequence, int32 [N]; None for vectors."""
        return None if self.vectors else self._content[1]

    @property
    def digest(self) -> str:
        """SHA-256 of the content: of all ids with their shape, wherever they come from.

        Vectors are rounded differently by different devices: for them it is of N, T, D, the seed and the
        random bits behind the first sequence.
        """
        return self._vectors_digest if self.vectors else self._content[0]

    @functools.cached_property
    def _content(self) -> tuple[str, np.ndarray]:
        digest = hashlib.sha256(f"tokens {self.num_inputs} {self.seq_len}\0".encode())
        size = min(self.num_inputs, max(1, _CHUNK_TOKENS // self.seq_len))
        last_N = np.empty(self.num_inputs, np.int32)
        for start in range(0, self.num_inputs, size):
            stop = min(start + size, self.num_inputs)
            # The indices past the end are generated in vain, so that one compilation serves all chunks.
            at = np.minimum(np.arange(start, start + size), self.num_inputs - 1)
            x_BT = np.asarray(self.generate(at))[: stop - start]
            last_N[start:stop] = x_BT[:, -1]
            digest.update(x_BT.astype("<i4").tobytes())
        return digest.hexdigest(), last_N

    @functools.cached_property
    def _vectors_digest(self) -> str:
        assert self.seed is not None and self.d_model is not None
        shape = (self.seq_len, self.d_model)
        key = jax.random.fold_in(keys.stream_key(self.seed, "inputs"), 0)
        bits = np.asarray(keys.bits(key, shape)).astype("<u4")
        spec = f"{self.kind} {self.num_inputs} {self.seq_len} {self.d_model} {self.seed}\0".encode()
        return hashlib.sha256(spec + bits.tobytes()).hexdigest()

    def describe(self) -> dict[str, object]:
        """Return JSON-ready facts for a record."""
        facts = {
            "kind": self.kind,
            "num_inputs": self.num_inputs,
            "seq_len": self.seq_len,
            "vocab_size": self.vocab_size,
            "d_model": self.d_model,
            "seed": self.seed,
            "digest": self.digest,
            **self.source,
        }
        return {key: value for key, value in facts.items() if value is not None}

    def check_fits(self, cfg: ModelConfig) -> None:
        """Refuse a model that cannot take these inputs.

        Raises:
            InputError: ids outside its vocabulary, vectors of another width, more positions than it has.
        """
        KINDS[self.kind].check_fits(self, cfg)
        check_length(cfg, self.seq_len)


@dataclass(frozen=True)
class InputKind:
    """The properties of one kind of input.

    Attributes:
        title: what it is called in a table.
        generate: the sequences of an :class:`Inputs` with given indices (see :meth:`Inputs.generate`).
        check_fits: raises :class:`InputError` for a model that cannot take such inputs, of whatever length.
        vectors: vectors [T, D] with the moments of an embedding, in place of ids [T].
        independent: the ids of a sequence are drawn independently, so that equal last ids are a coincidence.
        draw: makes them for an architecture from (num_inputs, seq_len, cfg, vocab_size, seed), the vocabulary being
            that of the ids (the model's own unless it is given); None for what does not come from a seed alone.
        predicted: mean-field theory knows them (see :func:`bornbiased_jax.prediction.predict`).
    """

    title: str
    generate: Callable[[Inputs, AnyArray], AnyArray]
    check_fits: Callable[[Inputs, ModelConfig], None]
    vectors: bool = False
    independent: bool = False
    draw: Callable[[int, int, ModelConfig, int | None, int], Inputs] | None = None
    predicted: bool = False


def _generate_tokens(inputs: Inputs, indices: AnyArray) -> AnyArray:
    assert inputs.seed is not None and inputs.vocab_size is not None
    at_B = jnp.asarray(indices).astype(jnp.uint32)
    ids_BT: jax.Array = draw_ids(keys.stream_key(inputs.seed, "inputs"), at_B, inputs.seq_len, inputs.vocab_size)
    return ids_BT


def _generate_vectors(inputs: Inputs, indices: AnyArray) -> AnyArray:
    assert inputs.seed is not None and inputs.d_model is not None
    at_B = jnp.asarray(indices).astype(jnp.uint32)
    x_BTD: jax.Array = _draw_vectors(keys.stream_key(inputs.seed, "inputs"), at_B, inputs.seq_len, inputs.d_model)
    return x_BTD


def _look_up(inputs: Inputs, indices: AnyArray) -> AnyArray:
    assert inputs.tokens_NT is not None
    traced = isinstance(indices, jax.core.Tracer)
    return jnp.asarray(inputs.tokens_NT)[indices] if traced else inputs.tokens_NT[np.asarray(indices)]


def _check_drawn_below(inputs: Inputs, cfg: ModelConfig) -> None:
    if inputs.vocab_size is not None and inputs.vocab_size > cfg.vocab_size:
        raise InputError(
            f"random ids below {inputs.vocab_size} leave the model's vocabulary of {cfg.vocab_size}: "
            "draw them from a smaller one"
        )


def _check_width(inputs: Inputs, cfg: ModelConfig) -> None:
    assert inputs.d_model is not None
    check_width(cfg, inputs.d_model)


def _check_table(inputs: Inputs, cfg: ModelConfig) -> None:
    assert inputs.tokens_NT is not None
    check_tokens(inputs.tokens_NT, cfg.vocab_size)


KINDS: dict[str, InputKind] = {
    "tokens": InputKind(
        "random tokens",
        _generate_tokens,
        _check_drawn_below,
        independent=True,
        draw=lambda num_inputs, seq_len, cfg, vocab_size, seed: random_tokens(
            num_inputs, seq_len, cfg.vocab_size if vocab_size is None else vocab_size, seed
        ),
        predicted=True,
    ),
    "gaussian": InputKind(
        "Gaussian vectors",
        _generate_vectors,
        _check_width,
        vectors=True,
        draw=lambda num_inputs, seq_len, cfg, _vocab_size, seed: gaussian(num_inputs, seq_len, cfg.d_model, seed),
        predicted=True,
    ),
    "text": InputKind("text", _look_up, _check_table),
}
"""Every kind of input, by its name in records and (for those that are drawn) on the command line."""

RANDOM_KINDS = tuple(name for name, kind in KINDS.items() if kind.draw is not None)
"""The kinds that a seed draws."""


def random_inputs(
    kind: str, num_inputs: int, seq_len: int, cfg: ModelConfig, *, seed: int = 0, vocab_size: int | None = None
) -> Inputs:
    """Make inputs of a random kind for an architecture.

    Args:
        kind: one of :data:`RANDOM_KINDS`.
        num_inputs: N.
        seq_len: T.
        cfg: the architecture.
        seed: of the stream "inputs".
        vocab_size: ids are drawn below this; the model's own vocabulary unless given. Vectors have none.

    Raises:
        InputError: no such kind, a size below 1, or a bad seed.

    Example:
        >>> from bornbiased_jax.config import preset
        >>> random_inputs("gaussian", 2, 3, preset("gpt2-tiny")).vectors
        True
    """
    draw = KINDS[kind].draw if kind in KINDS else None
    if draw is None:
        raise InputError(f"unknown random inputs {kind!r}: name {' or '.join(RANDOM_KINDS)}")
    return draw(num_inputs, seq_len, cfg, vocab_size, seed)


@functools.partial(jax.jit, static_argnums=2)
def draw_ids(key: jax.Array, at_B: jax.Array, seq_len: int, vocab_size: int) -> jax.Array:
    """Draw uniform ids below ``vocab_size``, int32 [B, T]: row b depends on the key and ``at_B[b]`` (uint32) alone."""

    def sequence(n: jax.Array) -> jax.Array:
        return keys.integers(jax.random.fold_in(key, n), (seq_len,), vocab_size)

    return jax.vmap(sequence)(at_B)


@functools.partial(jax.jit, static_argnums=(2, 3))
def _draw_vectors(key: jax.Array, at_B: jax.Array, seq_len: int, d_model: int) -> jax.Array:
    def sequence(n: jax.Array) -> jax.Array:
        return keys.normal(jax.random.fold_in(key, n), (seq_len, d_model), 1.0)

    return jax.vmap(sequence)(at_B)


def random_tokens(num_inputs: int, seq_len: int, vocab_size: int, seed: int = 0) -> Inputs:
    """Make inputs of uniform random ids, int32 [N, T] below ``vocab_size`` (Appendix B.2).

    Raises:
        InputError: a size below 1, or a bad seed.

    Example:
        >>> random_tokens(2_000, 6, 50_304, seed=0).batch(0, 1).tolist()
        [[3247, 7437, 42835, 31420, 13681, 32227]]
    """
    num_inputs, seq_len, vocab_size = check_sizes(num_inputs=num_inputs, seq_len=seq_len, vocab_size=vocab_size)
    return Inputs("tokens", num_inputs, seq_len, vocab_size=vocab_size, seed=keys.check_seed(seed))


def gaussian(num_inputs: int, seq_len: int, d_model: int, seed: int = 0) -> Inputs:
    """Make isotropic Gaussian vectors, float32 [N, T, D] with mean 0 and variance 1 in each coordinate.

    Raises:
        InputError: a size below 1, or a bad seed.

    Example:
        >>> gaussian(100, 3, 8).batch(0, 2).shape
        (2, 3, 8)
    """
    num_inputs, seq_len, d_model = check_sizes(num_inputs=num_inputs, seq_len=seq_len, d_model=d_model)
    return Inputs("gaussian", num_inputs, seq_len, d_model=d_model, seed=keys.check_seed(seed))


def from_tokens(tokens_NT: ArrayLike, vocab_size: int, **source: object) -> Inputs:
    """Make inputs of ids, int [N, T]; ``source`` says where they come from.

    Raises:
        InputError: not a non-empty table of integers, or an id outside the vocabulary.

    Example:
        >>> from_tokens([[1, 2, 3]], vocab_size=5, source="a list").describe()["source"]
        'a list'
    """
    tokens_NT = np.asarray(tokens_NT)
    if tokens_NT.ndim != 2 or not tokens_NT.size or not np.issubdtype(tokens_NT.dtype, np.integer):
        raise InputError(f"ids of shape {tokens_NT.shape} and type {tokens_NT.dtype} are not integers [N, T]")
    check_tokens(tokens_NT, vocab_size)
    num_inputs, seq_len = tokens_NT.shape
    tokens_NT = tokens_NT.astype(np.int32)
    return Inputs("text", num_inputs, seq_len, vocab_size=vocab_size, tokens_NT=tokens_NT, source=source)


_SIZES = {"num_inputs": Count, "seq_len": SeqLen, "vocab_size": Vocabulary, "d_model": Width}


def check_sizes(**sizes: int) -> tuple[int, ...]:
    """Return sizes of inputs as integers, in the order given.

    Raises:
        InputError: one of them is out of range; the message names it.
    """
    return tuple(within(_SIZES[name], value, name) for name, value in sizes.items())
