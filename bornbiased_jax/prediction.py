"""What theory says of a configuration: the JSON of ``bornbiased predict``. Nothing is built or sampled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TypedDict

import numpy as np
from threadpoolctl import threadpool_limits

from bornbiased_jax import hardware
from bornbiased_jax.config import ModelConfig, check_config
from bornbiased_jax.errors import InputError
from bornbiased_jax.fields import fields_of
from bornbiased_jax.init import distribution
from bornbiased_jax.model.layers import frequencies
from bornbiased_jax.model.limits import check_length
from bornbiased_jax.model.model import head_path
from bornbiased_jax.parameters import parameter_table
from bornbiased_jax.schemes import rules_of
from bornbiased_jax.theory import activations, gradients, mean_field, positions, preference, stack
from bornbiased_jax.theory import predict as whole_model
from bornbiased_jax.theory.preference import TopFraction
from bornbiased_jax.theory.stack import Stack

CONSTANTS = {"norm": 1.0, "bias": 0.0, "sink_logit": 0.0, "prefix_memory": 0.0}
"""What theory takes groups of parameters for, whose distribution it does not follow."""


def check_covered(cfg: ModelConfig) -> None:
    """Refuse configurations that theory does not cover, by the field.

    Raises:
        InputError: layers that differ, experts, a prefix, bounded attention logits, another scale of residual branches
            or of logits, norms and biases that do not begin as ones and zeros, matrices of ones.
    """
    for name, policy in fields_of("theory"):
        if policy.kind == "refused" and getattr(cfg, name) != policy.unless:
            raise InputError(
                f"theory does not cover {name}={getattr(cfg, name)}: set {name}={policy.unless}, or take another model"
            )
    rules = rules_of(cfg.init, cfg.init_groups)
    for row in parameter_table(cfg).values():
        constant = distribution(cfg, row).constant
        if constant == 1.0 if row.group not in CONSTANTS else constant != CONSTANTS[row.group]:
            raise InputError(
                f"theory does not cover init.{row.group}={rules[row.group]}: leave init.{row.group} out of the settings"
            )


def stack_of(cfg: ModelConfig, *, tokens: bool = True) -> Stack:
    """Return the numbers of a configuration that its statistics at initialization depend on.

    Args:
        cfg: the architecture.
        tokens: inputs are uniform tokens; else Gaussian vectors of the embedding's standard deviation.

    Raises:
        InputError: what :func:`check_covered` refuses, a kernel of attention that the theory of a whole model does not
            have, norms on both sides, one token, or mirrored neurons without a theory.
    """
    check_covered(cfg)
    if cfg.attention_kernel not in ("softmax", "sigmoid", "centred"):
        raise InputError(
            "theory of a whole model knows softmax, sigmoid and centered attention, not "
            f"attention_kernel={cfg.attention_kernel}: "
            "theory.variance has its variance by position at initialization"
        )
    if tokens and cfg.vocab_size == 1:
        raise InputError("theory has no random tokens of vocab_size=1: set it to 2 or more")
    if cfg.norm_position == "both":
        raise InputError("theory does not cover norm_position=both: norms before a sublayer or after it")
    dists = {row.group: distribution(cfg, row) for row in parameter_table(cfg).values()}
    activation, mlp_width, factor = str(cfg.activation), cfg.d_ff, 1.0
    # Zeros are their own mirror image, whatever scheme they belong to.
    drawn = [group for group in ("gate", "up", "down") if group in dists and dists[group].constant is None]
    paired = [group for group in drawn if dists[group].neuron_axis is not None]
    if paired and paired != drawn:
        raise InputError("theory knows MLPs whose neurons are mirrored in all matrices: set init to a scheme -mirrored")
    if paired and activation not in activations.ODD_PARTS:
        raise InputError(
            f"theory has no kernel of mirrored neurons with activation={activation}: take another activation"
        )
    if paired:
        # A pair of opposite neurons writes the odd part of the activation.
        activation, factor = activations.ODD_PARTS[activation]
        mlp_width //= 2
    stds = {
        group: tuple(dists[group].measured_std(layer) for layer in range(len(dists[group].stds)))
        for group in stack.GROUPS
        if group in dists
    }
    if "down" in stds:
        stds["down"] = tuple(factor * std for std in stds["down"])
    if cfg.output_gate == "value" and cfg.attention:
        # It reads the value, not the stream.
        gate, value = dists["value_gate"], dists["value"]
        stds["output_gate"] = tuple(
            math.sqrt(cfg.key_dim) * gate.measured_std(layer) * value.measured_std(layer)
            for layer in range(cfg.num_layers)
        )
    return Stack(
        num_layers=cfg.num_layers,
        width=cfg.d_model,
        mlp_width=mlp_width,
        query_width=cfg.num_heads * cfg.key_dim,
        num_heads=cfg.num_heads,
        value_width=cfg.kv_heads * cfg.key_dim,
        norm=cfg.norm,
        norm_eps=cfg.norm_eps,
        norm_position=cfg.norm_position,
        activation=activation,
        gated_mlp=cfg.gated_mlp,
        residual=cfg.residual,
        parallel_residual=cfg.parallel_residual,
        attention=cfg.attention,
        mlp=cfg.mlp,
        embedding_std=cfg.embedding_std * cfg.embedding_scale,
        position_std=dists["positions"].measured_std() if cfg.positions == "learned" else 0.0,
        vocabulary=cfg.vocab_size if tokens else None,
        group_stds=tuple(stds.items()),
        logit_scale=1.0 if cfg.attention_scale is None else cfg.attention_scale * math.sqrt(cfg.key_dim),
        angles=_angles(cfg),
        balanced_mlp="down" in dists and dists["down"].structure == "balanced",
        qk_norm=cfg.qk_norm,
        window=cfg.window,
        attention_kernel=cfg.attention_kernel,
        sink_logit=cfg.sink_logit != "none",
        positional_scale=cfg.positional_scale,
        head_norm=cfg.head_norm,
        output_gate=cfg.output_gate in ("headwise", "elementwise"),
        value_gate=cfg.output_gate == "value",
        max_seq_len=cfg.max_seq_len,
    )


def _angles(cfg: ModelConfig) -> tuple[float, ...]:
    """Return the angle a position of every dimension of a key."""
    if cfg.positions != "rope":
        return ()
    turned = frequencies(cfg).tolist()
    return (*turned, *turned, *[0.0] * (cfg.key_dim - cfg.rotary_dim))


class Prediction(TypedDict):
    """Statistics at initialization, JSON-ready; lists are by block."""

    seq_len: int
    num_inputs: int | None
    inputs: str
    coverage: float
    inter_cosine_by_layer: list[float]
    inter_cosine_by_layer_std: list[float]
    """Over seeds, for N inputs."""
    inter_cosine_by_layer_low: list[float]
    """Ends of the interval."""
    inter_cosine_by_layer_high: list[float]
    inter_cosine_seed_std_by_layer: list[float]
    """Over seeds, for infinitely many inputs that all end with tokens of their own."""
    inter_cosine_final: float
    inter_cosine_final_std: float
    inter_cosine_final_low: float
    inter_cosine_final_high: float
    intra_cosine_by_layer: Sequence[float | None]
    top1_share_mean: float
    top1_share_p10: float
    top1_share_p50: float
    top1_share_p90: float
    overlap: float
    """Of Finding 2.2."""
    log10_p: float | None
    """None without N, as its percentiles."""
    log10_p_p10: float | None
    log10_p_p90: float | None
    position_std: list[float]
    """Of the first block's aggregated values by position (Figure 9); the residual stream's without attention."""
    attention_std_by_layer: list[list[float]]
    residual_std_by_layer: list[list[float]]


class GradientPrediction(TypedDict):
    """Norms of the gradient of the mean loss, of each block and of each group of parameters in it."""

    gradient_norm_by_block: list[float]
    gradient_norm_by_group: dict[str, list[float]]


def predict_gradients(cfg: ModelConfig, seq_len: int, num_inputs: int) -> GradientPrediction:
    """Predict gradient norms at initialization, of the mean next-token loss of uniform random tokens.

    Args:
        cfg: the architecture.
        seq_len: T.
        num_inputs: sequences of the batch.

    Raises:
        InputError: gradients of this configuration have no theory; the reason is given.
    """
    check_length(cfg, seq_len)
    check_gradients(cfg)
    if seq_len > gradients.LARGEST_LENGTH:
        raise InputError(
            f"theory follows gradients over all pairs of at most {gradients.LARGEST_LENGTH} positions, not "
            f"{seq_len}: ask for shorter sequences"
        )
    check_room(cfg, seq_len, exact=True)
    described = stack_of(cfg)
    try:
        with one_blas_thread():
            forward = mean_field.profile(described, seq_len, exact=True)
            norms = gradients.gradients(forward, num_inputs, head_of(cfg), biases_of(cfg), cfg.norm_parameters)
    except ValueError as error:
        raise InputError(f"theory cannot predict this: {error}") from error
    groups = {group: values.tolist() for group, values in norms.by_group.items()}
    return {"gradient_norm_by_block": norms.by_block.tolist(), "gradient_norm_by_group": groups}


def check_gradients(cfg: ModelConfig) -> None:
    """Refuse configurations whose gradients have no theory although the forward pass has.

    Raises:
        InputError: a soft cap of logits, layers of which RoPE rotates some, mirrored neurons.
    """
    if cfg.logit_softcap is not None:
        raise InputError("theory knows no gradients through a soft cap of logits: leave logit_softcap out")
    if cfg.rope_pattern is not None:
        raise InputError("theory knows no gradients where RoPE rotates some layers alone: leave rope_pattern out")
    if any(distribution(cfg, row).structure == "mirrored" for row in parameter_table(cfg).values()):
        raise InputError("theory knows no gradients of mirrored neurons: set init to a scheme without -mirrored")


def head_of(cfg: ModelConfig) -> gradients.HeadGradients:
    """Return what gradients depend on of the unembedding."""
    row = parameter_table(cfg)[head_path(cfg)]
    return gradients.HeadGradients(cfg.vocab_size, distribution(cfg, row).measured_std(), cfg.tie_embeddings)


def biases_of(cfg: ModelConfig) -> tuple[str, ...]:
    """Return the matrices of a block that have a bias."""
    table = parameter_table(cfg)
    return tuple(row.group for row in table.values() if row.is_matrix and f"{row.module}/bias" in table)


def check_room(cfg: ModelConfig, seq_len: int, *, exact: bool = False) -> None:
    """Refuse what memory cannot hold: node weights, positions by layer, and each layer's fields between nodes.

    Args:
        cfg: the architecture.
        seq_len: T.
        exact: a node at every position, as it is with a window.

    Raises:
        InputError: there is less memory.
    """
    # Longer sequences with a window are refused by their length.
    windowed = cfg.window is not None and cfg.window < seq_len <= positions.LARGEST_EXACT
    nodes = seq_len if exact or windowed else positions.num_nodes(seq_len)
    hardware.check_memory(
        8.0 * (seq_len * (2 * nodes + 3 * cfg.num_layers) + 50 * cfg.num_layers * nodes**2),
        f"theory for {cfg.num_layers:,} layers at {seq_len:,} positions",
        "ask for shorter sequences or fewer layers",
        on_host=True,
    )


def one_blas_thread() -> AbstractContextManager[object]:
    """Keep BLAS to one thread, for theory's small matrices.

    A second thread gains nothing there, and on a busy machine its waiting costs fourfold.
    """
    limits: AbstractContextManager[object] = threadpool_limits(1, user_api="blas")
    return limits


def _of_equal_logits(top1: TopFraction, vocab_size: int) -> TopFraction:
    """Return what is measured where head or states are zeros: of equal logits the first token's is taken always."""
    log10_p = None
    if top1.log10_p_mean is not None:
        log10_p = preference.log10_p_value(top1.num_inputs, top1.num_inputs, vocab_size)
    return top1._replace(
        fraction_mean=1.0,
        fraction_std=0.0,
        fraction_p10=1.0,
        fraction_p50=1.0,
        fraction_p90=1.0,
        overlap=1.0,
        log10_p_mean=log10_p,
        log10_p_p10=log10_p,
        log10_p_p90=log10_p,
    )


