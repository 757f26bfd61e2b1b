"""Roles of the tensors of any model's files, by the names that they bear: no configuration has to be understood.

Names are data: :data:`CONVENTIONS` says of the last parts of a name what the tensor is and how matrices are fused in
it. What the table does not know may be described in a file of roles; what nobody describes is listed as unread. Of
``config.json`` only the numbers of heads, the kind of norm and the activation are read, wherever they stand.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, cast, get_args

import numpy as np
from annotated_types import Len
from typing_extensions import TypedDict

from bornbiased_jax import io, schema
from bornbiased_jax.checkpoints.families import FAMILIES
from bornbiased_jax.checkpoints.formats.huggingface import TOKENIZERS
from bornbiased_jax.checkpoints.formats.safetensors import open_safetensors
from bornbiased_jax.checkpoints.native_roles import canonical_key, open_roles
from bornbiased_jax.checkpoints.quantized import Tensors, decode
from bornbiased_jax.checkpoints.reference import parse_ref
from bornbiased_jax.checkpoints.roles import Role, RoleSource, Shape
from bornbiased_jax.checkpoints.tensors import NamedTensors, as_float32
from bornbiased_jax.checkpoints.torch_file import open_torch_files
from bornbiased_jax.checkpoints.weight_files import choose_weights
from bornbiased_jax.errors import InputError
from bornbiased_jax.parameters import Axis, Group
from bornbiased_jax.text import load_tokenizer

Split = Literal["", "halves", "interleaved", "joined", "grouped", "gated"]
"""How matrices are fused along the output axis: halves, every second row, query, key and value one after the other or
group of heads by group of heads, query and gate head by head."""


class Convention(NamedTuple):
    """What a name says of a tensor.

    Attributes:
        match: pattern of the name without its block's and expert's numbers, its prefix and "weight" or "bias".
        groups: what it is; several, joined by "+", that are fused; with ":" and the module that a norm belongs to.
        split: how they are fused.
        families: pattern of ``model_type``, where a name means another thing in other families.
        axes: of the array [in, out], where they are not those of the group.
    """

    match: str
    groups: str
    split: Split = ""
    families: str = ""
    axes: str = ""


GROUP_AXES: Mapping[str, str] = {
    "embedding": "vocab residual",
    "positions": "position residual",
    "head": "residual vocab",
    "query": "residual head*head_dim",
    "key": "residual kv_head*head_dim",
    "value": "residual kv_head*head_dim",
    "output_gate": "residual head*head_dim",
    "output": "head*head_dim residual",
    "gate": "residual hidden",
    "up": "residual hidden",
    "down": "hidden residual",
    "router": "residual expert",
    "sink_logit": "head",
    "norm": "residual",
    "other": "channel",
}

_A = (
    r"(?:self_attn|self_attention|attn|attention|attn\.attention|attention\.self|temporal_block|attention\.attention)\."
)
_M = r"(?:mlp|feed_forward|ffn|block_sparse_moe|moe|mixer|mlp\.mlp)\."
_X = _M + r"(?:experts|local_experts)\."

# The first that matches decides, so that a family's own meaning of a name stands before the usual one.
CONVENTIONS: tuple[Convention, ...] = (
    # Attention: fused.
    Convention(_A + "c_attn", "query+key+value", "grouped", "gpt_bigcode"),
    Convention(_A + "query_key_value", "query+key+value", "joined", "chatglm"),
    Convention(_A + "(query_key_value|wqkv|linear_qkv)", "query+key+value", "grouped"),
    Convention(_A + "(c_attn|qkv_proj|qkv|Wqkv|W_pack|in_proj)|att_proj", "query+key+value", "joined"),
    Convention(_A + "q_proj", "query+output_gate", "gated", "qwen3_next|qwen3_5.*"),
    # Attention: matrices of their own, and latent attention, of which the products are read.
    Convention(_A + "(q_a_proj|wq_a)", "latent:q_a"),
    Convention(_A + "(q_a_layernorm|q_norm_a)", "latent:q_a_norm"),
    Convention(_A + "(q_b_proj|wq_b)", "latent:q_b"),
    Convention(_A + "(kv_a_proj_with_mqa|wkv_a)", "latent:kv_a"),
    Convention(_A + "kv_a_layernorm", "latent:kv_a_norm"),
    Convention(_A + "(kv_b_proj|wkv_b)", "latent:kv_b"),
    Convention(_A + "(q_proj|c_q|wq|query|query_proj|to_q)", "query"),
    Convention(_A + "(k_proj|c_k|wk|key|key_proj|to_k)", "key"),
    Convention(_A + "(v_proj|c_v|wv|value|value_proj|to_v)", "value"),
    Convention(
        _A + r"(o_proj|out_proj|c_proj|wo|Wo|dense|proj|linear_proj|to_out\.0)|attn_out|attention\.output\.dense",
        "output",
    ),
    Convention(_A + "(q_norm|q_layernorm|query_norm|q_ln|query_layernorm)", "norm:query_norm"),
    Convention(_A + "(k_norm|k_layernorm|key_norm|k_ln|key_layernorm)", "norm:key_norm"),
    Convention(_A + r"[qk]_layernorm\.norms\.\d+", "other", axes="head_dim"),
    Convention(_A + "(sinks|sink)", "sink_logit"),
    # Experts, stacked or one by one, and MLPs.
    Convention(_X + "gate_up_proj", "gate+up", "interleaved", "gpt_oss"),
    Convention(f"(?:{_X}|{_M})(gate_up_proj|input_linear|gate_and_up_proj)", "gate+up", "halves"),
    Convention(_M + "(Wi|linear_fc1)", "gate+up", "halves", "modernbert"),
    Convention(_M + "dense_h_to_4h", "gate+up", "halves", "chatglm"),
    Convention("ff_proj", "up+gate", "halves"),
    Convention(_M + "w1", "up", families="qwen"),
    Convention(_M + "w2", "gate", families="qwen"),
    Convention(f"(?:{_X}|{_M})(gate_proj|w1|wi_0)", "gate"),
    Convention(f"(?:{_X}|{_M})(up_proj|w3|wi_1)", "up"),
    Convention(
        f"(?:{_M})?(c_fc|fc1|fc_in)|{_M}(dense_h_to_4h|linear_fc1|linear_1|Wi|wi)|intermediate\\.dense|mlp\\.0", "up"
    ),
    Convention(
        f"(?:{_X}|{_M})(down_proj|w2|wo|output_linear)|{_M}c_proj|(?:{_M})?(fc2|fc_out|ff_out)|"
        f"{_M}(dense_4h_to_h|linear_fc2|linear_2|Wo)|output\\.dense",
        "down",
    ),
    Convention(_M + r"(gate|router|router\.layer|gate\.wg)", "router"),
    Convention(
        _M + r"(gate\.e_score_correction|router\.e_score_correction|expert_bias)",
        "other:router_correction",
        axes="expert",
    ),
    Convention(_M + "shared_expert_gate", "other:shared_expert_gate", axes="residual channel"),
    # Norms of blocks.
    Convention("post_attention_layernorm", "norm:attention_post_norm", families="gemma[23].*|.*gemma3.*|.*gemma4.*"),
    Convention("post_attention_layernorm", "norm:attention_norm", families="olmo[23]|exaone4|olmo_hybrid"),
    Convention("post_feedforward_layernorm", "norm:mlp_norm", families="olmo[23]|exaone4|olmo_hybrid"),
    Convention("post_self_attn_layernorm", "norm:attention_post_norm"),
    Convention("post_feedforward_layernorm|post_mlp_layernorm", "norm:mlp_post_norm"),
    Convention(
        "input_layernorm|ln_1|ln_attn|layer_norm1|norm1|norm_1|attention_norm|self_attn_layer_norm|attn_norm|norm|"
        r"self_attention\.linear_qkv\.layer_norm|input_norm",
        "norm:attention_norm",
    ),
    Convention(
        "post_attention_layernorm|pre_feedforward_layernorm|ln_2|ln_mlp|layer_norm2|norm2|norm_2|ffn_norm|"
        r"final_layer_norm|mlp_norm|ff_norm|mlp\.linear_fc1\.layer_norm|pre_mlp_layernorm|post_attention_norm",
        "norm:mlp_norm",
    ),
    Convention(r"attention\.output\.LayerNorm", "norm:attention_post_norm"),
    Convention(r"output\.LayerNorm", "norm:mlp_post_norm"),
    # State-space blocks by what they have: only the side of the residual stream is an axis of ours.
    Convention(r"(linear_attn|mixer|mamba|ssm|short_conv|conv)\.(in_proj\w*)", "other:*", axes="residual channel"),
    Convention(r"(linear_attn|mixer|mamba|ssm|short_conv|conv)\.out_proj", "other:*", axes="channel residual"),
    Convention(r"(linear_attn|mixer|mamba|ssm|short_conv|conv)\.[\w.]+", "other:*"),
)
# Tensors outside blocks.
TABLES: tuple[Convention, ...] = (
    Convention("(embed_tokens|wte|embed_in|word_embeddings|tok_embeddings|embeddings|embedding|embed)", "embedding"),
    Convention(r"(embeddings\.word_embeddings|embedding\.word_embeddings)", "embedding"),
    Convention("(lm_head|embed_out|output|output_layer)|transformer.ff_out", "head"),
    Convention("(wpe|embed_positions|position_embeddings|pos_embed|positional_embedding)", "positions"),
    Convention(r"embeddings\.position_embeddings?", "positions"),
    Convention("(norm|ln_f|final_layer_norm|final_layernorm|norm_f|final_norm|model_norm)", "norm:final_norm"),
    Convention(r"(word_embeddings_layernorm|embeddings\.LayerNorm|embed_norm)", "norm:embedding_norm"),
    Convention(
        r"(score|classifier|v_head\.summary|reward_head|value_head|v_head|regression_head|classification_head)",
        "other:*",
        axes="residual channel",
    ),
)
# Towers and projectors: their residual axis is the stream that they write to.
TOWERS: tuple[Convention, ...] = (
    Convention("(linear_1|mlp.0|fc1|0|linear_fc1)", "up", axes="channel hidden"),
    Convention("(linear_2|mlp.2|fc2|2|linear_fc2)", "down"),
    Convention("(patch_embed.proj|embeddings.patch_embedding|conv1|patch_conv)", "other:*", axes="channel residual"),
    Convention("(embeddings.position_embedding|positional_embedding|pos_embed|position_embedding)", "positions"),
    Convention("(embeddings.class_embedding|class_embedding|cls_token)", "other:*", axes="residual"),
    Convention("(post_layernorm|norm|ln_post)", "norm:final_norm"),
    Convention("(pre_layrnorm|pre_layernorm|ln_pre)", "norm:embedding_norm"),
    Convention(r"(head\.[\w.]+|ln_q|mm_[\w.]+|norm|[\w.]*layer_?norm\w*)", "other:*"),
)

_WRAPPER = re.compile(r"^(?:_orig_mod\.|module\.|base_model\.model\.|_fsdp_wrapped_module\.)")
_BLOCK = re.compile(r"(?:^|(?<=\.))(?:layers|h|blocks|layer|block|resblocks)\.(\d+)\.")
_EXPERT = re.compile(r"((?:^|\.)(?:experts|local_experts))\.(\d+)\.")
_SHARED = re.compile(r"(?:shared_experts?|shared_mlp)\.")
_BUFFER = re.compile(
    r".*(?:rotary_emb\.inv_freq|\.masked_bias|position_ids|num_batches_tracked|rope\.freqs|rotary_pos_emb\.inv_freq)"
)
_LANGUAGE = {"", "model", "transformer", "gpt_neox", "backbone", "language_model", "text_model", "decoder", "encoder"}
_LANGUAGE |= {"lm", "llm", "bert", "roberta", "embedding", "embeddings", "thinker", "pretrained_model"}
_PROJECTOR = re.compile(r"projector|merger|connector|aligner")
_VISION = re.compile(r"vision|visual|image")
# Norms of these families multiply by 1 + g.
_OFFSET_NORMS = re.compile(r"gemma\w*|qwen3_next|qwen3_5\w*|recurrent_gemma|nemotron|paligemma|shieldgemma2?")
# Families whose configuration does not tell which norm they have.
_LAYERNORM = re.compile(r"olmo|mpt|dbrx|cohere2?|nemotron")
_RMSNORM = re.compile(r"mamba2?|falcon_mamba")
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
_HEAD_DIM = ("head_dim", "kv_channels", "attention_head_size")


class RoleRow(TypedDict):
    """One row of a file of roles: names as the files have them, with "{block}" and "{expert}" for numbers."""

    name: str
    group: str
    axes: NotRequired[str]
    split: NotRequired[Split]
    component: NotRequired[str]
    module: NotRequired[str]


class RolesFile(TypedDict):
    """A file of roles, for what the table of conventions does not know."""

    tensors: Annotated[list[RoleRow], Len(1)]


class _Tensor(NamedTuple):
    """A tensor of the files, with what its name says."""

    name: str
    component: str
    block: int | None
    expert: int | None
    is_shared: bool
    is_bias: bool
    row: Convention
    tail: str


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """Sizes of a component, from its tensors and the configuration."""

    residual: int
    num_heads: int | None
    num_kv_heads: int | None
    head_dim: int | None
    nope_dim: int | None
    rope_dim: int | None
    is_conv1d: bool
    are_experts_in_out: bool

    @property
    def query_size(self) -> int | None:
        """Rows of the queries of all heads."""
        return self.num_heads * self.head_dim if self.num_heads and self.head_dim else None

    @property
    def key_size(self) -> int | None:
        """Rows of the keys of all heads."""
        return self.num_kv_heads * self.head_dim if self.num_kv_heads and self.head_dim else None


class NamedRoles:
    """A :class:`.roles.RoleSource` over files of any model, by the names of their tensors.

    Attributes:
        notes: what was found beside the plain case, one sentence each: prefixes, tied tables.
    """

    naming = "names"

    def __init__(
        self,
        tensors: Tensors,
        config: Mapping[str, Any],
        *,
        rows: Sequence[RoleRow] = (),
        tokenizer_files: Sequence[Path] = (),
    ) -> None:
        self._tensors, self._config, self._tokenizer_files = tensors, config, tokenizer_files
        self._family = str(config.get("model_type") or _nested(config, "language").get("model_type") or "")
        self.notes: list[str] = list(tensors.notes)
        self._last: tuple[str, np.ndarray] | None = None
        self._is_tied = False
        parsed = list(self._parse(rows))
        self.unread: tuple[str, ...] = ()
        self._sizes = {component: self._measure(component, parsed) for component in {row.component for row in parsed}}
        self._readers: dict[Role, tuple[tuple[int, ...], Callable[[], np.ndarray]]] = {}
        self._build(parsed)
        self._norms = {(role.component, role.block, role.module): role for role in self._readers if _is_scale(role)}
        self._check()

    # Names.

    def _parse(self, rows: Sequence[RoleRow]) -> Iterator[_Tensor]:
        """Yield the tensors whose names are understood; keep the others as unread."""
        given = [(_template(row["name"]), row) for row in rows]
        prefixes, unread = set(), []
        for name in sorted(self._tensors.shapes):
            tensor = next(
                (_described(name, match, row) for pattern, row in given if (match := pattern.fullmatch(name))), None
            )
            if tensor is None:
                plain = name
                while (wrapper := _WRAPPER.match(plain)) is not None:
                    prefixes.add(wrapper[0])
                    plain = plain[wrapper.end() :]
                plain = plain.replace("_orig_mod.", "").replace(".base_layer.", ".")
                if _BUFFER.fullmatch(plain) or (
                    plain.endswith((".attn.bias", ".attention.bias")) and self._is_mask(name)
                ):
                    continue
                tensor = self._understood(name, plain)
            if tensor is None:
                unread.append(name)
            else:
                yield tensor
        if prefixes:
            self.notes.append(f"names bear the prefix {' and '.join(sorted(prefixes))}, which was taken away")
        self._unparsed = unread

    def _is_mask(self, name: str) -> bool:
        return len(self._tensors.shapes[name]) == 4

    def _understood(self, name: str, plain: str) -> _Tensor | None:
        """Look a name up in the table, None where no row fits."""
        block = _BLOCK.search(plain)
        head, tail = (plain[: block.start()], plain[block.end() :]) if block else ("", plain)
        expert = _EXPERT.search(tail)
        if expert is not None:
            tail = tail[: expert.start()] + expert[1] + "." + tail[expert.end() :]
        is_shared = _SHARED.search(tail) is not None
        tail = _SHARED.sub("", tail)
        is_bias = tail.endswith((".bias", "_bias")) and not tail.endswith("dt_bias")
        tail = re.sub(r"[._](weight|bias)$", "", tail) if not tail.endswith("dt_bias") else tail
        component, tables = "language", TABLES
        if block is None:
            head, tail = _split_head(tail)
        if _PROJECTOR.search(head):
            component, tables = "projector", TOWERS
        elif _VISION.search(head):
            component, tables = "vision", TOWERS
        elif other := [part for part in head.split(".") if part not in _LANGUAGE]:
            component, tables = other[0], (*TOWERS, *TABLES)
        row = next((row for row in (CONVENTIONS if block else tables) if self._fits(row, tail)), None)
        if row is None:
            return None
        number = int(block[1]) + 1 if block else None
        return _Tensor(name, component, number, int(expert[2]) + 1 if expert else None, is_shared, is_bias, row, tail)

    def _fits(self, row: Convention, tail: str) -> bool:
        return re.fullmatch(row.match, tail) is not None and (
            not row.families or re.fullmatch(row.families, self._family) is not None
        )

    # Sizes.

    def _measure(self, component: str, parsed: Sequence[_Tensor]) -> _Sizes:
        """Find the sizes of a component: from norms and tables the width, from the configuration the heads."""
        own = [tensor for tensor in parsed if tensor.component == component]
        config = _nested(self._config, component)

        def out_size(group: str) -> int | None:
            return next(
                (self._tensors.shapes[row.name][0] for row in own if row.row.groups == group and not row.is_bias), None
            )

        residual = out_size("norm:attention_norm") or out_size("norm:mlp_norm")
        if residual is None:
            table = next(
                (row.name for row in own if row.row.groups in ("embedding", "head", "positions", "down")), None
            )
            shape = self._tensors.shapes[table] if table else (0,)
            residual = shape[0] if table and table.endswith("2.weight") and component == "projector" else shape[-1]
        heads, kv_heads, head_dim = (_first(config, names) for names in (_HEADS, _KV_HEADS, _HEAD_DIM))
        nope, rope = _first(config, ("qk_nope_head_dim",)), _first(config, ("qk_rope_head_dim",))
        if nope and rope:
            head_dim, kv_heads = nope + rope, heads
        # The norm of a head and the rows of the queries tell what a configuration leaves out.
        if head_dim is None and heads and residual % heads == 0:
            head_dim = residual // heads
        head_dim = head_dim or out_size("norm:query_norm")
        queries, keys = out_size("query"), out_size("key")
        if head_dim and not heads and queries and queries % head_dim == 0:
            heads = queries // head_dim
        if config.get("multi_query") and not config.get("new_decoder_architecture"):
            kv_heads = 1
        if head_dim and not nope and keys and keys % head_dim == 0:
            kv_heads = keys // head_dim
        conv1d = any(
            row.tail.endswith("c_attn")
            and not row.is_bias
            and self._tensors.shapes[row.name][0] == residual != self._tensors.shapes[row.name][1]
            for row in own
        )
        return _Sizes(
            residual, heads, kv_heads or heads, head_dim, nope, rope, conv1d, self._are_experts_in_out(own, residual)
        )

    def _are_experts_in_out(self, own: Sequence[_Tensor], residual: int) -> bool:
        """Tell whether stacked experts lie as [expert, in, out]: the matrix that is not square decides."""
        for tensor in own:
            shape = self._tensors.shapes[tensor.name]
            if len(shape) == 3 and not tensor.is_bias and shape[1] != shape[2] and residual in shape[1:]:
                reads = not tensor.row.groups.startswith("down")
                return (shape[1] == residual) == reads
        return False

    # Roles.

    def _build(self, parsed: Sequence[_Tensor]) -> None:
        """Make the roles of every tensor; what does not have the sizes of its role is unread."""
        latent: dict[tuple[str, int | None], dict[str, _Tensor]] = {}
        for tensor in parsed:
            group, _, module = tensor.row.groups.partition(":")
            if group == "latent":
                kind = f"{module}_bias" if tensor.is_bias else module
                latent.setdefault((tensor.component, tensor.block), {})[kind] = tensor
            elif not self._add(tensor):
                self._unparsed.append(tensor.name)
        for (component, block), parts in latent.items():
            if not self._add_latent(component, block, parts):
                self._unparsed += [tensor.name for tensor in parts.values()]
        self._tie(parsed)
        self.unread = tuple(sorted(self._unparsed))

    def _add(self, tensor: _Tensor) -> bool:
        """Add the roles of one tensor, which may hold several matrices and all experts."""
        sizes, shape = self._sizes[tensor.component], self._tensors.shapes[tensor.name]
        groups = tensor.row.groups.split("+")
        if tensor.row.groups.startswith(("other", "sink_logit", "norm")) or tensor.row.axes == "residual":
            return self._add_single(tensor, shape)
        oriented = _oriented_shape(tensor, shape, sizes)
        is_stacked = len(oriented) == (2 if tensor.is_bias else 3)
        if len(oriented) != (1 if tensor.is_bias else 2) + is_stacked or (tensor.expert is not None and is_stacked):
            return False
        part_sizes = _part_sizes(tensor.row.split, oriented[-1], sizes)
        if part_sizes is None:
            return False
        axes = [_axes(tensor.row.axes or GROUP_AXES[group]) for group in groups]
        part_shapes = [(*oriented[is_stacked:-1], size) for size in part_sizes]
        if tensor.is_bias:
            axes = [(names[-1],) for names in axes]
        if not all(
            _fits_sizes(group, names, part, sizes) for group, names, part in zip(groups, axes, part_shapes, strict=True)
        ):
            return False
        for index, (group, names, part) in enumerate(zip(groups, axes, part_shapes, strict=True)):
            for expert in range(oriented[0]) if is_stacked else (None,):
                number = tensor.expert if expert is None else expert + 1
                role = _role(tensor, group, names, number)
                self._readers[role] = part, functools.partial(self._read_part, tensor, index, expert)
        return True

    def _add_single(self, tensor: _Tensor, shape: tuple[int, ...]) -> bool:
        """Add a vector, or a tensor of which only the side of the residual stream has a meaning."""
        group, _, module = tensor.row.groups.partition(":")
        sizes = self._sizes[tensor.component]
        text = tensor.row.axes or GROUP_AXES[group]
        if module in ("query_norm", "key_norm"):
            heads = "head" if module == "query_norm" else "kv_head"
            plain = "head_dim" if shape == (sizes.head_dim,) else f"{heads}*head_dim"
            text = plain if len(shape) == 1 else f"{heads} head_dim"
        names = _axes(text)
        if len(names) == 2 and group == "other" and tensor.is_bias:
            names = (names[-1],)
        if group == "other" and len(names) == 1 and names != (("residual",),):
            names = (*_axes("channel " * (len(shape) - 1)), names[0])
        file_shape = (shape[0], int(np.prod(shape[1:]))) if len(names) == 2 and len(shape) > 2 else shape
        is_matrix = len(names) == 2 and group == "other" and not module.startswith(("query", "key"))
        final = file_shape[::-1] if is_matrix and "channel" in text else file_shape
        if len(final) != len(names) or not _fits_sizes(group, names, final, sizes):
            return False
        if tensor.row.groups == "other:*" or module == "*":
            module = tensor.tail.replace(".", "_")
        leaf = "bias" if tensor.is_bias else "scale" if group == "norm" else "kernel"
        role = Role(
            tensor.component,
            "bias" if group == "norm" and tensor.is_bias else _group(group),
            leaf,
            tensor.block,
            tensor.expert,
            names,
            tensor.is_shared,
            tensor.name,
            module,
        )
        is_offset = group == "norm" and not tensor.is_bias and self._has_offset(tensor)
        flips = is_matrix and "channel" in text

        def read() -> np.ndarray:
            array = self._load(tensor.name).reshape(file_shape)
            array = array.T if flips else array
            return array + np.float32(1.0) if is_offset else array

        self._readers[role] = final, read
        return True

    def _has_offset(self, tensor: _Tensor) -> bool:
        family = str(_nested(self._config, tensor.component).get("model_type") or self._family)
        return tensor.component == "language" and _OFFSET_NORMS.fullmatch(family) is not None

    def _add_latent(self, component: str, block: int | None, parts: Mapping[str, _Tensor]) -> bool:
        """Add query, key and value of latent attention: products of its two matrices with the norm between them."""
        sizes = self._sizes[component]
        if not {"kv_a", "kv_b"} <= parts.keys() or not sizes.nope_dim or not sizes.rope_dim or not sizes.num_heads:
            return False
        shapes = {name: self._tensors.shapes[tensor.name] for name, tensor in parts.items()}
        nope, rope, heads = sizes.nope_dim, sizes.rope_dim, sizes.num_heads
        rank = shapes["kv_b"][1]
        value_dim = shapes["kv_b"][0] // heads - nope
        if shapes["kv_a"] != (rank + rope, sizes.residual) or value_dim < 1 or shapes["kv_b"][0] % heads:
            return False
        residual: tuple[Axis, ...] = ("residual",)

        def add(group: Group, names: Sequence[str], size: int, read: Callable[[], np.ndarray]) -> None:
            axis: Axis = "head" if group == "query" else "kv_head"
            files_of = "+".join(parts[name].name for name in names if name in parts)
            role = Role(component, group, "kernel", block, None, (residual, (axis, "head_dim")), False, files_of)
            self._readers[role] = (sizes.residual, size), read

        def folded(name: str, suffix: str) -> np.ndarray:
            """Return the first matrix [rank, D] with the norm's scale folded in, in float64."""
            matrix = self._tensors.read(parts[name].name).astype(np.float64)
            if f"{name}_norm" in parts:
                scale = self._tensors.read(parts[f"{name}_norm"].name).astype(np.float64)
                matrix[: len(scale)] *= scale[:, None]
            return matrix if suffix == "" else matrix[:rank]

        def query() -> np.ndarray:
            second = self._tensors.read(parts["q_b"].name).astype(np.float64)
            return (second @ folded("q_a", "")).T.astype(np.float32)

        def key() -> np.ndarray:
            first = folded("kv_a", "")
            second = self._tensors.read(parts["kv_b"].name).astype(np.float64).reshape(heads, -1, rank)[:, :nope]
            turned = np.broadcast_to(first[rank:], (heads, rope, sizes.residual))
            return (
                np.concatenate([second @ first[:rank], turned], axis=1).reshape(-1, sizes.residual).T.astype(np.float32)
            )

        def value() -> np.ndarray:
            second = self._tensors.read(parts["kv_b"].name).astype(np.float64).reshape(heads, -1, rank)[:, nope:]
            return (second @ folded("kv_a", "rank")).reshape(-1, sizes.residual).T.astype(np.float32)

        if "q_a" in parts and "q_b" in parts:
            add("query", ("q_a", "q_a_norm", "q_b"), heads * (nope + rope), query)
        add("key", ("kv_a", "kv_a_norm", "kv_b"), heads * (nope + rope), key)
        add("value", ("kv_a", "kv_a_norm", "kv_b"), heads * value_dim, value)
        return True

    def _tie(self, parsed: Sequence[_Tensor]) -> None:
        """Settle whether the head is the embedding: stored once, under either name, or twice."""
        tables = {tensor.row.groups: tensor for tensor in parsed if tensor.block is None and not tensor.is_bias}
        embedding, head = tables.get("embedding"), tables.get("head")
        config = _nested(self._config, "language")
        is_tied = bool(config.get("tie_word_embeddings", self._config.get("tie_word_embeddings", False)))
        if embedding is None and head is not None:
            # A tied table that was saved under the name of the head.
            self._add(head._replace(row=Convention("", "embedding")))
            self._drop(head.name, "head")
            self._is_tied = True
            self.notes.append(f"the embedding is stored once, as {head.name}")
        elif embedding is not None and head is None:
            self._is_tied = True
        elif embedding is not None and head is not None and is_tied:
            same = self._tensors.shapes[head.name] == self._tensors.shapes[embedding.name]
            if same and np.array_equal(self._load(head.name), self._load(embedding.name)):
                self._drop(head.name, "head")
                self._is_tied = True
                self.notes.append(f"{head.name} is a copy of the embedding")

    def _drop(self, name: str, group: str) -> None:
        for role in [role for role in self._readers if role.name == name and role.group == group]:
            del self._readers[role]

    def _check(self) -> None:
        """Refuse files of which no block is understood."""
        if not any(role.block is not None and role.group in ("up", "query", "other") for role in self._readers):
            shown = ", ".join(self.unread[:4]) + (f" and {len(self.unread) - 4} more" if len(self.unread) > 4 else "")
            raise InputError(
                f"no convention of names fits {self._tensors.where}: {shown or 'no tensor of a block'} "
                "is not understood; describe them in a file of roles (--roles FILE)"
            )

    # Reading.

    def _load(self, name: str) -> np.ndarray:
        """Read a tensor of the files; the last is kept, since experts are asked for one after the other."""
        if self._last is None or self._last[0] != name:
            self._last = None
            array = as_float32(self._tensors.read(name))
            if not np.all(np.isfinite(array)):
                raise InputError(
                    f"tensor {name} of {self._tensors.where} holds NaN or infinite values: fetch or train it again"
                )
            self._last = name, array
        return self._last[1]

    def _read_part(self, tensor: _Tensor, index: int, expert: int | None) -> np.ndarray:
        sizes = self._sizes[tensor.component]
        array = self._load(tensor.name)
        array = array if expert is None else array[expert]
        if not tensor.is_bias and not _is_in_out(tensor, expert is not None, sizes):
            array = array.T
        return _part(tensor.row.split, array, index, sizes)

    @property
    def roles(self) -> tuple[Role, ...]:
        """Every tensor that is understood, in canonical order."""
        return tuple(sorted(self._readers, key=canonical_key))

    @property
    def description(self) -> str:
        """One line on where the model came from."""
        return f"{self._family or 'unnamed'} model of {self._tensors.where}, read by names"

    def shape(self, component: str) -> Shape:
        """Return the sizes of a component."""
        sizes, config = self._sizes[component], _nested(self._config, component)
        own = [role for role in self._readers if role.component == component]
        has_norm_bias = any(role.group == "bias" and role.module.endswith("_norm") for role in own)
        has_rms = any(name in config for name in ("rms_norm_eps", "rms_norm_epsilon"))
        has_layer = any(name in config for name in ("layer_norm_eps", "layer_norm_epsilon"))
        family = str(config.get("model_type") or self._family)
        activation = _first_text(config, ("hidden_act", "hidden_activation", "activation_function"))
        return Shape(
            num_heads=sizes.num_heads,
            num_kv_heads=sizes.num_kv_heads,
            head_dim=sizes.head_dim,
            is_centered=has_norm_bias
            or _LAYERNORM.fullmatch(family) is not None
            or (has_layer and not has_rms and _RMSNORM.fullmatch(family) is None),
            has_gate=any(role.group == "gate" for role in own),
            has_odd_activation=activation in ("tanh", "linear", "identity"),
            is_tied=component == "language" and self._is_tied,
        )

    def array_shape(self, role: Role) -> tuple[int, ...]:
        """Return the sizes of a tensor without reading it."""
        return self._readers[role][0]

    def digest_name(self, role: Role) -> str:
        """Return the path of the role."""
        return role.path

    def read(self, role: Role) -> np.ndarray:
        """Read one tensor as float32, its axes as the role says.

        Raises:
            InputError: it holds NaN or infinite values, or its file is corrupted.
        """
        return self._readers[role][1]()

    def norm_scale(self, role: Role) -> np.ndarray | None:
        """Read the scale of the norm between a matrix and the residual stream."""
        is_post = re.fullmatch("olmo[23]|exaone4|olmo_hybrid", self._family) is not None
        sublayer = "attention" if role.group in ("query", "key", "value", "output_gate", "output") else "mlp"
        if role.group == "head":
            return self.output_norm_scale(role.component)
        if role.group in ("output", "down"):
            names = [f"{sublayer}_norm" if is_post else f"{sublayer}_post_norm"]
        elif role.group in ("query", "key", "value", "output_gate", "gate", "up", "router") and not is_post:
            # Parallel blocks have one norm for both.
            names = [f"{sublayer}_norm", "attention_norm"]
        else:
            return None
        norm = next(
            (self._norms[key] for name in names if (key := (role.component, role.block, name)) in self._norms), None
        )
        return None if role.block is None or norm is None else self.read(norm)

    def output_norm_scale(self, component: str) -> np.ndarray | None:
        """Read the scale of the norm before the head."""
        norm = self._norms.get((component, None, "final_norm"))
        return None if norm is None else self.read(norm)

    def token_labels(self) -> tuple[bytes | None, ...] | None:
        """Return the bytes of every token, None where no tokenizer is there.

        Raises:
            InputError: the tokenizer is corrupted.
        """
        table = next((role for role in self._readers if role.group == "embedding"), None)
        if not self._tokenizer_files or table is None:
            return None
        labels = load_tokenizer(self._tokenizer_files[0]).token_bytes()
        size = self.array_shape(table)[0]
        return tuple([*labels, *[None] * (size - len(labels))][:size])

    def stored_as(self, role: Role) -> str:
        """Return the storage type of the tensor's first part."""
        return self._tensors.stored_as(role.name.split("+")[0])


