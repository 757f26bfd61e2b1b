"""Roles of the tensors of any model's files, by the names that they bear: no configuration has to be understood.

Names are data (:mod:`.conventions`). What the table does not know may be described in a file of roles; what nobody
describes is listed as unread. Of ``config.json`` only the numbers of heads, the kind of norm and the activation are
read, wherever they stand.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from bornbiased_jax.checkpoints import conventions
from bornbiased_jax.checkpoints.conventions import GROUP_AXES, Convention
from bornbiased_jax.checkpoints.families import FAMILIES, Family
from bornbiased_jax.checkpoints.latent import latent_parts, parse_axes, role_of
from bornbiased_jax.checkpoints.layout import with_rotated
from bornbiased_jax.checkpoints.names import NamedTensor, RoleRow, parse_names
from bornbiased_jax.checkpoints.native_roles import LANGUAGE
from bornbiased_jax.checkpoints.roles import Role, RoleSource, RoleTensor, Shape
from bornbiased_jax.checkpoints.sizes import Json, config_of, measure, settle
from bornbiased_jax.checkpoints.tensors import FLOAT_TYPES, NamedTensors, as_float32, check_finite
from bornbiased_jax.errors import InputError
from bornbiased_jax.schema import cut


class NamedRoles(RoleSource):
    """Roles of files of any model, by the names of their tensors.

    Attributes:
        unread: names that no convention understands, whose tensors do not have the sizes of their roles, or that say
            the place of another tensor.
    """

    naming = "names"

    def __init__(
        self, tensors: NamedTensors, config: Json, *, rows: Sequence[RoleRow] = (), tokenizer_files: Sequence[Path] = ()
    ) -> None:
        self._family = str(config.get("model_type") or config_of(config, LANGUAGE).get("model_type") or "")
        description = f"{self._family or 'unnamed'} model of {tensors.where}, read by names"
        super().__init__(description, tokenizer_files, notes=tensors.notes)
        self._tensors, self._config = tensors, config
        self._last: tuple[str, np.ndarray] | None = None
        self._paths: set[str] = set()
        named, unread, prefixes = parse_names(tensors.shapes, self._family, rows)
        if prefixes:
            self._note(f"names bear the prefix {' and '.join(prefixes)}, which was taken away")
        by_component: dict[str, list[NamedTensor]] = {}
        for tensor in named:
            by_component.setdefault(tensor.component, []).append(tensor)
        self._sizes = {
            component: measure(config_of(config, component), members, tensors.shapes)
            for component, members in by_component.items()
        }
        # What the sizes of a tensor decide, and its name does not; then a part for every role. What does not have the
        # sizes of its role is unread.
        named = settle(named, self._sizes, tensors.shapes)
        self._post_norm_blocks = {
            (tensor.component, tensor.block)
            for tensor in named
            if tensor.row.groups == "norm:attention_norm"
            and (tensor.tail == "post_attention_layernorm" or config_of(config, tensor.component).get("norm_after"))
        }
        self.unread = tuple(sorted(unread + self._add_all(named)))
        self._is_tied = self._tie(named)
        if heads := [tensor.name for tensor in named if tensor.row.match == conventions.OTHER_HEADS]:
            self._note(f"compared by itself, as no part of a language model: {', '.join(heads)}")
        self._check()

    def _note(self, note: str) -> None:
        self.notes = (*self.notes, note)

    # Roles.

    def _add_all(self, tensors: Sequence[NamedTensor]) -> list[str]:
        """Add the roles of every tensor, and return the names of those that have none."""
        unread = []
        latent: dict[tuple[str, int | None], dict[str, NamedTensor]] = {}
        for tensor in tensors:
            if tensor.group == "latent" and not tensor.is_bias:
                latent.setdefault((tensor.component, tensor.block), {})[tensor.module] = tensor
            elif not self._add(tensor):
                unread.append(tensor.name)
        for parts in latent.values():
            products = latent_parts(parts, self._tensors, self._sizes[next(iter(parts.values())).component])
            products = products if self._put(products) else {}
            multiplied = {name for role in products for name in role.name.split("+")}
            unread += [tensor.name for tensor in parts.values() if tensor.name not in multiplied]
        return unread

    def _add(self, tensor: NamedTensor) -> bool:
        """Add the roles of one tensor, which may hold several matrices and all experts."""
        sizes, shape = self._sizes[tensor.component], self._tensors.shapes[tensor.name]
        if tensor.group == "latent":
            # No product has the biases of its factors.
            tensor = tensor._replace(row=tensor.row._replace(groups=f"other:{tensor.module}"))
        if tensor.group in ("other", "sink_logit", "norm") or tensor.row.axes == "residual":
            return self._add_single(tensor, shape)
        oriented = sizes.oriented(tensor, shape)
        num_axes = 1 if tensor.is_bias else 2
        is_stacked = len(oriented) == num_axes + 1
        if len(oriented) != num_axes + is_stacked or (tensor.expert is not None and is_stacked):
            return False
        part_sizes = sizes.part_sizes(tensor, oriented[-1])
        if part_sizes is None:
            return False
        parts = []
        for group, size in zip(tensor.group.split("+"), part_sizes, strict=True):
            axes, part_shape = parse_axes(tensor.row.axes or GROUP_AXES[group]), (*oriented[is_stacked:-1], size)
            axes = axes[-1:] if tensor.is_bias else axes
            # Heads whose rows are to be put in order must be whole.
            is_cut = group in ("query", "key") and sizes.head_dim is not None and size % sizes.head_dim != 0
            if not sizes.fit(group, axes, part_shape) or (is_cut and self._is_paired(tensor)):
                return False
            parts.append((group, axes, part_shape))
        roles: dict[Role, RoleTensor] = {}
        for index, (group, axes, part_shape) in enumerate(parts):
            for expert in range(oriented[0]) if is_stacked else (None,):
                leaf = "bias" if tensor.is_bias else "embedding" if group in ("embedding", "positions") else "kernel"
                role = role_of(
                    tensor if expert is None else tensor._replace(expert=expert + 1),
                    "bias" if tensor.is_bias else group,
                    leaf,
                    axes,
                    group if tensor.is_bias else "",
                )
                roles[role] = RoleTensor(part_shape, functools.partial(self._read_part, tensor, index, expert))
        return self._put(roles)

    def _put(self, parts: Mapping[Role, RoleTensor]) -> bool:
        """Add roles, unless another tensor of the files stands in one of their places."""
        paths = {role.path for role in parts}
        if not paths.isdisjoint(self._paths):
            return False
        self._paths |= paths
        self._parts |= parts
        return True

    def _add_single(self, tensor: NamedTensor, shape: tuple[int, ...]) -> bool:
        """Add a vector, or a tensor of which only the axis of the residual stream has a meaning."""
        sizes = self._sizes[tensor.component]
        text = tensor.row.axes or GROUP_AXES[tensor.group]
        if tensor.module in ("query_norm", "key_norm"):
            heads = "head" if tensor.module == "query_norm" else "kv_head"
            plain = "head_dim" if shape == (sizes.head_dim,) else f"{heads}*head_dim"
            text = plain if len(shape) == 1 else f"{heads} head_dim"
        axes = parse_axes(text)
        is_matrix = len(axes) == 2 and tensor.group == "other" and not tensor.is_bias
        if tensor.group == "other" and tensor.is_bias:
            axes = axes[-1:]
        if tensor.group == "other" and len(axes) == 1 and axes != (("residual",),):
            axes = (*parse_axes("channel " * (len(shape) - 1)), *axes)
        # The linear maps of the files lie as [out, in], convolutions with all axes of their input.
        file_shape = (shape[0], int(np.prod(shape[1:]))) if is_matrix and len(shape) > 2 else shape
        role_shape = file_shape[::-1] if is_matrix else file_shape
        if not sizes.fit(tensor.group, axes, role_shape):
            return False
        is_norm_bias = tensor.group == "norm" and tensor.is_bias
        leaf = "bias" if tensor.is_bias else "scale" if tensor.group == "norm" else "kernel"
        role = role_of(tensor, "bias" if is_norm_bias else tensor.group, leaf, axes, tensor.module)
        is_offset_family = conventions.OFFSET_NORMS.fullmatch(self._family_of(tensor.component)) is not None
        is_offset = leaf == "scale" and tensor.component == LANGUAGE and is_offset_family

        def read() -> np.ndarray:
            array = self.read_stored(tensor.name).reshape(file_shape)
            array = array.T if is_matrix else array
            if tensor.module in ("query_norm", "key_norm"):
                array = self._in_halves(tensor.component, array)
            return array + np.float32(1.0) if is_offset else array

        return self._put({role: RoleTensor(role_shape, read)})

    def _family_of(self, component: str) -> str:
        return str(config_of(self._config, component).get("model_type") or self._family)

    def _tie(self, tensors: Sequence[NamedTensor]) -> bool:
        """Settle whether the head is the embedding: stored once, under either name, or twice."""
        tables = {tensor.row.groups: tensor for tensor in tensors if tensor.block is None and not tensor.is_bias}
        embedding, head = tables.get("embedding"), tables.get("head")
        field = "tie_word_embeddings"
        is_said_tied = config_of(self._config, LANGUAGE).get(field, self._config.get(field))
        if head is None:
            # A configuration that does not say leaves nothing but the embedding for a head.
            if embedding is None or is_said_tied is None:
                if embedding is not None and (name := self._class_without_head()):
                    self._note(f"no output head is stored, as of a {name}")
                return embedding is not None
            if not is_said_tied:
                self._note(f"no output head is stored, though {field} is false")
            return bool(is_said_tied)
        if embedding is None:
            # A tied table that was saved under the name of the head.
            self._add(head._replace(row=Convention("", "embedding")))
            self._drop_head(head.name)
            self._note(f"the embedding is stored once, as {head.name}")
            return True
        if not is_said_tied:
            return False
        shapes = self._tensors.shapes
        if shapes[head.name] != shapes[embedding.name]:
            return False
        if not np.array_equal(self.read_stored(head.name), self.read_stored(embedding.name)):
            return False
        self._drop_head(head.name)
        self._note(f"{head.name} is a copy of the embedding")
        return True

    def _class_without_head(self) -> str:
        """Return the class of transformers that a model is of, where it has no head, as LlamaModel; else ""."""
        names = self._config.get("architectures")
        name = str(names[0]) if isinstance(names, list) and names else ""
        return cut(name) if name.endswith("Model") else ""

    def _drop_head(self, name: str) -> None:
        for role in [role for role in self._parts if role.name == name and role.group == "head"]:
            del self._parts[role]

    def _check(self) -> None:
        """Refuse files of which no block is understood."""
        if not any(role.block is not None and role.group in ("up", "query", "other") for role in self._parts):
            shown = ", ".join(self.unread[:4]) + (f" and {len(self.unread) - 4} more" if len(self.unread) > 4 else "")
            raise InputError(
                f"no convention of names fits {self._tensors.where}: {shown or 'no tensor of a block'} "
                "is not understood; describe them in a file of roles (--roles FILE)"
            )

    # Reading.

    def release(self) -> None:
        """Let go of the tensor that was read last, which is held for its other parts."""
        self._last = None

    def stored_in(self, role: Role) -> tuple[str, ...]:
        """Return the tensors that a role of latent attention is a product of, or the matrix that it is fused in.

        Of experts that are stacked each is a tensor of its own: it may have scales of its own.
        """
        names, shapes = tuple(role.name.split("+")), self._tensors.shapes
        if len(names) > 1:
            return names if all(name in shapes for name in names) else ()
        is_fused = self._num_roles[role.name] > 1 and len(shapes[role.name]) == 2
        return names if is_fused else ()

    @cached_property
    def _num_roles(self) -> Counter[str]:
        return Counter(role.name for role in self._parts)

    def read_stored(self, name: str) -> np.ndarray:
        """Read a tensor of the files as float32, its axes as they have them.

        The last is held, since experts are asked for one after the other.

        Raises:
            InputError: it holds NaN or infinite values, or its file is corrupted.
        """
        if self._last is None or self._last[0] != name:
            self._last = None
            self._last = name, as_float32(check_finite(self._tensors.read(name), name, self._tensors.where))
        return self._last[1]

    def _read_part(self, tensor: NamedTensor, index: int, expert: int | None) -> np.ndarray:
        sizes, array = self._sizes[tensor.component], self.read_stored(tensor.name)
        array = array if expert is None else array.reshape(sizes.stacked(tensor, array.shape))[expert]
        if not tensor.is_bias and not sizes.is_in_out(tensor, expert is not None):
            array = array.T
        part = sizes.part(tensor, array, index)
        if tensor.row.is_paired and sizes.head_dim:
            heads = part.reshape(*part.shape[:-1], -1, sizes.head_dim)
            return with_rotated(heads, (sizes.head_dim // 2, 2)).reshape(part.shape)
        is_turned = tensor.group.split("+")[index] in ("query", "key")
        return self._in_halves(tensor.component, part) if is_turned else part

    def _is_paired(self, tensor: NamedTensor) -> bool:
        """Tell whether RoPE rotates adjacent rows of a tensor of queries or keys together."""
        return tensor.row.is_paired or self._paired_family(tensor.component) is not None

    def _paired_family(self, component: str) -> Family | None:
        """Return the family of a component if RoPE rotates adjacent rows together in it."""
        family = FAMILIES.get(self._family_of(component))
        is_paired = family is not None and family.rope is not None and "paired query" in family.forms.values()
        return family if is_paired else None

    def _in_halves(self, component: str, array: np.ndarray) -> np.ndarray:
        """Put adjacent rows that RoPE rotates together into two halves of a head, as this package has them."""
        family, head_dim = self._paired_family(component), self._sizes[component].head_dim
        if family is None or family.rope is None or not head_dim:
            return array
        config = config_of(self._config, component)
        rope = config.get("rope_parameters")
        name, usual = "partial_rotary_factor", family.rope.rotated or 1.0
        part = (rope if isinstance(rope, dict) else {}).get(name, config.get(name))
        size = int(head_dim * (part if isinstance(part, (int, float)) and 0 < part <= 1 else usual))
        heads = array.reshape(*array.shape[:-1], -1, head_dim)
        return with_rotated(heads, (size // 2, 2)).reshape(array.shape)

    def shape(self, component: str) -> Shape:
        """Return the sizes of a component."""
        sizes, config, family = self._sizes[component], config_of(self._config, component), self._family_of(component)
        roles = [role for role in self._parts if role.component == component]
        # LayerNorm: biases of norms, the name of the family, or the name of the field of its epsilon.
        has_norm_bias = any(role.group == "bias" and role.module.endswith("_norm") for role in roles)
        has_rms_field, has_layer_field = (
            any(config.get(f"{norm}_norm_{ending}") is not None for ending in ("eps", "epsilon"))
            for norm in ("rms", "layer")
        )
        # OLMo of 2024 names the kind.
        kind = config.get("layer_norm_type")
        is_rms = has_rms_field or kind == "rms" or conventions.RMSNORM.fullmatch(family) is not None
        is_named_layer = kind != "rms" and conventions.LAYERNORM.fullmatch(family) is not None
        is_centered = has_norm_bias or is_named_layer
        activation = next((config[name] for name in conventions.ACTIVATION if config.get(name)), "")
        return Shape(
            num_heads=sizes.num_heads,
            num_kv_heads=sizes.num_kv_heads,
            head_dim=sizes.head_dim,
            is_centered=is_centered or (has_layer_field and not is_rms),
            has_gate=any(role.group == "gate" for role in roles),
            has_odd_activation=activation in conventions.ODD_ACTIVATIONS,
            is_tied=component == LANGUAGE and self._is_tied,
        )

    def _norm_names(self, role: Role) -> Sequence[str]:
        if role.group == "head":
            return ("final_norm",)
        is_post = (role.component, role.block) in self._post_norm_blocks
        is_attention = role.group in ("query", "key", "value", "output_gate", "output")
        sublayer = "attention" if is_attention else "mlp"
        # OPT-350m has its norms behind the sum with the stream.
        is_summed = config_of(self._config, role.component).get("do_layer_norm_before") is False
        if role.block is None or is_summed:
            return ()
        if role.group in ("output", "down"):
            return (f"{sublayer}_norm" if is_post else f"{sublayer}_post_norm",)
        is_reader = is_attention or role.group in ("gate", "up", "router") or role.module == "shared_expert_gate"
        if is_reader and not is_post:
            # Parallel blocks have one norm for both.
            return (f"{sublayer}_norm", "attention_norm")
        return ()

    def stored_as(self, role: Role) -> str:
        """Return the storage type of the tensor's first part."""
        kind = self._tensors.types.get(role.name.split("+")[0], "F32")
        return FLOAT_TYPES.get(kind, kind)
