"""Norms of gradients at initialization, by block and group, of the mean next-token loss of uniform random tokens.

A weight's gradient is a sum over tokens of (input) ⊗ (gradient of the loss by the output), so its squared norm is a sum
over pairs of tokens of two Gram matrices' products: those of the forward pass come from ``mean_field``, those of the
backward pass are followed here from the head to the first block. Given fresh Gaussian weights, a sublayer maps the Gram
matrix G of gradients by its output to that by its input entry by entry: an MLP through the kernel of φ', attention
through averages over the queries that see a key, a pre-norm by 1/(σ_t σ_s). Means over infinitely wide layers; a norm
also takes one direction, or with centering two, out of each token's own gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from bornbiased_jax.theory import checks, kernels, sublayers
from bornbiased_jax.theory.activations import Array
from bornbiased_jax.theory.mean_field import MeanFieldProfile
from bornbiased_jax.theory.stack import Stack
from bornbiased_jax.theory.sublayers import CARRIED, OWN, PARTS, SecondMoments, Sublayer

LARGEST_LENGTH = 512
"""Gram matrices hold every pair of positions."""
LARGEST_LOGIT_VARIANCE = 0.17
"""Of attention's logits between keys: up to it weights count as uniform, which moves the norm of a block by less than
5%."""
LARGEST_HEAD_VARIANCE = 0.8
"""Of the model's logits, over ln V: up to it probabilities count as log-normal, which moves norms by less than 11% from
512 tokens on. Beyond, few tokens have most of the probability, and the log-normal moment has no bound."""


class TokenGram(NamedTuple):
    """A Gram matrix over tokens."""

    within_TT: Array
    """Of one sequence; its diagonal is a token with itself."""
    cross_TT: Array
    """Of two sequences."""

    def scaled(self, factor: float) -> TokenGram:
        """Return the matrices times a number."""
        return TokenGram(self.within_TT * factor, self.cross_TT * factor)

    def plus(self, other: TokenGram) -> TokenGram:
        """Return the sum of two Gram matrices."""
        return TokenGram(self.within_TT + other.within_TT, self.cross_TT + other.cross_TT)

    def times(self, other: TokenGram) -> TokenGram:
        """Return the product entry by entry."""
        return TokenGram(self.within_TT * other.within_TT, self.cross_TT * other.cross_TT)

    def between(self, left_TT: Array) -> TokenGram:
        """Return left · Gram · leftᵀ, the Gram matrix of sums over tokens."""
        return TokenGram(left_TT @ self.within_TT @ left_TT.T, left_TT @ self.cross_TT @ left_TT.T)


Adder = Callable[[int, str, TokenGram, TokenGram], None]
"""Adds to a layer and a group the squared norm of Σ input ⊗ gradient by output, from the two Gram matrices."""


class Gradients(NamedTuple):
    """Predicted norms of the gradient of the mean loss."""

    by_block: Array
    """Over all parameters of each block [L]."""
    by_group: dict[str, Array]
    """Over the parameters of a group in each block [L]: query, key, value, output, gate, up, down, norm, bias."""


class HeadGradients(NamedTuple):
    """The map from the output of the final norm to logits."""

    vocabulary: int
    std: float
    """Of the entries of the unembedding."""
    is_tied: bool = False
    """The unembedding is the token table, so that a token also predicts itself."""


def gradients(
    forward: MeanFieldProfile,
    num_inputs: int,
    head: HeadGradients,
    biases: tuple[str, ...] = (),
    norm_parameters: Literal["all", "scale", "none"] = "all",
) -> Gradients:
    """Predict gradient norms for a batch of ``num_inputs`` sequences of uniform tokens and their next tokens.

    Of order 1/D they are off by a few percent at D = 160; those of queries and keys by up to 15% where tokens hardly
    differ (``neox``).

    Args:
        forward: of ``mean_field.profile`` with every position a node, pre-norm or without norms.
        num_inputs: N, sequences of the batch, over whose N·T tokens the loss is averaged.
        head: the unembedding.
        biases: groups of matrices that have a bias.
        norm_parameters: which norms have: a scale and, of a LayerNorm, a bias.

    Raises:
        ValueError: a stack whose gradients have no theory here, with the reason; a length out of range.

    >>> from bornbiased_jax.theory.mean_field import profile
    >>> stack = Stack(num_layers=2, width=64, mlp_width=256, query_width=64, value_width=64, output_std=0.01)
    >>> gradients(profile(stack, 8, exact=True), 4, HeadGradients(512, 0.02)).by_block.round(3).tolist()
    [1.952, 1.666]
    """
    stack, length = forward.stack, forward.grid.length
    _refuse(stack, length)
    tokens = checks.whole(num_inputs, "num_inputs") * length
    squares: dict[str, Array] = {}
    has_norm_bias = stack.norm == "layernorm" and norm_parameters == "all"
    stream = _at_head(stack, forward.layers[-1], head)

    def add(layer: int, group: str, inputs: TokenGram, outputs: TokenGram) -> None:
        """Add the squared norm of Σ input ⊗ gradient by output."""
        if group == "norm" and norm_parameters == "none":
            return
        product = inputs.times(outputs)
        total = num_inputs * product.within_TT.sum() + num_inputs * (num_inputs - 1) * product.cross_TT.sum()
        squares.setdefault(group, np.zeros(stack.num_layers))[layer] += max(float(total), 0.0) / tokens**2
        # Logits of all keys move together with a key's bias, which the softmax does not see.
        if (group in biases and group != "key") or (group == "norm" and has_norm_bias):
            add(layer, "bias", _ones(length), outputs)

    for step in reversed(forward.sublayers):
        read = _mlp(stack, step, stream, add) if step.kind == "mlp" else _attention(forward, step, stream, add)
        stream = stream.plus(read) if stack.residual else read
    by_group = {group: np.sqrt(values) for group, values in squares.items()}
    return Gradients(np.sqrt(sum(squares.values(), np.zeros(stack.num_layers))), by_group)


def _refuse(stack: Stack, length: int) -> None:
    """Refuse what the backward recursion does not know, by the reason."""
    unknown = {
        "norms after sublayers": stack.norm_position == "post" and stack.norm != "none",
        "norms of queries and keys": stack.qk_norm,
        f"{stack.attention_kernel} attention": stack.attention and stack.attention_kernel != "softmax",
        "a sink logit": stack.sink_logit,
        "a scale by position": stack.positional_scale != "none",
        "norms of heads": stack.head_norm,
        "an output gate": stack.output_gate or stack.value_gate,
        "a parallel block": stack.parallel_residual,
    }
    for reason, is_met in unknown.items():
        if is_met:
            raise ValueError(f"gradients: there is no theory of them with {reason}")
    if checks.whole(length, "length") > LARGEST_LENGTH:
        raise ValueError(f"length: gradients are followed over all pairs of at most {LARGEST_LENGTH} positions")


def _ones(length: int) -> TokenGram:
    ones = np.ones((length, length))
    return TokenGram(ones, ones)


def _normed(stack: Stack, source: SecondMoments) -> TokenGram:
    """Return the Gram matrix of a sublayer's input, per dimension."""
    n = source.scaled(sublayers.input_scale(stack, source))
    within, cross = n.within_nn.copy(), n.cross_nn.copy()
    np.fill_diagonal(within, n.variance_n)
    np.fill_diagonal(cross, n.cross_n)
    return TokenGram(within, cross)