def read_roles_file(path: Path) -> list[RoleRow]:
    """Read a file of roles: ``{"tensors": [{"name": "net.{block}.w_in", "group": "up", "axes": "residual hidden"}]}``.

    Axes are those of the array [in, out]; a matrix of the file lies as [out, in], as PyTorch's linear maps do.

    Raises:
        InputError: it is no such file; a group or an axis does not exist.
    """
    rows: list[RoleRow] = schema.check(RolesFile, io.read_json(path), str(path), "correct it")["tensors"]
    for row in rows:
        for group in row["group"].split("+"):
            if group not in GROUP_AXES:
                raise InputError(f"{path} has group {schema.shown(group)}, which is not one of {', '.join(GROUP_AXES)}")
        for axis in row.get("axes", "").replace("*", " ").split():
            if axis not in get_args(Axis):
                raise InputError(
                    f"{path} has axis {schema.shown(axis)}, which is not one of {', '.join(get_args(Axis))}"
                )
    return rows


def _template(name: str) -> re.Pattern[str]:
    pattern = re.escape(name).replace(r"\{block\}", r"(?P<block>\d+)", 1).replace(r"\{expert\}", r"(?P<expert>\d+)", 1)
    return re.compile(pattern)


def _described(name: str, match: re.Match[str], row: RoleRow) -> _Tensor:
    """Return the tensor that a row of a file of roles describes."""
    numbers = {key: int(value) + 1 for key, value in match.groupdict().items()}
    groups = row["group"] + (f":{row['module']}" if "module" in row else "")
    convention = Convention("", groups, row.get("split", ""), axes=row.get("axes", ""))
    return _Tensor(
        name,
        row.get("component", "language"),
        numbers.get("block"),
        numbers.get("expert"),
        "shared" in name,
        name.endswith("bias"),
        convention,
        name,
    )


