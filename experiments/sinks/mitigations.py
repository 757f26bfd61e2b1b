"""The variations of attention that are set side by side, as changes of a configuration.

This is the one list of them: the experiments, Figure 9's predictions and their tests take it from here. A new one is a
field of :class:`~bornbiased_jax.config.ModelConfig` (or a new value of one), what it does in
:mod:`bornbiased_jax.model.attention`, and its line here; where theory knows it,
:mod:`bornbiased_jax.theory.variance` as well.
"""

from __future__ import annotations

from typing import Any

MITIGATIONS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "positional amplification": {"positional_scale": "amplify"},
    "positional attenuation": {"positional_scale": "attenuate"},
    "per-head RMSNorm": {"head_norm": True},
    "head-wise gate": {"output_gate": "headwise"},
    "element-wise gate": {"output_gate": "elementwise"},
    "value-state gate": {"output_gate": "value"},
    "zero extra logit": {"sink_logit": "zero"},
    "learned extra logit": {"sink_logit": "learned"},
    "learned key and value": {"prefix_length": 1},
    "sigmoid attention": {"attention_kernel": "sigmoid"},
    "softpick": {"attention_kernel": "softpick"},
    "clipped softmax": {"attention_kernel": "clipped"},
    "centred attention": {"attention_kernel": "centred"},
    "window": {"window": 8},
    "no positions": {"positions": "none"},
}
"""Name -> fields of ``ModelConfig``. The first three are Figure 12's."""

FIGURE_12 = ("baseline", "positional amplification", "positional attenuation")
"""Figure 12: sink rate by sequence length for the baseline and the two positional calibrations."""

HEAD_NORM = "per-head RMSNorm"
"""The one whose convergence the paper reports."""
