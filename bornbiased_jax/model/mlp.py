"""The position-wise MLP, plain or gated, and a mixture of gated ones."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.model.activations import ACTIVATIONS
from bornbiased_jax.model.linear import Linear
from bornbiased_jax.model.sites import NO_EDITS, Edits, edited


class MLP(nn.Module):
    """φ(x W_up) W_down, or (φ(x W_gate) ∘ x W_up) W_down when gated (SwiGLU with φ = silu)."""

    cfg: ModelConfig
    capture: tuple[str, ...] = ()
    precision: Any = "highest"
    edits: Edits = NO_EDITS

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        cfg = self.cfg
        x_BTD = edited(self.edits.mlp_input, x_BTD)
        phi = ACTIVATIONS[cfg.activation].function
        up_BTF = Linear(cfg.d_ff, cfg.bias, self.precision, name="up")(x_BTD)
        if cfg.gated_mlp:
            pre_BTF = Linear(cfg.d_ff, cfg.bias, self.precision, name="gate")(x_BTD)
            hidden_BTF = phi(pre_BTF) * up_BTF
        else:
            pre_BTF = up_BTF
            hidden_BTF = phi(pre_BTF)
        hidden_BTF = edited(self.edits.mlp_hidden, hidden_BTF)
        out_BTD = Linear(cfg.d_model, cfg.bias, self.precision, name="down")(hidden_BTF)
        captured = {
            "mlp_input": x_BTD,
            "mlp_preactivation": pre_BTF,
            "mlp_up": up_BTF,
            "mlp_hidden": hidden_BTF,
            "mlp_update": out_BTD,
        }
        return out_BTD, {name: captured[name] for name in captured if name in self.capture}


class Experts(nn.Module):
    """A mixture of MLPs of which a router chooses ``experts_per_token`` for each token (Mixtral, Qwen3-MoE).

    Router probabilities are a softmax over all experts in float32; the outputs of the chosen ones are summed with their
    probabilities, which are made to sum to 1 where the configuration says so. Tokens are sorted by expert, so that each
    expert computes those that chose it and no others.
    """

    cfg: ModelConfig
    capture: tuple[str, ...] = ()
    precision: Any = "highest"
    edits: Edits = NO_EDITS

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        cfg = self.cfg
        if self.edits.mlp_hidden is not None:
            raise InputError("neurons of a mixture of experts are not edited: leave the MLP's hidden layer alone")
        E, C, D, F = cfg.num_experts or 1, cfg.experts_per_token, cfg.d_model, cfg.d_ff
        x_BTD = edited(self.edits.mlp_input, x_BTD)
        x_ND = x_BTD.reshape(-1, D)

        # The router: C experts of each token, and their weights.
        logits_NE = Linear(E, False, self.precision, name="router")(x_ND).astype(jnp.float32)
        weights_NC, experts_NC = jax.lax.top_k(jax.nn.softmax(logits_NE, axis=-1), C)
        if cfg.normalize_expert_weights:
            weights_NC = weights_NC / jnp.sum(weights_NC, axis=-1, keepdims=True)

        # One row for each token and chosen expert, sorted by expert.
        experts_M = experts_NC.reshape(-1)
        order_M = jnp.argsort(experts_M, stable=True)
        sizes_E = jnp.bincount(experts_M, length=E)
        sorted_MD = jnp.take(x_ND, order_M // C, axis=0)

        def product(name: str, rows: jax.Array, width: int) -> jax.Array:
            kernel_EIO = self._kernel(name, (E, rows.shape[-1], width), rows.dtype)
            return jax.lax.ragged_dot(rows, kernel_EIO, sizes_E, precision=self.precision)

        phi = ACTIVATIONS[cfg.activation].function
        up_MF = product("up", sorted_MD, F)
        hidden_MF = phi(product("gate", sorted_MD, F)) * up_MF if cfg.gated_mlp else phi(up_MF)
        out_MD = product("down", hidden_MF, D)

        # Back to the order of tokens, and the weighted sum over each token's experts.
        own_NCD = jnp.zeros_like(out_MD).at[order_M].set(out_MD).reshape(-1, C, D)
        out_BTD = jnp.sum(own_NCD * weights_NC[..., None].astype(own_NCD.dtype), axis=1).reshape(x_BTD.shape)
        captured = {"mlp_input": x_BTD, "mlp_update": out_BTD, "router_logits": logits_NE.reshape(*x_BTD.shape[:2], E)}
        return out_BTD, {name: captured[name] for name in captured if name in self.capture}

    def _kernel(self, name: str, shape: tuple[int, int, int], dtype: Any) -> jax.Array:
        """Return the matrices [E, in, out] of all experts, in the compute dtype."""
        return _Kernel(shape, name=name)().astype(dtype)


class _Kernel(nn.Module):
    """A parameter called "kernel" in a folder of its own, as linear maps have it."""

    shape: tuple[int, ...]

    @nn.compact
    def __call__(self) -> jax.Array:
        return self.param("kernel", nn.initializers.zeros, self.shape)