def predict(
    cfg: ModelConfig,
    seq_len: int,
    *,
    num_inputs: int | None = None,
    tokens: bool = True,
    coverage: float = 0.99,
) -> Prediction:
    """Predict statistics at initialization.

    Args:
        cfg: the architecture.
        seq_len: T.
        num_inputs: N, inputs per seed of the measurement that is predicted; None: infinitely many.
        tokens: inputs are uniform random tokens; else Gaussian vectors.
        coverage: of the intervals, over seeds.

    Raises:
        InputError: a length, number of inputs or coverage out of range; a window in a very long sequence.
    """
    # Refuse what theory does not cover or memory cannot hold.
    check_config(cfg)
    if not isinstance(seq_len, int | np.integer):
        raise InputError(f"seq_len={seq_len!r} is no length: give a whole number of positions")
    check_length(cfg, seq_len)
    described = stack_of(cfg, tokens=tokens)
    check_room(cfg, seq_len)
    try:
        with one_blas_thread():
            prediction = whole_model.predict(
                described,
                seq_len,
                cfg.vocab_size,
                num_inputs=num_inputs,
                tied=cfg.tie_embeddings and tokens,
                coverage=coverage,
            )
    except ValueError as error:
        raise InputError(f"theory cannot predict this: {error}") from error
    profile, cosine, top1 = prediction.profile, prediction.contraction, prediction.top1
    head = distribution(cfg, parameter_table(cfg)[head_path(cfg)])
    if head.constant is not None or profile.variance[-1, -1] == 0:
        top1 = _of_equal_logits(top1, cfg.vocab_size)
    # Standard deviations by position: of aggregated values, and of the residual stream.
    attention = [
        np.sqrt(profile.grid.interpolation_Tn @ s.aggregated_n) for s in profile.sublayers if s.kind == "attention"
    ]
    residual = np.sqrt(profile.variance)
    return {
        "seq_len": seq_len,
        "num_inputs": num_inputs,
        "inputs": "tokens" if tokens else "gaussian",
        "coverage": coverage,
        "inter_cosine_by_layer": cosine.mean[1:].tolist(),
        "inter_cosine_by_layer_std": cosine.std[1:].tolist(),
        "inter_cosine_by_layer_low": cosine.low[1:].tolist(),
        "inter_cosine_by_layer_high": cosine.high[1:].tolist(),
        "inter_cosine_seed_std_by_layer": cosine.seed_std[1:].tolist(),
        # A norm rescales each vector and leaves its cosines alone (LayerNorm's centering moves them by 1/D).
        "inter_cosine_final": float(cosine.mean[-1]),
        "inter_cosine_final_std": float(cosine.std[-1]),
        "inter_cosine_final_low": float(cosine.low[-1]),
        "inter_cosine_final_high": float(cosine.high[-1]),
        # A single position has no other to be compared with.
        "intra_cosine_by_layer": [None] * cfg.num_layers if seq_len == 1 else profile.intra_cosine[1:].tolist(),
        "top1_share_mean": top1.fraction_mean,
        "top1_share_p10": top1.fraction_p10,
        "top1_share_p50": top1.fraction_p50,
        "top1_share_p90": top1.fraction_p90,
        "overlap": top1.overlap,
        "log10_p": top1.log10_p_mean,
        "log10_p_p10": top1.log10_p_p10,
        "log10_p_p90": top1.log10_p_p90,
        "position_std": (attention[0] if attention else residual[-1]).tolist(),
        "attention_std_by_layer": [row.tolist() for row in attention],
        "residual_std_by_layer": residual[1:].tolist(),
    }