def _split_head(tail: str) -> tuple[str, str]:
    """Split the name of a tensor outside blocks into the prefix of its component and the rest."""
    parts = tail.split(".")
    cut = 0
    for index, part in enumerate(parts[:-1]):
        if part in _LANGUAGE or _PROJECTOR.search(part) or _VISION.search(part):
            cut = index + 1
            if part == "embeddings" or part == "embedding":
                cut = index
                break
    return ".".join(parts[:cut]), ".".join(parts[cut:])


def _nested(config: Mapping[str, Any], component: str) -> Mapping[str, Any]:
    """Return the part of a configuration that describes a component."""
    names: tuple[str, ...] = (
        ("vision_config", "visual") if component == "vision" else ("text_config", "llm_config", "thinker_config")
    )
    if component not in ("language", "vision"):
        return _nested_in(config, (f"{component}_config",), component)
    return _nested_in(config, names, component)


def _nested_in(config: Mapping[str, Any], names: tuple[str, ...], component: str) -> Mapping[str, Any]:
    """Return the first of the named parts of a configuration."""
    for name in names:
        if isinstance(config.get(name), dict):
            return _nested(config[name], component)
    return config if component == "language" or "model_type" not in config or "text_config" not in config else {}


def _first(config: Mapping[str, Any], names: Sequence[str]) -> int | None:
    values = (config.get(name) for name in names)
    return next(
        (value for value in values if isinstance(value, int) and not isinstance(value, bool) and value > 0), None
    )


