"""One transformer block: attention and MLP around a residual stream."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.model.attention import Attention
from bornbiased_jax.model.cache import RollingCache
from bornbiased_jax.model.layers import MLP, Experts, Norm
from bornbiased_jax.model.sites import NO_EDITS, Edits, edited


class Block(nn.Module):
    """Pre-norm (Section 2.1), norms on the sublayers' outputs (OLMo-2), both (Gemma), or parallel (GPT-NeoX).

    With ``last_only`` every query, the MLP and the output are computed at the last position alone; the
    keys and values still come from all positions.
    """

    cfg: ModelConfig
    capture: tuple[str, ...] = ()
    precision: Any = "highest"
    last_only: bool = False
    edits: Edits = NO_EDITS

    @nn.compact
    def __call__(
        self,
        x_BTD: jax.Array,
        positions_T: jax.Array,
        mask_TS: jax.Array | None = None,
        past: tuple[jax.Array, jax.Array, jax.Array] | None = None,
        rolling: RollingCache | None = None,
        layer: jax.Array | None = None,
    ) -> tuple[jax.Array, dict[str, Any]]:
        cfg = self.cfg
        before, after = cfg.norm_position in ("pre", "both"), cfg.norm_position in ("post", "both")
        # Where one norm stands alone, before or after, it has the sublayer's name.
        last = "post_norm" if before else "norm"
        captured: dict[str, Any] = {}

        def norm(name: str, x: jax.Array) -> jax.Array:
            return Norm(cfg.norm, cfg.norm_eps, name=name)(x)

        def attend(x: jax.Array) -> jax.Array:
            y = norm("attention_norm", x) if before else x
            module = Attention(cfg, self.capture, self.precision, self.last_only, self.edits, name="attention")
            y, activations = module(y, positions_T, mask_TS, past, rolling, layer)
            captured.update(activations)
            return norm(f"attention_{last}", y) if after else y

        def feed_forward(x: jax.Array) -> jax.Array:
            y = norm("mlp_norm", x) if before else x
            sublayer = MLP if cfg.num_experts is None else Experts
            y, activations = sublayer(cfg, self.capture, self.precision, self.edits, name="mlp")(y)
            captured.update(activations)
            return norm(f"mlp_{last}", y) if after else y

        # Residual connections around both sublayers: side by side, or MLP after attention.
        stream = x_BTD[:, -1:] if self.last_only else x_BTD
        if cfg.parallel_residual:
            stream = stream + attend(x_BTD) + feed_forward(stream)
        else:
            if cfg.attention:
                update = attend(x_BTD)
                stream = stream + update if cfg.residual else update
            if cfg.mlp:
                update = feed_forward(stream)
                stream = stream + update if cfg.residual else update
        stream = edited(self.edits.residual, stream)
        if "residual" in self.capture:
            captured["residual"] = stream
        return stream, captured