def _through_norm(stack: Stack, source: SecondMoments, outputs: TokenGram) -> TokenGram:
    """Turn gradients by a norm's output into those by its input."""
    scale_T = sublayers.norm_scale(stack, source.variance_n)
    constraints = {"layernorm": 2, "rmsnorm": 1, "none": 0}[stack.norm] / stack.width
    scale_TT = np.outer(scale_T, scale_T)
    within = outputs.within_TT * scale_TT
    within[np.diag_indices_from(within)] *= 1 - constraints
    return TokenGram(within, outputs.cross_TT * scale_TT)


def _at_head(stack: Stack, last: SecondMoments, head: HeadGradients) -> TokenGram:
    """Compute the Gram matrix of gradients of the summed loss by the final stream.

    Probabilities are log-normal, p − e_y with y uniform; what they share beyond 1/V is (e^{σ²ρ} − 1)/V.
    """
    scale_T = sublayers.norm_scale(stack, last.variance_n)
    normed = last.scaled(scale_T)
    logit_variance = head.std**2 * stack.width
    largest, limit = logit_variance * float(normed.variance_n.max()), LARGEST_HEAD_VARIANCE * np.log(head.vocabulary)
    if not largest <= limit:
        raise ValueError(
            f"gradients: the model's logits have variance {largest:.3g}, above {limit:.2g} up to which the theory of "
            f"gradients holds for {head.vocabulary:,} tokens"
        )
    per_token = logit_variance / head.vocabulary
    within = per_token * np.expm1(logit_variance * normed.within_nn)
    cross = per_token * np.expm1(logit_variance * normed.cross_nn)
    np.fill_diagonal(cross, per_token * np.expm1(logit_variance * normed.cross_n))
    own_T = logit_variance * (1 + np.exp(logit_variance * normed.variance_n) / head.vocabulary)
    if head.is_tied:
        # A token's own row stands out among the logits by the part of the stream that it still is.
        part_T = np.sqrt(np.minimum(stack.embedding_std**2 / last.variance_n, 1.0)) if stack.residual else 0.0 * scale_T
        lead_T = stack.width * head.std * part_T * np.sqrt(normed.variance_n) - logit_variance * normed.variance_n / 2
        probability_T = 1 / (1 + head.vocabulary * np.exp(-np.clip(lead_T, -700, 700)))
        own_T = own_T + logit_variance * probability_T**2 * (1 - part_T**2)
    np.fill_diagonal(within, own_T)
    return _through_norm(stack, last, TokenGram(within, cross))