def _first_text(config: Mapping[str, Any], names: Sequence[str]) -> str:
    return next((str(config[name]) for name in names if config.get(name)), "")


def _group(name: str) -> Group:
    return cast(Group, name)


def _axes(text: str) -> tuple[tuple[Axis, ...], ...]:
    return cast(tuple[tuple[Axis, ...], ...], tuple(tuple(axis.split("*")) for axis in text.split()))


def _is_scale(role: Role) -> bool:
    return role.group == "norm" and role.leaf == "scale"


def _role(tensor: _Tensor, group: str, axes: tuple[tuple[Axis, ...], ...], expert: int | None) -> Role:
    leaf = "bias" if tensor.is_bias else "embedding" if group in ("embedding", "positions") else "kernel"
    return Role(
        tensor.component,
        "bias" if tensor.is_bias else _group(group),
        leaf,
        tensor.block,
        expert,
        axes,
        tensor.is_shared,
        tensor.name,
        group if tensor.is_bias else "",
    )


def _is_in_out(tensor: _Tensor, is_stacked: bool, sizes: _Sizes) -> bool:
    """Tell whether a matrix of the files lies as [in, out] and not as PyTorch's linear maps."""
    if tensor.row.groups in ("embedding", "positions"):
        return True
    return sizes.are_experts_in_out if is_stacked else sizes.is_conv1d and tensor.tail.split(".")[-1].startswith("c_")


