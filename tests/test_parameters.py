"""The table of parameters is complete, has the shapes of the layers, and its axes say what each number belongs to."""

import itertools

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bornbiased_jax.config import PRESETS, ModelConfig, preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.model.layers import BlockContext, Norm
from bornbiased_jax.model.model import Block
from bornbiased_jax.parameters import AXES, Parameter, axis_sizes, check_read, flatten, parameter_table

BOOLEANS = """
gated_mlp residual parallel_residual attention mlp bias qkv_bias tie_embeddings qk_norm head_norm shared_norm
""".split()
CHOICES = {
    "norm": ("layernorm", "rmsnorm", "none"),
    "norm_parameters": ("all", "scale", "none"),
    "norm_position": ("pre", "post", "both"),
    "positions": ("rope", "learned", "none"),
    "qk_norm_scope": ("head", "projection"),
    "sink_logit": ("none", "zero", "learned"),
    "output_gate": ("none", "headwise", "elementwise", "value"),
    "prefix_length": (None, 3),
    "prefix_memory": ("none", "elu"),
    "num_kv_heads": (1, 2, 4),
    "num_experts": (None, 3),
    "shared_expert_width": (None, 18),
}
SIZES = dict(num_layers=2, num_heads=4, head_dim=6, d_model=10, d_ff=14, vocab_size=22, max_seq_len=26)


@st.composite
def configs(draw) -> ModelConfig:
    """Configurations with every combination of fields that adds, removes or reshapes a parameter."""
    fields = {name: draw(st.booleans()) for name in BOOLEANS}
    fields |= {name: draw(st.sampled_from(values)) for name, values in CHOICES.items()}
    try:
        return ModelConfig(**SIZES, **fields)
    except InputError:
        return PRESETS["gpt2-tiny"]


def shapes_of_layers(cfg: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shapes as the layers themselves ask for them, traced without a computation."""
    x_BTD = jax.ShapeDtypeStruct((1, 2, cfg.d_model), jnp.float32)
    positions_T = jax.ShapeDtypeStruct((2,), jnp.int32)
    key = jax.eval_shape(lambda: jax.random.key(0))
    layer = jax.ShapeDtypeStruct((), jnp.int32)
    block = jax.eval_shape(Block(cfg).init, key, x_BTD, BlockContext(positions_T, layer=layer)).get("params", {})
    final = jax.eval_shape(Norm(cfg.norm, cfg.norm_eps, cfg.norm_parameters).init, key, x_BTD).get("params", {})
    shapes = {f"blocks/{path}": (cfg.num_layers, *leaf.shape) for path, leaf in flatten(block).items()}
    return shapes | {f"final_norm/{path}": leaf.shape for path, leaf in flatten(final).items()}


def of_layers(cfg: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of the table's rows that belong to layers: embeddings, positions and head are no module."""
    return {
        path: row.shape
        for path, row in parameter_table(cfg).items()
        if not path.startswith(("embed/", "positions/", "head/"))
    }


@pytest.mark.parametrize("name", PRESETS)
def test_table_has_the_parameters_of_every_preset(name):
    assert of_layers(PRESETS[name]) == shapes_of_layers(PRESETS[name])


@pytest.mark.slow
@settings(max_examples=30)
@given(configs())
def test_table_has_the_parameters_of_random_configurations(cfg):
    assert of_layers(cfg) == shapes_of_layers(cfg)


@given(configs())
def test_shapes_follow_from_the_names_of_axes(cfg):
    sizes = axis_sizes(cfg)
    for row in parameter_table(cfg).values():
        assert len(row.axes) == len(row.shape)
        for names, size in zip(row.axes, row.shape, strict=True):
            assert set(names) <= set(AXES)
            product = 1
            for name in names:
                product *= sizes[name]
            assert size == product, row.path


@given(configs())
def test_every_matrix_at_the_residual_stream_reads_or_writes_it_once(cfg):
    for row in parameter_table(cfg).values():
        count = sum("residual" in names for names in row.axes)
        assert count <= 1
        if row.group != "norm" and row.is_matrix:
            assert count == row.reads_residual + row.writes_residual, row.path
        if row.norm is not None:
            assert f"{row.norm}/scale" in parameter_table(cfg) or cfg.norm_parameters == "none"
            assert row.reads_residual or row.writes_residual


def test_axes_of_the_preset_that_groups_its_heads():
    table = parameter_table(preset("qwen-tiny"))
    assert table["blocks/attention/query/kernel"].axes == (("layer",), ("residual",), ("head", "head_dim"))
    assert table["blocks/attention/key/kernel"].axes == (("layer",), ("residual",), ("kv_head", "head_dim"))
    assert table["blocks/attention/key/kernel"].position_of("kv_head") == -1
    assert table["blocks/mlp/down/kernel"].position_of("hidden") == -2
    assert table["blocks/mlp/down/kernel"].position_of("vocab") is None


@pytest.mark.parametrize(
    ("name", "reader", "writer"),
    [
        ("llama-tiny", "blocks/mlp_norm", None),
        ("olmo2-tiny", None, "blocks/mlp_norm"),
        ("gpt2-tiny", "blocks/mlp_norm", None),
    ],
)
def test_norms_stand_where_the_block_puts_them(name, reader, writer):
    table = parameter_table(PRESETS[name])
    assert table["blocks/mlp/up/kernel"].norm == reader
    assert table["blocks/mlp/down/kernel"].norm == writer
    shared = parameter_table(preset("neox-tiny", shared_norm=True))
    assert "blocks/attention_norm/scale" in shared and "blocks/mlp_norm/scale" not in shared


def test_groups_differ_where_initialization_may_differ():
    table = parameter_table(preset("llama-tiny", output_gate="elementwise", positions="learned"))
    groups = {row.group for row in table.values() if row.is_matrix}
    assert groups == {
        "embedding", "positions", "query", "key", "value", "output", "gate", "up", "down", "head", "output_gate",
    }  # fmt: skip


def test_a_group_without_parameters_is_refused():
    tied = preset("gpt2-tiny", tie_embeddings=True, init_groups="down=zeros")
    for field, value in (("init.down", "zeros"), ("init_groups", "down=zeros"), ("init_groups", None), ("bias", True)):
        check_read(tied, field, value, "it")
    for field, value in (("init.head", "zeros"), ("init_groups", "head=zeros")):
        with pytest.raises(InputError, match="^it draws no weights of this model, for its head is the embedding"):
            check_read(tied, field, value, "it")


def test_matrices_of_experts_are_those_of_their_mlps():
    rows = parameter_table(preset("mixtral-tiny")).values()
    names = ("gate", "up", "down")
    assert {row.path for row in rows if row.in_expert} == {f"blocks/mlp/{name}/kernel" for name in names}


def test_rows_are_ordered_and_hashable():
    table = parameter_table(preset("neox-tiny"))
    assert list(table) == sorted(table)
    assert len({hash(row) for row in table.values()}) == len(table)
    assert all(isinstance(row, Parameter) and row.path == path for path, row in table.items())
    assert not any(a == b for a, b in itertools.pairwise(table.values()))
