"""Names of tensors in files of any model, looked up in the table of conventions or in a file of roles."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple, NotRequired

from annotated_types import Len
from typing_extensions import TypedDict

from bornbiased_jax import io, schema
from bornbiased_jax.checkpoints import conventions
from bornbiased_jax.checkpoints.conventions import GROUP_AXES, TABLES, TOWERS, Convention, Split
from bornbiased_jax.errors import InputError
from bornbiased_jax.parameters import AXES


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


class NamedTensor(NamedTuple):
    """The facts of one tensor, read from its name.

    Attributes:
        name: in the file.
        component: the part of the model.
        block, expert: their numbers, counted from 1; None outside.
        is_shared: whether it belongs to an expert that every token visits.
        is_bias: whether it is the bias of what the row describes.
        row: the convention that fits.
        tail: the name without prefix, numbers, and "weight" or "bias".
    """

    name: str
    component: str
    block: int | None
    expert: int | None
    is_shared: bool
    is_bias: bool
    row: Convention
    tail: str

    @property
    def group(self) -> str:
        """The group of its matrix; several groups of fused matrices, joined by "+"."""
        return self.row.groups.partition(":")[0]

    @property
    def module(self) -> str:
        """Of a norm, a part of latent attention or a tensor of the group "other": which of them it is."""
        module = self.row.groups.partition(":")[2]
        return self.tail.replace(".", "_") if module == "*" else module


def parse_names(
    shapes: Mapping[str, tuple[int, ...]], family: str, rows: Sequence[RoleRow]
) -> tuple[list[NamedTensor], list[str], list[str]]:
    """Look up every name, in the rows of a file of roles first; the family is the ``model_type``, or "".

    Returns:
        The tensors whose names are understood, the names that are not, and the prefixes that were taken away.
    """
    described = [(_template(row["name"]), row) for row in rows]
    tensors, unread, prefixes = [], [], set()
    model_prefix = _model_prefix(_without_wrappers(name)[0] for name in shapes)
    for name, shape in sorted(shapes.items()):
        matches = ((pattern.fullmatch(name), row) for pattern, row in described)
        tensor = next((_described(name, match, row) for match, row in matches if match is not None), None)
        if tensor is None:
            plain, wrappers = _without_wrappers(name)
            prefixes |= wrappers
            plain = _without_gguf(plain.removeprefix(model_prefix))
            is_mask = len(shape) == 4 and plain.endswith((".attn.bias", ".attention.bias"))
            if is_mask or conventions.BUFFER.fullmatch(plain):
                continue
            tensor = _look_up(name, plain, family)
        # A number alone has no axis that a role could name, and no numbers say nothing.
        if tensor is None or not shape or 0 in shape:
            unread.append(name)
        else:
            tensors.append(tensor)
    return _with_encoder(tensors), unread, sorted(prefixes)


def _with_encoder(tensors: list[NamedTensor]) -> list[NamedTensor]:
    """Take the encoder of a model that has a decoder too for a component of its own: their blocks have one number."""
    places = [set(tensor.name.split(".")) if tensor.component == "language" else set() for tensor in tensors]
    has_decoder = any("decoder" in place for tensor, place in zip(tensors, places, strict=True) if tensor.block)
    return [
        tensor._replace(component="encoder")
        if has_decoder and place & {"encoder", "decoder"} == {"encoder"}
        else tensor
        for tensor, place in zip(tensors, places, strict=True)
    ]


def _without_wrappers(name: str) -> tuple[str, set[str]]:
    """Return a name without the prefixes of wrappers, which stand one after the other, and those."""
    prefixes = set()
    while (wrapper := conventions.WRAPPER.match(name)) is not None:
        prefixes.add(wrapper[0])
        name = name[wrapper.end() :]
    return name.replace("_orig_mod.", "").replace(".base_layer.", "."), prefixes


def _model_prefix(names: Iterable[str]) -> str:
    """Return the prefix of a model whose every block stands under one word that no table knows, as in "biogpt."."""
    words = {name.split(".")[0] for name in names if conventions.BLOCK.search(name)}
    word = words.pop() if len(words) == 1 else ""
    is_known = word in conventions.LANGUAGE_WORDS or conventions.BLOCK.match(f"{word}.0.") is not None
    return "" if is_known or conventions.PROJECTOR.search(word) or conventions.VISION.search(word) else f"{word}."


def _without_gguf(plain: str) -> str:
    """Return the name that the table knows a tensor of llama.cpp by; other names as they are.

    >>> _without_gguf("blk.3.ffn_down.weight"), _without_gguf("model.norm.weight")
    ('layers.3.mlp.down_proj.weight', 'model.norm.weight')
    """
    match = conventions.GGUF.fullmatch(plain)
    if match is None or (match["block"] is None and match["stem"] not in conventions.GGUF_NAMES):
        return plain
    stem = conventions.GGUF_NAMES.get(match["stem"], match["stem"].replace("ssm_", "mixer."))
    block = "" if match["block"] is None else f"layers.{match['block']}."
    return f"{block}{stem}{match['leaf'] or ''}"


def _look_up(name: str, plain: str, family: str) -> NamedTensor | None:
    """Look a name without its wrappers up in the table, None where no row fits."""
    # Numbers of block and expert, "weight" or "bias".
    block = conventions.BLOCK.search(plain)
    head, tail = (plain[: block.start()], plain[block.end() :]) if block else ("", plain)
    expert = conventions.EXPERT.search(tail)
    if expert is not None:
        tail = tail[: expert.start()] + expert[1] + "." + tail[expert.end() :]
    elif (expert := conventions.EXPERT_WEIGHT.search(tail)) is not None:
        tail = tail[: expert.start(2)]
    is_shared = conventions.SHARED.search(tail) is not None
    tail = conventions.SHARED.sub("mlp.", tail)
    # Norms of TensorFlow call their parameters gamma and beta, those of JAX call theirs scale.
    tail = re.sub(r"(?<=LayerNorm\.)(gamma|beta)$", lambda match: "bias" if match[0] == "beta" else "weight", tail)
    tail = re.sub(r"(?<=norm\.)scale$", "weight", tail)
    is_bias = tail.endswith((".bias", "_bias")) and not tail.endswith("dt_bias")
    if not tail.endswith("dt_bias"):
        tail = re.sub(r"[._](weight|bias)$", "", tail)
    if block is None:
        head, tail = _split_head(tail)
    # The component, by the prefix.
    component, tables = "language", TABLES
    if conventions.PROJECTOR.search(head):
        component, tables = "projector", TOWERS
    elif conventions.VISION.search(head):
        component, tables = "vision", TOWERS
    elif foreign := [part for part in head.split(".") if part not in conventions.LANGUAGE_WORDS | conventions.PARTS]:
        # Paths of roles have slashes between their parts.
        component, tables = foreign[0].replace("/", "_"), (*TOWERS, *TABLES)
    row = next((row for row in (conventions.CONVENTIONS if block else tables) if _fits(row, tail, family)), None)
    if row is None:
        return None
    block_number = int(block[1]) + 1 if block else None
    expert_number = int(expert[2]) + 1 if expert else None
    return NamedTensor(name, component, block_number, expert_number, is_shared, is_bias, row, tail)


def _fits(row: Convention, tail: str, family: str) -> bool:
    is_of_family = not row.families or re.fullmatch(row.families, family) is not None
    return is_of_family and re.fullmatch(row.match, tail) is not None


def _split_head(tail: str) -> tuple[str, str]:
    """Split the name of a tensor outside blocks into the prefix of its component and the rest."""
    parts = tail.split(".")
    cut = 0
    for index, part in enumerate(parts[:-1]):
        if part in ("embedding", "embeddings"):
            cut = index
            break
        if part in conventions.LANGUAGE_WORDS or conventions.PROJECTOR.search(part) or conventions.VISION.search(part):
            cut = index + 1
    return ".".join(parts[:cut]), ".".join(parts[cut:])


def read_roles_file(path: Path) -> list[RoleRow]:
    """Read a file of roles: ``{"tensors": [{"name": "net.{block}.w_in", "group": "up", "axes": "residual hidden"}]}``.

    Axes are those of the array [in, out]; a matrix of the file lies as [out, in], as PyTorch's linear maps do.

    Raises:
        InputError: it is no such file; a group or an axis does not exist, or a name would not stand in a path.
    """
    rows: list[RoleRow] = schema.check(RolesFile, io.read_json(path), str(path), "correct it")["tensors"]
    for row in rows:
        for word, name in (("component", row.get("component", "")), ("module", row.get("module", ""))):
            if "/" in name or (word == "component" and name in conventions.PARTS):
                raise InputError(f"{path} has {word} {schema.shown(name)}, as parts of paths are called: rename it")
        axes = row.get("axes", "").replace("*", " ").split()
        for word, values, choices in (
            ("group", row["group"].split("+"), tuple(GROUP_AXES)),
            ("axis", axes, AXES),
        ):
            for value in values:
                if value not in choices:
                    raise InputError(
                        f"{path} has {word} {schema.shown(value)}, which is not one of {', '.join(choices)}"
                    )
    return rows


def _template(name: str) -> re.Pattern[str]:
    pattern = re.escape(name)
    for place in ("block", "expert"):
        pattern = pattern.replace(rf"\{{{place}\}}", rf"(?P<{place}>\d{{1,5}})", 1)
    return re.compile(pattern)


def _described(name: str, match: re.Match[str], row: RoleRow) -> NamedTensor:
    """Return the tensor that a row of a file of roles describes."""
    numbers = {key: int(value) + 1 for key, value in match.groupdict().items()}
    groups = row["group"] + (f":{row['module']}" if "module" in row else "")
    return NamedTensor(
        name,
        row.get("component", "language"),
        numbers.get("block"),
        numbers.get("expert"),
        "shared" in name,
        name.endswith("bias"),
        Convention("", groups, row.get("split", ""), axes=row.get("axes", "")),
        name,
    )