def _oriented_shape(tensor: _Tensor, shape: tuple[int, ...], sizes: _Sizes) -> tuple[int, ...]:
    """Return the shape as [expert, in, out]."""
    if tensor.is_bias or len(shape) < 2 or _is_in_out(tensor, len(shape) == 3, sizes):
        return shape
    return (*shape[:-2], shape[-1], shape[-2])


def _part_sizes(split: Split, size: int, sizes: _Sizes) -> list[int] | None:
    """Return the sizes of the matrices that are fused along an axis; None where they do not add up to it."""
    if split == "":
        return [size]
    if split in ("halves", "interleaved"):
        return [size // 2] * 2 if size % 2 == 0 else None
    if sizes.query_size is None or sizes.key_size is None:
        return None
    parts = [sizes.query_size] * 2 if split == "gated" else [sizes.query_size, sizes.key_size, sizes.key_size]
    return parts if sum(parts) == size else None


def _part(split: Split, array: np.ndarray, index: int, sizes: _Sizes) -> np.ndarray:
    """Return one of the matrices that are fused along the last axis."""
    if split == "":
        return array
    if split == "interleaved":
        return array[..., index::2]
    lead, size = array.shape[:-1], array.shape[-1]
    if split == "halves":
        return array[..., index * size // 2 : (index + 1) * size // 2]
    heads, groups, head_dim = sizes.num_heads or 1, sizes.num_kv_heads or 1, sizes.head_dim or 1
    if split == "gated":
        return array.reshape(*lead, heads, 2, head_dim)[..., index, :].reshape(*lead, -1)
    if split == "joined":
        ends = np.cumsum([0, heads * head_dim, groups * head_dim, groups * head_dim])
        return array[..., ends[index] : ends[index + 1]]
    # A group's queries, then its key and its value: one group is multi-query attention, as many as heads GPT-NeoX.
    per_group = array.reshape(*lead, groups, heads // groups + 2, head_dim)
    part = per_group[..., : heads // groups, :] if index == 0 else per_group[..., heads // groups + index - 1, :]
    return part.reshape(*lead, -1)


def _fits_sizes(group: str, axes: tuple[tuple[Axis, ...], ...], shape: tuple[int, ...], sizes: _Sizes) -> bool:
    """Tell whether a shape agrees with the sizes of its component, as far as those are known."""
    if len(axes) != len(shape):
        return False
    for names, size in zip(axes, shape, strict=True):
        wanted: int | None = None
        if names == ("residual",):
            wanted = sizes.residual
        elif names == ("head", "head_dim") and group != "output":
            wanted = sizes.query_size
        elif names == ("head", "head_dim"):
            # Values may be narrower than keys.
            if sizes.num_heads and size % sizes.num_heads:
                return False
        elif names == ("kv_head", "head_dim"):
            wanted = sizes.key_size
        elif names in (("head",), ("kv_head",)):
            wanted = sizes.num_heads if names == ("head",) else sizes.num_kv_heads
        if wanted is not None and size != wanted:
            return False
    return True


def open_by_names(folder: Path, *, file: str | None = None, roles_file: Path | None = None) -> NamedRoles:
    """Open a folder of weights for reading by role, whatever its architecture.

    Args:
        folder: of a model; ``config.json`` may be missing.
        file: which set of weights, where there are several.
        roles_file: what the conventions do not know.

    Raises:
        InputError: the files are corrupted, are two sets of weights, or have names that no convention fits.
    """
    weights = choose_weights(folder, file)
    opener: Callable[[Path, list[Path]], NamedTensors] = functools.partial(open_safetensors, allows_quantized=True)
    if not weights.paths[0].name.endswith(".safetensors"):
        opener = open_torch_files
    place = folder / "config.json"
    config = io.read_json(place) if place.is_file() else {}
    if not isinstance(config, dict):
        raise InputError(f"{place} is not a JSON object: it should be a Hugging Face model's configuration")
    tokenizer_files = tuple(path for pattern in TOKENIZERS for path in sorted(folder.glob(pattern)))[:1]
    return NamedRoles(
        decode(opener(folder, weights.paths), config, weights.notes),
        config,
        rows=() if roles_file is None else read_roles_file(roles_file),
        tokenizer_files=tokenizer_files,
    )


def open_role_source(
    ref: str | Path, *, file: str | None = None, roles_file: Path | None = None, ignore_fields: Sequence[str] = ()
) -> RoleSource:
    """Open any model for reading by role: by the table of parameters where this package runs it, else by names.

    Args:
        ref: what :func:`bornbiased_jax.checkpoints.open_checkpoint` takes, or a folder of any model's weights.
        file: which set of weights, where a folder holds several.
        roles_file: what the conventions of names do not know.
        ignore_fields: fields of ``config.json`` to leave out, which are known not to change the model.

    Raises:
        InputError: nothing is there, or what is there is corrupted or not understood.
    """
    reference = parse_ref(ref).fetched()
    if reference.kind != "huggingface" or reference.path is None:
        if roles_file is not None:
            raise InputError(f"{ref} is no folder of weights, which --roles is for: leave the option out")
        return open_roles(ref, file=file, ignore_fields=ignore_fields)
    if roles_file is not None:
        return open_by_names(reference.path, file=file, roles_file=roles_file)
    try:
        return open_roles(ref, file=file, ignore_fields=ignore_fields)
    except InputError as refusal:
        # A comparison needs no forward pass: what stands in its way may not matter here.
        try:
            return open_by_names(reference.path, file=file)
        except InputError as error:
            place = reference.path / "config.json"
            config = io.read_json(place) if place.is_file() else {}
            is_known = isinstance(config, dict) and config.get("model_type") in FAMILIES
            raise (refusal if is_known else error) from error
