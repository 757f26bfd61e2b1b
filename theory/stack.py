"""A decoder, by the numbers that theory needs."""

from __future__ import annotations

import dataclasses
from typing import Literal

from bornbiased_jax.theory import checks
from bornbiased_jax.theory.activations import ACTIVATIONS

WRITERS = ("output", "down")
GROUPS = ("query", "key", "value", "output_gate", "gate", "up", *WRITERS)


@dataclasses.dataclass(frozen=True)
class Stack:
    """A decoder, by the numbers that its statistics at initialization depend on.

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
    num_heads: int = 1
    """H."""
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
    group_stds: tuple[tuple[str, tuple[float, ...]], ...] = ()
    """Of groups that differ from the two above, by name (query, key, value, output_gate, output, gate, up, down): a
    standard deviation for each layer, or one for all."""
    logit_scale: float = 1.0
    """What q·k is multiplied with, over 1/√K."""
    angles: tuple[float, ...] = ()
    """By which rotary positions turn each of a key's dimensions a position, 0 for those not turned; () for none.
    Norms of gradients depend on them."""
    balanced_mlp: bool = False
    """Weights that leave the hidden layer have no mean over neurons: the mean activation is not written."""
    qk_norm: bool = False
    window: int | None = None
    attention_kernel: Literal["softmax", "sigmoid", "centred"] = "softmax"
    sink_logit: bool = False
    """An extra logit of 0 in the softmax, which adds nothing."""
    positional_scale: Literal["none", "amplify", "attenuate"] = "none"
    head_norm: bool = False
    output_gate: bool = False
    """The aggregated values are multiplied by sigmoid(gate), per head or per element."""
    value_gate: bool = False
    """Each value is multiplied by it before values are aggregated."""
    max_seq_len: int = 1024
    """Enters attenuation √(i/max_seq_len) and sigmoid attention's offset ln max_seq_len."""

    def __post_init__(self) -> None:
        checks.whole(self.num_layers, "num_layers", 0)
        for name in ("width", "mlp_width", "query_width", "num_heads", "value_width", "max_seq_len"):
            checks.whole(getattr(self, name), name)
        for name in ("norm_eps", "embedding_std", "position_std", "weight_std", "output_std"):
            checks.finite(getattr(self, name), name)
        checks.finite(self.logit_scale, "logit_scale")
        for group, stds in self.group_stds:
            checks.choice(group, "group_stds", GROUPS)
            if len(stds) not in (1, self.num_layers):
                raise ValueError(f"group_stds: {group} has {len(stds)} values for {self.num_layers} layers")
            for std in stds:
                checks.finite(std, group)
        if self.vocabulary is not None:
            checks.whole(self.vocabulary, "vocabulary")
        checks.choice(self.activation, "activation", ACTIVATIONS)
        choices = {
            "norm": ("layernorm", "rmsnorm", "none"),
            "norm_position": ("pre", "post"),
            "attention_kernel": ("softmax", "sigmoid", "centred"),
            "positional_scale": ("none", "amplify", "attenuate"),
        }
        for name, allowed in choices.items():
            checks.choice(getattr(self, name), name, allowed)

    def std(self, group: str, layer: int) -> float:
        """Return the standard deviation of a group's weights in a layer, counted from 0.

        >>> Stack(num_layers=2, width=8, group_stds=(("down", (0.1, 0.2)),)).std("down", 1)
        0.2
        """
        stds = dict(self.group_stds).get(group, (self.output_std if group in WRITERS else self.weight_std,))
        return stds[layer % len(stds)]

    def inner_std(self, layer: int) -> float:
        """Return the standard deviation of the weights whose product with the input enters the activation."""
        return self.std("gate" if self.gated_mlp else "up", layer)

    def mlp_gain(self, layer: int) -> float:
        """Return F·Var(W_down); with a gate also (std of up over std of gate)², for kernels know one of them."""
        gain = self.mlp_width * self.std("down", layer) ** 2
        if not self.gated_mlp:
            return gain
        gate = self.std("gate", layer)
        if gate == 0:
            raise ValueError("gate: its weights are zeros, which leave nothing that kernels could follow; draw them")
        return gain * (self.std("up", layer) / gate) ** 2
