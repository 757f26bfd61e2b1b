"""Initialization schemes as data: for each group of parameters a kind of distribution, its scale and a structure.

A scheme is a table from group to :class:`Rule`; what a rule says of one parameter of one configuration is a
:class:`Distribution`. Fan-in and fan-out come from the named axes of the table of parameters. Sources of the named
schemes, by file and function of the public code:

- ``gpt2-scaled``: Appendix B.1 of "Transformers Are Born Biased"; GPT-2's ``model.py``.
- ``normal-0.02``: ``PreTrainedModel._init_weights`` of transformers.
- ``neox``: GPT-NeoX, ``megatron/model/init_functions.py``, its two methods (Pythia).
- ``olmo-mitchell``: OLMo 1, ``olmo/initialization.py`` and ``OLMoSequentialBlock.reset_parameters``.
- ``torchtitan-llama3``: torchtitan, ``models/llama3``, ``init_weights`` of attention, feed-forward and model.
- ``nanochat``: nanochat, ``gpt.py``, ``init_weights``.
- ``modded-nanogpt``: modded-nanogpt, ``train_gpt.py``, ``CastedLinear.reset_parameters`` and the zeros after it.
- ``gemma-jax``: google-deepmind/gemma, ``nn.initializers.normal()`` of every layer, which has a default of 0.01.
- ``t-fixup``: Huang et al. (2020), "Improving Transformer Optimization Through Better Initialization", section 3.3:
  the rule of encoders, whose factor the embedding has here too (theirs is (9 L)^(−¼), 14% less).
- ``rezero``: Bachlechner et al. (2020): every branch starts at zero; other matrices by Xavier's rule.
- ``xavier``, ``kaiming``: ``xavier_uniform_`` and ``kaiming_normal_`` of ``torch.nn.init``; ``lecun``: LeCun et al.
  (1998), "Efficient BackProp", as a normal distribution. Tables of vectors N(0, 0.02²).
- ``mup``: Yang et al. (2022), "Tensor Programs V", table 3, with the input weights of variance 1.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from bornbiased_jax.errors import InputError, suggestion

Group = Literal[
    "embedding",
    "positions",
    "query",
    "key",
    "value",
    "output_gate",
    "value_gate",
    "output",
    "gate",
    "up",
    "down",
    "router",
    "head",
    "prefix",
    "prefix_memory",
    "sink_logit",
    "norm",
    "bias",
    "other",
]
"""Of files read by names, "other" is what no group describes: its module says what it is."""
GROUPS: tuple[Group, ...] = get_args(Group)
DistributionKind = Literal["normal", "truncated2", "truncated3", "uniform", "orthogonal", "zeros", "ones"]
Structure = Literal["none", "balanced", "centered", "mirrored", "repeated"]
KINDS: tuple[DistributionKind, ...] = get_args(DistributionKind)
DEFAULT_STD = 0.02
# Weights are float32.
_MAX_STD = 1e38


class Dimensions(NamedTuple):
    """The quantities that a rule may depend on: of one parameter in one layer (counted from 1), and of its model."""

    fan_in: int
    fan_out: int
    width: int
    num_layers: int
    layer: int


STD_RULES: Mapping[str, Callable[[Dimensions], float]] = {
    "0.02/sqrt(2L)": lambda d: DEFAULT_STD / math.sqrt(2 * d.num_layers),
    "0.02/sqrt(2l)": lambda d: DEFAULT_STD / math.sqrt(2 * d.layer),
    "1/sqrt(D)": lambda d: d.width**-0.5,
    "0.4/sqrt(D)": lambda d: 0.4 * d.width**-0.5,
    "sqrt(2/(5D))": lambda d: math.sqrt(2 / (5 * d.width)),
    "2/(L*sqrt(D))": lambda d: 2 / (d.num_layers * math.sqrt(d.width)),
    "1/fan_in": lambda d: 1 / d.fan_in,
    "1/sqrt(fan_in)": lambda d: d.fan_in**-0.5,
    "0.5/sqrt(fan_in)": lambda d: 0.5 * d.fan_in**-0.5,
    "1/sqrt(2l*fan_in)": lambda d: (2 * d.layer * d.fan_in) ** -0.5,
    "sqrt(2/fan_in)": lambda d: math.sqrt(2 / d.fan_in),
    "sqrt(2/(fan_in+fan_out))": lambda d: math.sqrt(2 / (d.fan_in + d.fan_out)),
    "t-fixup": lambda d: 0.67 * d.num_layers**-0.25 * math.sqrt(2 / (d.fan_in + d.fan_out)),
    "t-fixup-embedding": lambda d: 0.67 * d.num_layers**-0.25 * d.width**-0.5,
}
"""Scales by name; L is the number of layers, l the layer counted from 1, D the width of the residual stream."""


class Rule(NamedTuple):
    """The distribution of a group: ``std`` is a number or a rule's name; of a truncated normal, before truncation."""

    kind: DistributionKind
    std: float | str = 0.0
    structure: Structure = "none"

    def __str__(self) -> str:
        scale = "" if self.kind in ("zeros", "ones") else f":{self.std}"
        return f"{self.kind}{scale}{'' if self.structure == 'none' else f'+{self.structure}'}"


