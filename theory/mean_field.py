"""The whole decoder at initialization, in the limit of wide layers: covariances within and between sequences.

Gaussian weights make every pre-activation Gaussian given the layer below, so the stack is described by two
matrices per layer: (1/D) E[x_t·x_s] of one sequence and (1/D) E[x_t·x'_s] of two independent ones. A norm
divides by each position's standard deviation; attention, uniform up to the small variance of its logits,
averages both matrices over the positions seen and multiplies by D·std²·HK·std_o²; an MLP maps each entry by
the dual kernel of its activation and multiplies by F·std_o²; residuals add, because every update is a fresh
random projection, uncorrelated with the stream. Nothing is fitted and nothing is sampled. ``finite_width``
adds what survives at order 1/D, ``seeds`` the standard deviation across seeds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bornbiased_jax.theory import positions, sublayers
from bornbiased_jax.theory.activations import Array
from bornbiased_jax.theory.positions import Grid
from bornbiased_jax.theory.stack import Stack
from bornbiased_jax.theory.sublayers import MEAN, OWN, PARTS, SecondMoments, Sublayer

__all__ = ["MeanFieldProfile", "SecondMoments", "Stack", "profile"]

VANISHED, EXPLODED = 1e-70, 1e70
"""Variances of the stream outside these are refused: fourth powers leave float64, and the numbers float32."""


class MeanFieldProfile(NamedTuple):
    """The stack's statistics after the embedding and after each of its L blocks."""

    stack: Stack
    grid: Grid
    layers: tuple[SecondMoments, ...]
    """L + 1 of them, the embedding first."""
    sublayers: tuple[Sublayer, ...]

    @property
    def inter_cosine(self) -> Array:
        """Cosine between sequences at the last position, [L + 1]."""
        return np.array([sublayers.correlation(f.cross_n, f)[-1] for f in self.layers])

    @property
    def intra_cosine(self) -> Array:
        """Mean cosine between different positions of one sequence, [L + 1]; 0 when T = 1."""
        cosines = [sublayers.correlation(f.within_nn, f) for f in self.layers]
        return np.array([positions.mean_over_pairs(cosine, self.grid) for cosine in cosines])

    @property
    def variance(self) -> Array:
        """(1/D) E‖x_t‖² at every position, [L + 1, T]."""
        return np.stack([self.grid.interpolation_Tn @ f.variance_n for f in self.layers])


def embed(stack: Stack, grid: Grid) -> SecondMoments:
    """Return the residual stream before the first block.

    Random tokens repeat: two positions hold the same one with probability 1/V. (Not so at the same position
    of two sequences: pairs of sequences that share their last token are left out of every measured cosine.)
    """
    token, place = stack.embedding_std**2, stack.position_std**2
    repeats = 0.0 if stack.vocabulary is None else 1.0 / stack.vocabulary
    n = grid.nodes.size
    alike = np.full((n, n), token * repeats)
    pair_cnn = np.zeros((len(PARTS), n, n))
    pair_cnn[PARTS.index((MEAN, OWN))] = place * token / stack.width
    pair_cnn[PARTS.index((OWN, OWN))] = token**2 * (1.0 / stack.width + repeats * (1 - np.eye(n)))
    return SecondMoments(
        np.full(n, token + place),
        alike,
        alike,
        np.full(n, place),
        np.full(n, token + place),
        pair_cnn,
        np.zeros(n),
        np.full(n, 2 * token**2 / stack.width),
    )


def profile(
    stack: Stack, length: int, *, finite: bool = True, uniform: bool = False, exact: bool = False
) -> MeanFieldProfile:
    """Follow a stack over sequences of ``length`` tokens.

    Args:
        stack: the decoder.
        length: T.
        finite: add the corrections of order 1/D to the means (``finite_width``).
        uniform: take attention as exactly uniform, its logits as 0.
        exact: a node at every position.

    Raises:
        ValueError: length below 1, a window in a very long sequence, or so many blocks without a residual that
            the stream vanishes (or grows without bound).

    >>> from bornbiased_jax.theory.stack import Stack
    >>> stack = Stack(num_layers=2, width=64, mlp_width=256, query_width=64, value_width=64, output_std=0.01)
    >>> profile(stack, 16).inter_cosine.round(6).tolist()
    [0.0, 0.004432, 0.008854]
    """
    places = positions.grid(length, stack.window, exact)
    stream = embed(stack, places)
    layers: list[SecondMoments] = [stream]
    steps: list[Sublayer] = []
    for layer in range(stack.num_layers):
        source = stream
        if stack.attention:
            steps.append(sublayers.attend(stack, layer, source, stream, places, uniform))
            stream = sublayers.add(stack, steps[-1])
        if stack.mlp:
            read, beside = (source, steps[-1]) if stack.parallel_residual and stack.attention else (stream, None)
            steps.append(sublayers.feed_forward(stack, layer, read, stream, finite, beside))
            stream = sublayers.add(stack, steps[-1])
        # Refuse a residual stream that vanishes or explodes.
        size = stream.variance_n[stream.variance_n > 0]
        if not np.all((size > VANISHED) & (size < EXPLODED)):
            raise ValueError(
                f"num_layers: after block {layer + 1} of {stack.num_layers} the stream's variance is outside "
                f"{VANISHED:g} to {EXPLODED:g}, beyond what can be represented; take fewer layers or other weights"
            )
        layers.append(stream)
    return MeanFieldProfile(stack, places, tuple(layers), tuple(steps))
