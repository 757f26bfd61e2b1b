"""The variations of attention that are set side by side, as changes of a configuration."""

from __future__ import annotations

from typing import Any

CURES: dict[str, dict[str, Any]] = {
    "baseline": {},
    "positional amplification": {"positional_scale": "amplify"},
    "positional attenuation": {"positional_scale": "attenuate"},
    "head-wise RMSNorm": {"head_norm": True},
    "head-wise gate": {"output_gate": "headwise"},
    "element-wise gate": {"output_gate": "elementwise"},
    "zero extra logit": {"sink_logit": "zero"},
    "learned extra logit": {"sink_logit": "learned"},
    "sigmoid attention": {"attention_kernel": "sigmoid"},
    "window": {"window": 8},
    "no positions": {"positions": "none"},
}
"""Name -> fields of ``ModelConfig``. The first three are Figure 12's."""

FIGURE_12 = ("baseline", "positional amplification", "positional attenuation")
