"""The position-wise MLP, plain or gated."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.models.activations import ACTIVATIONS
from bornbiased_jax.models.linear import Linear
from bornbiased_jax.models.sites import NO_EDITS, Edits, edited


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