class Distribution(NamedTuple):
    """The distribution of the entries of one parameter.

    Attributes:
        kind: the distribution of an entry.
        stds: standard deviation of an entry, of each layer or once; of a truncated normal, before truncation.
        structure: what is done to a drawn matrix.
        neuron_axis: the axis of neurons, counted from the end, where a structure concerns them.
    """

    kind: DistributionKind
    stds: tuple[float, ...]
    structure: Structure = "none"
    neuron_axis: int | None = None

    @property
    def constant(self) -> float | None:
        """The value of all entries, None where they are drawn."""
        return {"zeros": 0.0, "ones": 1.0}.get(str(self.kind))

    @property
    def std(self) -> float:
        """The scale of the first layer, as it is stated."""
        return self.stds[0]

    @property
    def is_plain_normal(self) -> bool:
        """True if entries are independent normals, so that any of them can be drawn alone."""
        return self.kind == "normal" and self.structure == "none"

    @property
    def is_independent(self) -> bool:
        """True if entries are drawn one by one, in order."""
        return self.kind != "orthogonal" and self.structure == "none"

    def measured_std(self, layer: int = 0) -> float:
        """Return the standard deviation that entries have: that of a truncated normal is below the stated one."""
        std = self.stds[layer if len(self.stds) > 1 else 0]
        if self.kind not in ("truncated2", "truncated3"):
            return std
        return std * truncation_factor(CUTS[self.kind])


CUTS: Mapping[str, float] = {"truncated2": 2.0, "truncated3": 3.0}


def truncation_factor(cut: float) -> float:
    """Return the standard deviation of a unit normal truncated at ±cut.

    >>> round(truncation_factor(2.0), 4)
    0.8796
    """
    density = math.exp(-cut * cut / 2) / math.sqrt(2 * math.pi)
    return math.sqrt(1 - 2 * cut * density / math.erf(cut / math.sqrt(2)))


# The same in every scheme.
_CONSTANT: Mapping[Group, Rule] = {
    "norm": Rule("ones"),
    "bias": Rule("zeros"),
    "sink_logit": Rule("zeros"),
    "prefix_memory": Rule("zeros"),
    # Trained keys and values belong to an adapter, whatever the model's scheme is.
    "prefix": Rule("normal", DEFAULT_STD),
}
_ZEROS = Rule("zeros")
_VECTORS = Rule("normal", DEFAULT_STD)


def _scheme(default: Rule, **groups: Rule) -> Mapping[Group, Rule]:
    """Fill in a scheme: matrices without a rule of their own are drawn by the default."""
    table: dict[Group, Rule] = dict.fromkeys(GROUPS, default)
    return {**table, **_CONSTANT, **groups}  # type: ignore[dict-item]


def _xavier(**groups: Rule) -> Mapping[Group, Rule]:
    return _scheme(Rule("uniform", "sqrt(2/(fan_in+fan_out))"), embedding=_VECTORS, positions=_VECTORS, **groups)


