"""The optimizer of one seed's parameters: AdamW as Appendix B.4.2 has it or Muon, under a learning rate by name."""

from __future__ import annotations

import jax
import optax
from optax.contrib import MuonDimensionNumbers

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.model.adapters import Adapter, adapter_shapes
from bornbiased_jax.parameters import Params, parameter_table, unflatten
from bornbiased_jax.training.config import PretrainConfig

WSD_DECAY = 0.2
"""Fraction of the updates in which the rate of "wsd" (warm up, stay, decay) falls."""
MUON_BETA = 0.95
MUON_RMS = 0.2
"""Root mean square of a Muon update before the learning rate: that of AdamW, so that both take the same rates."""


def learning_rate(config: PretrainConfig, steps: int) -> optax.Schedule:
    """Return the learning rate by the number of updates: linear warm-up to the peak, then by ``config.schedule``.

    Update t (from 0) has rate peak·(t + 1)/warmup while t < warmup. From there the rate stays ("constant"), falls by
    half a cosine ("cosine"), by a line ("linear"), or by a line in the last fifth of all updates alone ("wsd"). Where
    it falls, the last update has the minimum, if it is not the first after the warm-up, which has the peak.
    """
    peak, floor, warmup = config.learning_rate, config.min_learning_rate, config.warmup
    # Updates from the first at the peak to the last.
    rest = max(1, steps - 1 - warmup)
    if config.schedule == "constant":
        after = optax.constant_schedule(peak)
    elif config.schedule == "linear":
        after = optax.linear_schedule(peak, floor, rest)
    elif config.schedule == "wsd":
        decay = min(rest, max(1, round(WSD_DECAY * steps)))
        after = optax.linear_schedule(peak, floor, decay, transition_begin=rest - decay)
    else:
        after = optax.cosine_decay_schedule(peak, rest, alpha=floor / peak)
    if warmup == 0:
        return after
    # Not optax.warmup_cosine_decay_schedule: here the last update of the warm-up and the one after it have the peak.
    rising = optax.linear_schedule(peak / warmup, peak + peak / warmup, warmup)
    return optax.join_schedules([rising, after], [warmup])


def decay_mask(cfg: ModelConfig, adapter: Adapter | None = None) -> Params:
    """Mark every parameter that is a matrix, leading axes of seeds and layers aside, but not norms and biases.

    An adapter has matrices alone.
    """
    if adapter is not None:
        mask: Params = jax.tree.map(lambda _leaf: True, adapter_shapes(cfg, adapter))
        return mask
    return unflatten({path: parameter.is_matrix for path, parameter in parameter_table(cfg).items()})


def muon_dimensions(cfg: ModelConfig) -> Params:
    """Return for each parameter which axes Muon takes as the input and output of a matrix; None where AdamW serves.

    Kernels of blocks are stacks [layer, in, out], or [layer, expert, in, out]: each layer's and each expert's matrix is
    orthogonalized by itself. Tables of tokens and positions, the head, routers, norms and biases are AdamW's.
    """
    dimensions: dict[str, MuonDimensionNumbers | None] = {}
    for path, parameter in parameter_table(cfg).items():
        # An axis of layers, or of each expert's own matrices, is a batch of matrices; a router's experts are outputs.
        stacks = {("layer",), ("expert",)} if parameter.in_expert else {("layer",)}
        axes = [index for index, names in enumerate(parameter.axes) if names not in stacks]
        is_kernel = parameter.is_stacked and parameter.leaf == "kernel" and parameter.group != "router"
        dimensions[path] = MuonDimensionNumbers(*axes) if is_kernel and len(axes) == 2 else None
    return unflatten(dimensions)


def make_optimizer(config: PretrainConfig, steps: int) -> optax.GradientTransformation:
    """Clip the gradient's global norm, then AdamW (Table 14) or Muon with decoupled decay on matrices.

    Args:
        config: the numbers.
        steps: how many updates there will be, for the schedule.
    """
    if config.optimizer == "muon":
        direction = optax.contrib.muon(
            # The bare direction: optax takes a rate's negative, and decay and the schedule come below.
            learning_rate=-1.0,
            beta=MUON_BETA,
            eps=config.epsilon,
            adam_b1=config.beta1,
            adam_b2=config.beta2,
            muon_weight_dimension_numbers=muon_dimensions(config.model),
            consistent_rms=MUON_RMS,
        )
    else:
        direction = optax.scale_by_adam(b1=config.beta1, b2=config.beta2, eps=config.epsilon)
    # Weight decay is decoupled: the rate scales it, the moments do not see it.
    return optax.chain(
        optax.clip_by_global_norm(config.clip),
        direction,
        optax.add_decayed_weights(config.weight_decay, mask=decay_mask(config.model, config.adapter)),
        optax.scale_by_learning_rate(learning_rate(config, steps)),
    )
