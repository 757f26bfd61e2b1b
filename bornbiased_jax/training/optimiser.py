"""AdamW as Appendix B.4.2 has it, over the parameters of one seed."""

from __future__ import annotations

import jax
import optax

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.model.adapters import Adapter, adapter_shapes
from bornbiased_jax.parameters import Params, parameter_table, unflatten
from bornbiased_jax.training.settings import PretrainConfig


def schedule(config: PretrainConfig, steps: int) -> optax.Schedule:
    """Return the learning rate by the number of updates: linear warm-up to the peak, half a cosine to the minimum.

    Update t (from 0) has rate peak·(t + 1)/warmup while t < warmup, and the last one has the minimum.
    """
    peak, floor, warmup = config.learning_rate, config.min_learning_rate, config.warmup
    falling = optax.cosine_decay_schedule(peak, max(1, steps - 1 - warmup), alpha=floor / peak)
    if warmup == 0:
        return falling
    # Not optax.warmup_cosine_decay_schedule: here the last update of the warm-up and the one after it have the peak.
    rising = optax.linear_schedule(peak / warmup, peak + peak / warmup, warmup)
    return optax.join_schedules([rising, falling], [warmup])


def decayed(cfg: ModelConfig, adapter: Adapter | None = None) -> Params:
    """Mark every parameter that is a matrix, leading axes of seeds and layers aside, but not norms and biases.

    An adapter has matrices alone.
    """
    if adapter is not None:
        return jax.tree.map(lambda _leaf: True, adapter_shapes(cfg, adapter))
    return unflatten({path: parameter.is_matrix for path, parameter in parameter_table(cfg).items()})


def optimiser(config: PretrainConfig, steps: int) -> optax.GradientTransformation:
    """Clip the gradient's global norm, then AdamW with decoupled decay on matrices (Table 14).

    Args:
        config: the numbers.
        steps: how many updates there will be, for the schedule.
    """
    return optax.chain(
        optax.clip_by_global_norm(config.clip),
        optax.scale_by_adam(b1=config.beta1, b2=config.beta2, eps=config.epsilon),
        optax.add_decayed_weights(config.weight_decay, mask=decayed(config.model, config.adapter)),
        optax.scale_by_learning_rate(schedule(config, steps)),
    )