_WRITER = Rule("normal", "0.02/sqrt(2L)")
_DEPTH = Rule("normal", "0.02/sqrt(2l)")
_FIXUP = Rule("uniform", "t-fixup")
_NANOCHAT = Rule("uniform", "1/sqrt(D)")
SCHEMES: Mapping[str, Mapping[Group, Rule]] = {
    "gpt2-scaled": _scheme(Rule("normal", DEFAULT_STD), output=_WRITER, down=_WRITER),
    "normal-0.02": _scheme(Rule("normal", DEFAULT_STD)),
    "neox": _scheme(
        Rule("normal", "sqrt(2/(5D))"), output=Rule("normal", "2/(L*sqrt(D))"), down=Rule("normal", "2/(L*sqrt(D))")
    ),
    "olmo-mitchell": _scheme(
        Rule("truncated3", "1/sqrt(fan_in)"),
        embedding=Rule("truncated3", "1/sqrt(D)"),
        positions=Rule("truncated3", "1/sqrt(D)"),
        output=Rule("truncated3", "1/sqrt(2l*fan_in)"),
        down=Rule("truncated3", "1/sqrt(2l*fan_in)"),
    ),
    # torch truncates these at ±2, which is a hundred standard deviations: they are normal.
    "torchtitan-llama3": _scheme(
        Rule("normal", DEFAULT_STD),
        embedding=Rule("normal", 1.0),
        output=_DEPTH,
        up=_DEPTH,
        down=_DEPTH,
        head=Rule("truncated3", "1/sqrt(D)"),
    ),
    "nanochat": _scheme(
        _NANOCHAT,
        embedding=Rule("normal", 0.8),
        up=Rule("uniform", "0.4/sqrt(D)"),
        head=Rule("normal", 0.001),
        output=_ZEROS,
        down=_ZEROS,
    ),
    "modded-nanogpt": _scheme(
        Rule("uniform", "0.5/sqrt(fan_in)"),
        embedding=Rule("normal", 1.0),
        output=_ZEROS,
        down=_ZEROS,
        head=_ZEROS,
    ),
    "gemma-jax": _scheme(Rule("normal", 0.01)),
    "t-fixup": {
        **_xavier(value=_FIXUP, output=_FIXUP, gate=_FIXUP, up=_FIXUP, down=_FIXUP),
        "embedding": Rule("normal", "t-fixup-embedding"),
    },
    "rezero": _xavier(output=_ZEROS, down=_ZEROS),
    "xavier": _xavier(),
    "kaiming": _scheme(Rule("normal", "sqrt(2/fan_in)"), embedding=_VECTORS, positions=_VECTORS),
    "lecun": _scheme(Rule("normal", "1/sqrt(fan_in)"), embedding=_VECTORS, positions=_VECTORS),
    "mup": _scheme(
        Rule("normal", "1/sqrt(fan_in)"),
        embedding=Rule("normal", 1.0),
        positions=Rule("normal", 1.0),
        head=Rule("normal", "1/fan_in"),
    ),
}
RATES_BY_WIDTH: frozenset[str] = frozenset(("mup",))
"""Schemes that are published with learning rates by width: those of hidden matrices and of the head fall with it."""
SUFFIXES: Mapping[str, Mapping[Group, Structure]] = {
    "balanced": {"down": "balanced"},
    "mirrored": {"gate": "mirrored", "up": "mirrored", "down": "mirrored"},
}
"""Structures of a whole model: writers of MLPs without a mean over neurons; neurons in pairs of opposite sign."""
_OF_VECTORS: frozenset[Group] = frozenset(("norm", "bias", "sink_logit"))
_STRUCTURED: Mapping[Structure, frozenset[Group]] = {
    "balanced": frozenset(("query", "key", "value", "output", "gate", "up", "down", "head")),
    "centered": frozenset(("embedding", "positions", "output", "down")),
    "mirrored": frozenset(("gate", "up", "down")),
}


def parse_scheme(name: str) -> Mapping[Group, Rule]:
    """Return the table of a scheme, "-balanced" or "-mirrored" appended or not.

    Raises:
        InputError: there is no such scheme; the nearest name is suggested.

    >>> str(parse_scheme("gpt2-scaled-balanced")["down"])
    'normal:0.02/sqrt(2L)+balanced'
    """
    base, _, suffix = name.rpartition("-")
    if name in SCHEMES:
        return SCHEMES[name]
    if base in SCHEMES and suffix in SUFFIXES:
        structures = SUFFIXES[suffix]
        return {
            group: rule._replace(structure=structures[group]) if group in structures and rule.kind != "zeros" else rule
            for group, rule in SCHEMES[base].items()
        }
    hint = suggestion(name, SCHEMES, "schemes")
    raise InputError(f"init={name!r} is no initialization scheme: {hint} (-balanced or -mirrored may follow)")


