"""Types of the JSON in the header of a fingerprint's file, with the ranges that a reader holds it to."""

from __future__ import annotations

from typing_extensions import TypedDict

from bornbiased_jax.lineage.fingerprints import RepeatLabels, TokenLabels
from bornbiased_jax.schema import Count, CountOrNone, HiddenWidth, SketchDim


class ShapeFacts(TypedDict):
    """Sizes of a component that its tensors do not show."""

    num_heads: Count | None
    num_kv_heads: Count | None
    head_dim: Count | None
    is_centered: bool
    has_gate: bool
    has_odd_activation: bool
    is_tied: bool


class HeatMapColumns(TypedDict):
    """Columns of the heat map."""

    block: list[Count | None]
    matrix: list[str]


class NeuronSections(TypedDict):
    """Columns of the MLPs and experts."""

    block: list[Count]
    expert: list[Count | None]
    is_shared: list[bool]
    stored: list[Count]
    total: list[Count]


class HeadSections(TypedDict):
    """Columns of the blocks with attention."""

    block: list[Count]
    num_heads: list[Count]
    num_groups: list[Count]


class RouterSections(TypedDict):
    """Columns of the routers."""

    block: list[Count]
    num_experts: list[Count]


class Vectors(TypedDict):
    """Columns of the vectors."""

    path: list[str]
    size: list[CountOrNone]


class ComponentFacts(TypedDict):
    """A component in the header; columns of lists name the slices of its arrays in order."""

    shape: ShapeFacts
    width: CountOrNone
    num_blocks: CountOrNone
    vocab_size: Count | None
    token_labels: TokenLabels | None
    heat_map: HeatMapColumns
    neurons: NeuronSections
    heads: HeadSections
    routers: RouterSections
    vectors: Vectors


class SettingsFacts(TypedDict):
    """Settings; the key in hexadecimal digits."""

    dim: SketchDim
    neurons: Count | None
    sign_key: str
    token_labels: TokenLabels


class RepeatsFacts(TypedDict):
    """Repeats along one axis."""

    component: str
    labels: RepeatLabels
    num_labels: CountOrNone
    num_equal: CountOrNone
    periods: list[Count]
    z: list[float]


class TensorColumns(TypedDict):
    """Columns of the tensors."""

    path: list[str]
    array_shape: list[list[HiddenWidth]]
    is_evidence: list[bool]


class Payload(TypedDict):
    """The payload in the header."""

    settings: SettingsFacts
    components: dict[str, ComponentFacts]
    tensors: TensorColumns
    repeats: list[RepeatsFacts]
    weights_digest: str
    tokenizer_digest: str | None


class SourceFacts(TypedDict):
    """The section about the source, no part of the payload."""

    description: str
    naming: str
    storage: dict[str, int]
    unread: list[str]
