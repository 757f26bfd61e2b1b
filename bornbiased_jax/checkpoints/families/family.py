"""The record of one family of models: how its files name things, what they may say, and what can be written as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from bornbiased_jax.checkpoints.families.reading import Fields, Rope
from bornbiased_jax.checkpoints.layout import Biases, FileEntry, Form, Shapes, make_entries
from bornbiased_jax.config import FieldValue, ModelConfig

BiasFlag = tuple[str, bool] | Literal[True]


class Want(NamedTuple):
    """One condition that a configuration must meet to be exported as a family."""

    field: str
    holds: Callable[[ModelConfig], bool]
    remedy: str


def exactly(**values: object) -> tuple[Want, ...]:
    """Make conditions that fields have these values, in this order."""

    def want(name: str, value: object) -> Want:
        return Want(name, lambda cfg: bool(getattr(cfg, name) == value), f"{name}={text_of(value)}")

    return tuple(want(name, value) for name, value in values.items())


def text_of(value: object) -> str:
    """Write a value as the command line takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def without_rounding(value: float) -> float:
    """Return an integer where rounding alone keeps a number from being one, as numbers of published files are."""
    return round(value) if math.isclose(value, round(value), rel_tol=1e-9) else value


PLAIN: dict[str, FieldValue] = {
    name: getattr(ModelConfig(), name)
    for name in (
        "norm_parameters",
        "residual_scale",
        "shared_norm",
        "embedding_scale",
        "logit_scale",
        "logit_softcap",
        "rope_pattern",
        "attention_scale",
        "attention_softcap",
        "attention_pattern",
        "rope_local_theta",
        "num_experts",
        "shared_expert_width",
    )
}
"""Fields that few families have, with the value that all others have."""


@dataclass(frozen=True)
class Family:
    """All that is particular to one model type of ``transformers``, for reading and for writing.

    Attributes:
        name: ``model_type`` of its ``config.json``.
        architecture: the class of transformers that computes its logits.
        tensors: module of our parameters to its name in the file; "{l}" is the layer, "{leaf}" weight or bias.
        sizes: our field to (its name in ``config.json``, its default in transformers; ... where the file must say it).
        fixed: our fields that the family leaves no choice about.
        wants: what a configuration must meet to be exported as this family, the most telling first.
        bias_flags: those of ``Biases`` that may be to (the flag of ``config.json`` that says so, its default in
            transformers), True for those that always are.
        refused: fields of ``config.json`` that are not supported unless null or false, to what their refusal says.
        rope: how files state RoPE; None for families without it, or with a way of their own.
        read: what else of our fields a ``config.json`` says.
        write: the entries of ``config.json`` besides those of ``sizes``, ``rope`` and ``bias_flags``.
        kernel: how the blocks' matrices lie.
        forms: of modules that lie otherwise, as where several are fused.
        aliases: other names that transformers has given to a tensor.
        gguf: the architecture of its GGUF files; None where those are not read.
        interleaved: whether GGUF files keep the rows of query and key in Meta's order.
        opts: fields of ``PLAIN`` that the family may have with other values, besides those of ``sizes`` and ``fixed``.
        offset_norms: whether its files keep norm scales less one.
    """

    name: str
    architecture: str
    tensors: Mapping[str, str]
    sizes: Mapping[str, tuple[str, Any]]
    fixed: Mapping[str, FieldValue]
    wants: tuple[Want, ...]
    bias_flags: Mapping[str, BiasFlag] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    rope: Rope | None = Rope()
    read: Callable[[Fields], dict[str, FieldValue]] = lambda _: {}
    write: Callable[[ModelConfig], dict[str, object]] = lambda _: {}
    kernel: Form = "transposed"
    forms: Mapping[str, Form] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    gguf: str | None = None
    interleaved: bool = False
    opts: frozenset[str] = frozenset()
    offset_norms: bool = False

    @property
    def conditions(self) -> tuple[Want, ...]:
        """The conditions on a configuration: its own, and plain values of all that it does not opt into."""
        exempt = {*self.opts, *self.sizes, *self.fixed}
        return (*self.wants, *exactly(**{name: value for name, value in PLAIN.items() if name not in exempt}))

    def read_biases(self, fields: Fields) -> Biases:
        """Read which linear layers have a bias."""
        return Biases(**{layer: flag is True or fields.get(*flag) for layer, flag in self.bias_flags.items()})

    def write_biases(self, cfg: ModelConfig) -> dict[str, bool]:
        """Write the flags of biases: each is set where one of its layers has a bias."""
        has_bias = {"qkv": cfg.bias or cfg.qkv_bias, "output": cfg.bias, "mlp": cfg.bias}
        flags: dict[str, bool] = {}
        for layer, flag in self.bias_flags.items():
            if flag is not True:
                flags[flag[0]] = flags.get(flag[0], False) or has_bias[layer]
        return flags

    def biases(self, cfg: ModelConfig) -> Biases:
        """Return the biases that the class has for a configuration; those that it lacks are written as zeros."""
        return self.read_biases(Fields(self.write_biases(cfg), self.name))

    def entries(self, shapes: Shapes) -> list[FileEntry]:
        """List the tensors of a Hugging Face file with these parameters."""

        def form(module: str) -> Form:
            return self.forms.get(module, "transposed" if module == "head" else self.kernel)

        return make_entries(self.tensors, shapes, form, offset_norms=self.offset_norms)