def _kernels(stack: Stack, std_T: Array, inputs: TokenGram, *, slope: bool) -> TokenGram:
    """Compute E[φφ'] or E[φ'φ'] for every pair of tokens."""
    kernel = kernels.dual_derivative if slope else kernels.dual
    size = np.sqrt(np.outer(np.diag(inputs.within_TT), np.diag(inputs.within_TT)))
    rho = [np.clip(sublayers.over(part, size), -1.0, 1.0) for part in inputs]
    return TokenGram(*(kernel(stack.activation, part, std_T[:, None], std_T[None, :]) for part in rho))


def _mlp(stack: Stack, step: Sublayer, outputs: TokenGram, add: Adder) -> TokenGram:
    """Add the gradients of an MLP's matrices; return those by the stream that it reads."""
    layer, D = step.layer, stack.width
    inputs = _normed(stack, step.source)
    std_T = stack.inner_std(layer) * np.sqrt(D * np.diag(inputs.within_TT))
    value, slope = (_kernels(stack, std_T, inputs, slope=flag) for flag in (False, True))
    # Gradients by the hidden layer, summed over its neurons.
    hidden = outputs.scaled(stack.mlp_width * stack.std("down", layer) ** 2)
    if stack.gated_mlp:
        up = inputs.scaled(stack.std("up", layer) ** 2 * D)
        add(layer, "down", value.times(up).scaled(stack.mlp_width), outputs)
        by_inner = {"gate": hidden.times(slope).times(up), "up": hidden.times(value)}
    else:
        add(layer, "down", value.scaled(stack.mlp_width), outputs)
        by_inner = {"up": hidden.times(slope)}
    read = outputs.scaled(0.0)
    for group, by_output in by_inner.items():
        add(layer, group, inputs.scaled(D), by_output)
        read = read.plus(by_output.scaled(D * stack.std(group, layer) ** 2))
    return _below(stack, step, inputs, read, add)


def _below(stack: Stack, step: Sublayer, inputs: TokenGram, read: TokenGram, add: Adder) -> TokenGram:
    """Add the gradients of a norm's scale and bias, and go through the norm."""
    if stack.norm != "none":
        add(step.layer, "norm", inputs, read)
    return _through_norm(stack, step.source, read)


