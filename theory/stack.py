"""A decoder, by the numbers that theory needs."""

from __future__ import annotations

import dataclasses
from typing import Literal

from theory import checks
from theory.activations import ACTIVATIONS


@dataclasses.dataclass(frozen=True)
class Stack:
    """A decoder, by the numbers that its statistics at initialisation depend on.

    Standard deviations are those of the entries of the weights: ``weight_std`` of query, key, value, up and
    gate, ``output_std`` of the projections that write to the residual stream (Appendix B.1:
    weight_std/√(2L)).

    Raises:
        ValueError: a size below 1, a negative depth, standard deviation or epsilon, an unknown name; it names
            the field.
    """

    num_layers: int
    width: int
    """D, of the residual stream."""
    mlp_width: int = 1
    """F."""
    query_width: int = 1
    """Heads times head dimension, H·K."""
    value_width: int = 1
    """Key/value heads times head dimension, G·K."""
    norm: Literal["layernorm", "rmsnorm", "none"] = "layernorm"
    norm_eps: float = 1e-5
    norm_position: Literal["pre", "post"] = "pre"
    activation: str = "gelu"
    gated_mlp: bool = False
    residual: bool = True
    parallel_residual: bool = False
    attention: bool = True
    mlp: bool = True
    embedding_std: float = 0.02
    position_std: float = 0.0
    """Of learned position vectors, which all sequences share; 0: none."""
    vocabulary: int | None = None
    """Inputs are uniform tokens of a vocabulary this large; None: independent Gaussian vectors."""
    weight_std: float = 0.02
    output_std: float = 0.02
    qk_norm: bool = False
    window: int | None = None
    attention_kernel: Literal["softmax", "sigmoid"] = "softmax"
    sink_logit: bool = False
    """An extra logit of 0 in the softmax, which adds nothing."""
    positional_scale: Literal["none", "amplify", "attenuate"] = "none"
    head_norm: bool = False
    output_gate: bool = False
    """The aggregated values are multiplied by sigmoid(gate), per head or per element."""
    max_seq_len: int = 1024
    """Enters attenuation √(i/max_seq_len) and sigmoid attention's offset ln max_seq_len."""

    def __post_init__(self) -> None:
        checks.whole(self.num_layers, "num_layers", 0)
        for name in ("width", "mlp_width", "query_width", "value_width", "max_seq_len"):
            checks.whole(getattr(self, name), name)
        for name in ("norm_eps", "embedding_std", "position_std", "weight_std", "output_std"):
            checks.finite(getattr(self, name), name)
        if self.vocabulary is not None:
            checks.whole(self.vocabulary, "vocabulary")
        checks.choice(self.activation, "activation", ACTIVATIONS)
        choices = {
            "norm": ("layernorm", "rmsnorm", "none"),
            "norm_position": ("pre", "post"),
            "attention_kernel": ("softmax", "sigmoid"),
            "positional_scale": ("none", "amplify", "attenuate"),
        }
        for name, allowed in choices.items():
            checks.choice(getattr(self, name), name, allowed)