def has_rates_by_width(name: str) -> bool:
    """Check whether a scheme, "-balanced" or "-mirrored" appended or not, has learning rates that fall with width."""
    base, _, suffix = name.rpartition("-")
    return (base if suffix in SUFFIXES else name) in RATES_BY_WIDTH


def parse_rule(group: str, text: str) -> Rule:
    """Parse ``KIND[:STD][+STRUCTURE]`` of one group, as in ``normal:0.02+balanced``.

    Raises:
        InputError: an unknown group, kind, scale or structure, or one that the group cannot have.
    """
    if group not in GROUPS:
        raise InputError(f"init.{group} is no group of parameters: {suggestion(group, GROUPS, 'groups')}")
    where = f"init.{group}={text}"
    # Any other plus belongs to a number or to a rule, as in 1e+2 and fan_in+fan_out.
    body, *structures = re.split(r"\+(?=[a-z]+$)", text)
    structure = structures[0] if structures else "none"
    kind, _, scale = body.partition(":")
    if kind not in KINDS:
        raise InputError(f"{where}: {kind!r} is no distribution: choose from {', '.join(KINDS)}")
    if kind == "orthogonal" and group in _OF_VECTORS:
        raise InputError(f"{where}: orthogonal is a kind of matrices, and {group} is of vectors: choose another")
    if structures and group not in _STRUCTURED.get(structure, ()):  # type: ignore[arg-type]
        can = ", ".join(name for name, groups in _STRUCTURED.items() if group in groups) or "no structure"
        raise InputError(f"{where}: {group} cannot be {structure}; it can have {can}")
    if kind in ("zeros", "ones"):
        if scale:
            raise InputError(f"{where}: {kind} takes no standard deviation: leave :{scale} out")
        if kind == "ones" and structures:
            raise InputError(f"{where}: ones stay ones and cannot be {structure}: leave +{structure} out")
        return Rule(kind, 0.0, structure)  # type: ignore[arg-type]
    if scale in STD_RULES:
        return Rule(kind, scale, structure)  # type: ignore[arg-type]
    try:
        std = float(scale) if scale else DEFAULT_STD
    except ValueError:
        rules = ", ".join(STD_RULES)
        raise InputError(f"{where}: {scale!r} is neither a number nor a rule: choose from {rules}") from None
    if not 0 < std <= _MAX_STD:
        raise InputError(
            f"{where}: a standard deviation is above 0 and at most {_MAX_STD:g}: write {group}=zeros for none"
        )
    return Rule(kind, std, structure)  # type: ignore[arg-type]


def parse_groups(text: str) -> dict[Group, Rule]:
    """Parse rules of several groups, as in ``down=zeros;embedding=normal:1.0``.

    Raises:
        InputError: as :func:`parse_rule`, or a group has two rules.
    """
    rules: dict[Group, Rule] = {}
    for part in filter(None, text.split(";")):
        group: Any
        group, _, rule = part.partition("=")
        if group in rules:
            raise InputError(f"init.{group} has two rules: give it one")
        rules[group] = parse_rule(group, rule)
    return rules


@functools.lru_cache(maxsize=256)
def rules_of(scheme: str, groups: str | None) -> Mapping[Group, Rule]:
    """Return the rule of every group: the scheme's, where ``groups`` does not change it."""
    return {**parse_scheme(scheme), **parse_groups(groups or "")}


def scaled(rule: Rule, dimensions: Sequence[Dimensions]) -> Distribution:
    """Return the distribution that a rule means for a parameter of one or several layers."""
    if not isinstance(rule.std, str):
        return Distribution(rule.kind, (rule.std,), rule.structure)
    stds = tuple(STD_RULES[rule.std](layer) for layer in dimensions)
    return Distribution(rule.kind, stds if len(set(stds)) > 1 else stds[:1], rule.structure)
