"""Tensors of shapes that their names do not promise are unread: whatever is read has the shape of its role."""

import contextlib
from functools import partial

import numpy as np
import pytest

from bornbiased_jax.checkpoints.naming import NamedRoles
from bornbiased_jax.checkpoints.tensors import NamedTensors, Tensor
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.battery import compare_weights
from bornbiased_jax.lineage.fingerprint_file import save_fingerprint
from bornbiased_jax.lineage.fingerprint_pass import fingerprint
from bornbiased_jax.lineage.fingerprints import Settings

BLOCK = "model.layers.0"
COMMON = {
    f"{BLOCK}.mlp.gate_proj.weight": (64, 32), f"{BLOCK}.mlp.up_proj.weight": (64, 32),
    f"{BLOCK}.mlp.down_proj.weight": (32, 64), f"{BLOCK}.input_layernorm.weight": (32,),
    f"{BLOCK}.post_attention_layernorm.weight": (32,), "model.embed_tokens.weight": (48, 32),
    "model.norm.weight": (32,),
}  # fmt: skip
PLAIN = COMMON | {f"{BLOCK}.self_attn.{name}_proj.weight": (32, 32) for name in "qkvo"}
LATENT = COMMON | {
    f"{BLOCK}.self_attn.q_a_proj.weight": (16, 32), f"{BLOCK}.self_attn.q_a_layernorm.weight": (16,),
    f"{BLOCK}.self_attn.q_b_proj.weight": (48, 16), f"{BLOCK}.self_attn.kv_a_proj_with_mqa.weight": (12, 32),
    f"{BLOCK}.self_attn.kv_a_layernorm.weight": (8,), f"{BLOCK}.self_attn.kv_b_proj.weight": (64, 8),
    f"{BLOCK}.self_attn.o_proj.weight": (32, 32),
}  # fmt: skip
FUSED = {
    "gpt_neox.layers.0.attention.query_key_value.weight": (96, 32),
    "gpt_neox.layers.0.attention.dense.weight": (32, 32),
    "gpt_neox.layers.0.mlp.dense_h_to_4h.weight": (64, 32), "gpt_neox.layers.0.mlp.dense_4h_to_h.weight": (32, 64),
    "gpt_neox.layers.0.input_layernorm.weight": (32,), "gpt_neox.embed_in.weight": (48, 32),
}  # fmt: skip
OWN = {f"layers.0.attention.{name}.weight": (32, 32) for name in ("wq", "wk", "wv", "wo")} | {
    "layers.0.feed_forward.w1.weight": (64, 32), "layers.0.feed_forward.w2.weight": (32, 64),
    "layers.0.feed_forward.w3.weight": (64, 32), "layers.0.attention_norm.weight": (32,), "norm.weight": (32,),
}  # fmt: skip
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 4}
CASES = {
    "plain": (PLAIN, HEADS),
    "latent": (LATENT, HEADS | {"qk_nope_head_dim": 8, "qk_rope_head_dim": 4}),
    "latent of another number of heads": (
        LATENT,
        {"num_attention_heads": 1, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4},
    ),
    "fused": (FUSED, HEADS),
    "llama's own, without heads": (OWN, {"head_dim": 8}),
    "of paired rows, without heads": (PLAIN, {"model_type": "glm4", "head_dim": 12}),
}
ODD = [(), (0,), (1,), (0, 0), (1, 32), (32, 1), (33, 31), (2, 32, 32), (1, 2, 3, 4)]


def source_of(shapes, config):
    """Tensors of ones by role."""
    tensors = {name: Tensor("F32", shape, partial(np.ones, shape, np.float32)) for name, shape in shapes.items()}
    return NamedRoles(NamedTensors("here", tensors), config)


def read_all(shapes, config):
    """Read every role of tensors of ones; return their paths."""
    source = source_of(shapes, config)
    for role in source.roles:
        assert source.read(role).shape == source.array_shape(role), role.path
        source.norm_scale(role)
        source.shape(role.component)
    return [role.path for role in source.roles]


@pytest.mark.parametrize("case", CASES)
def test_what_is_read_has_the_shape_of_its_role(case):
    shapes, config = CASES[case]
    assert len(read_all(shapes, config)) >= len(shapes) - 6
    for name in shapes:
        for shape in ODD:
            with contextlib.suppress(InputError):
                read_all(shapes | {name: shape}, config)


@pytest.mark.parametrize("name", ["gate", "up", "down"])
@pytest.mark.parametrize("width", [None, 0, 63])
def test_neurons_are_those_of_mlps_whose_matrices_have_one_width(name, width):
    """A file may lack a matrix, or have one without numbers or of another width: coordinates are compared then."""
    matrix = f"{BLOCK}.mlp.{name}_proj.weight"
    shapes = {other: shape for other, shape in PLAIN.items() if other != matrix}
    if width is not None:
        shapes[matrix] = (32, width) if name == "down" else (width, 32)
    made = fingerprint(source_of(shapes, HEADS), Settings(dim=8)).components["language"]
    # Without a gate the MLP is one of up and down.
    assert len(made.neurons) == (name == "gate" and width != 63)
    assert "blocks" in made.coordinates


def test_a_fingerprint_of_mlps_with_and_without_a_gate_is_compared_and_not_stored(tmp_path):
    second = {name.replace("layers.0", "layers.1"): shape for name, shape in PLAIN.items() if "gate" not in name}
    made = fingerprint(source_of(PLAIN | second, HEADS), Settings(dim=8))
    assert len(compare_weights(made, made).pairs) == 2
    with pytest.raises(InputError, match="some MLPs of this model have a gate and others none"):
        save_fingerprint(tmp_path / "made", made)


@pytest.mark.parametrize("number", ["1000000000", "9" * 5000], ids=len)
@pytest.mark.parametrize("name", ["model.layers.{}.mlp.up_proj.weight", f"{BLOCK}.mlp.experts.{{}}.up_proj.weight"])
def test_numbers_that_no_block_and_no_expert_has_are_none(name, number):
    """Lists of blocks have a place for each number."""
    odd = name.format(number)
    assert source_of(PLAIN | {odd: (64, 32)}, HEADS).unread == (odd,)