def _attention(forward: MeanFieldProfile, step: Sublayer, outputs: TokenGram, add: Adder) -> TokenGram:
    """Add the gradients of attention's matrices, whose weights are nearly uniform; return those by the stream."""
    stack, grid = forward.stack, forward.grid
    layer, D = step.layer, stack.width
    inputs = _normed(stack, step.source)
    stds = {group: stack.std(group, layer) for group in ("query", "key", "value", "output")}
    # Logits must hardly differ between keys.
    logit_variance = (stds["query"] * stds["key"] * D * stack.logit_scale) ** 2
    apart = logit_variance * float(np.max(np.diag(inputs.within_TT))) ** 2
    if apart > LARGEST_LOGIT_VARIANCE:
        raise ValueError(
            f"gradients: attention's logits have variance {apart:.3g} in block {layer + 1}, above "
            f"{LARGEST_LOGIT_VARIANCE:g} up to which attention counts as uniform in their theory"
        )
    mean_TT = grid.seen_nn / grid.reach[:, None]
    values = inputs.scaled(stds["value"] ** 2 * D)
    add(layer, "output", values.between(mean_TT).scaled(stack.query_width), outputs)
    # By the aggregated values, per dimension; then by the values of the keys that a query sees.
    by_mixed = outputs.scaled(stds["output"] ** 2)
    by_value = by_mixed.between(mean_TT.T).scaled(stack.query_width)
    add(layer, "value", inputs.scaled(D), by_value)
    read = by_value.scaled(D * stds["value"] ** 2)
    # By the logits, a_ti (v_i − o_t)·γ_t, and by queries and keys.
    gain = stack.query_width * stack.logit_scale**2 * D
    own_products, turned_TT = _own_products(stack, step.source), _turned(stack, len(mean_TT))
    parts = zip(inputs, own_products, by_mixed, strict=True)
    by_query = TokenGram(*(_by_query(mean_TT, turned_TT, *matrices) for matrices in parts))
    by_key = TokenGram(*(turned_TT * _by_key(mean_TT, *parts) for parts in zip(inputs, by_mixed, strict=True)))
    of_values = stds["value"] ** 2 * D
    for group, partner, by_output in (("query", "key", by_query), ("key", "query", by_key)):
        scaled = by_output.scaled(gain * of_values * stds[partner] ** 2)
        add(layer, group, inputs.scaled(D), scaled)
        read = read.plus(scaled.scaled(D * stds[group] ** 2))
    # A key's input meets itself in C_ij², whose mean exceeds that of C_ij squared.
    seen_by_both = inputs.times(by_mixed).between(mean_TT.T).times(TokenGram(turned_TT, turned_TT))
    add(layer, "key", own_products, seen_by_both.scaled(gain * of_values * stds["query"] ** 2 * D))
    return _below(stack, step, inputs, read, add)


def _own_products(stack: Stack, source: SecondMoments) -> TokenGram:
    """Return the variance of products of different tokens' own parts, of order 1/D, per dimension."""
    pair_cnn = source.scaled(sublayers.input_scale(stack, source)).pair_cnn
    own_variance = pair_cnn[PARTS.index((OWN, OWN))] + pair_cnn[PARTS.index((CARRIED, CARRIED))]
    within = own_variance.copy()
    np.fill_diagonal(within, 0.0)
    return TokenGram(within, own_variance)


def _turned(stack: Stack, length: int) -> Array:
    """Return the fraction of the product of keys i and j that rotary positions leave, in the mean over dimensions.

    Rotations keep a mean over keys from cancelling what all keys have in common. So it is for two gradients at one
    token; at two, t and s, by i − j − (t − s), which counts less: their gradients are nearly orthogonal.
    """
    steps = np.arange(length)
    by_distance = np.cos(np.outer(steps, stack.angles or (0.0,))).mean(axis=1)
    return np.asarray(by_distance[np.abs(np.subtract.outer(steps, steps))])


def _by_query(mean_TT: Array, turned_TT: Array, c_TT: Array, own_TT: Array, g_TT: Array) -> Array:
    """Compute g_ts Σ_ij a_ti a_sj Ĉ_ij C_ij, Ĉ the covariance of v_i − o_t and v_j − o_s, C that of keys."""
    keys_TT = turned_TT * c_TT
    mixed, mixed_keys = mean_TT @ c_TT, mean_TT @ keys_TT
    squares = (mixed * mixed_keys) @ mean_TT.T
    cross = mean_TT @ ((c_TT @ mean_TT.T) * (keys_TT @ mean_TT.T))
    pairs = mean_TT @ (keys_TT * c_TT + turned_TT * own_TT) @ mean_TT.T - squares - cross
    return np.asarray(g_TT * (pairs + (mixed @ mean_TT.T) * (mixed_keys @ mean_TT.T)))


def _by_key(mean_TT: Array, c_TT: Array, g_TT: Array) -> Array:
    """Compute Σ_ts a_ti a_sj Ĉ_ij g_ts C_ts."""
    w_TT = g_TT * c_TT
    mixed = mean_TT @ c_TT
    one_sided = mean_TT.T @ (mixed * (w_TT @ mean_TT))
    common = mean_TT.T @ (w_TT * (mixed @ mean_TT.T)) @ mean_TT
    return np.asarray(c_TT * (mean_TT.T @ w_TT @ mean_TT) - one_sided - one_sided.T + common)
