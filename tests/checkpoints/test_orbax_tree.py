"""Trees of foreign parameters that Orbax itself writes, in MaxText's layout, read for comparison."""

import numpy as np
import orbax.checkpoint as ocp
import pytest

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.by_role import read_by_role
from bornbiased_jax.checkpoints.formats.orbax_tree import find_tree, locate
from bornbiased_jax.checkpoints.native_roles import NativeRoles
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import init_seed
from bornbiased_jax.lineage.audit.audit import audit_folder
from bornbiased_jax.lineage.audit.folder import SHARDED, find_items

CFG = preset("llama-tiny", num_layers=2, num_heads=4, num_kv_heads=2, d_model=32, d_ff=48, vocab_size=64)
HEADS, GROUPS, WIDTH = CFG.num_heads, CFG.kv_heads, CFG.key_dim


def maxtext_tree(params, axis):
    """The parameters as MaxText's decoder names and stacks them, layers on the given axis."""
    block, table = params["blocks"], params["embed"]["embedding"]

    def stacked(array, *shape):
        array = np.asarray(array)
        return np.moveaxis(array.reshape(CFG.num_layers, *(shape or array.shape[1:])), 0, axis)

    attention = {
        name: {"kernel": stacked(block["attention"][name]["kernel"], CFG.d_model, heads, WIDTH)}
        for name, heads in (("query", HEADS), ("key", GROUPS), ("value", GROUPS))
    }
    attention["out"] = {"kernel": stacked(block["attention"]["output"]["kernel"], HEADS, WIDTH, CFG.d_model)}
    names = {"wi_0": "gate", "wi_1": "up", "wo": "down"}
    layers = {
        "self_attention": attention,
        "mlp": {name: {"kernel": stacked(block["mlp"][own]["kernel"])} for name, own in names.items()},
        "pre_self_attention_layer_norm": {"scale": stacked(block["attention_norm"]["scale"])},
        "post_self_attention_layer_norm": {"scale": stacked(block["mlp_norm"]["scale"])},
    }
    decoder = {
        "layers": layers,
        "decoder_norm": {"scale": np.asarray(params["final_norm"]["scale"])},
        "logits_dense": {"kernel": np.asarray(params["head"]["kernel"])},
    }
    model = {"decoder": decoder, "token_embedder": {"embedding": np.asarray(table)}}
    return {"params": {"params": model}, "opt_state": {"mu": np.zeros(3, np.float32)}, "step": np.asarray(5)}


@pytest.fixture(scope="module")
def params():
    return init_seed(CFG, 3)


@pytest.mark.parametrize("axis", [0, 1])
def test_tree_of_maxtext_is_the_model_that_was_saved(params, tmp_path, axis):
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        manager.save(5, args=ocp.args.Composite(items=ocp.args.PyTreeSave(maxtext_tree(params, axis))))
        manager.wait_until_finished()
    named = read_by_role(tmp_path / "run" / "5")
    native = NativeRoles(Checkpoint.from_params(CFG, params))
    assert named.unread == ()
    arrays = {role.path: named.read(role) for role in named.roles}
    assert arrays.keys() == {role.path for role in native.roles}
    for role in native.roles:
        np.testing.assert_array_equal(arrays[role.path], native.read(role), err_msg=role.path)
    shape = named.shape("language")
    assert (shape.num_heads, shape.num_kv_heads, shape.head_dim) == (HEADS, GROUPS, WIDTH)
    with pytest.raises(InputError, match="holds the steps 5: name one, as in .*run/5"):
        read_by_role(tmp_path / "run")


def test_layers_in_a_list_are_those_of_a_dict(tmp_path):
    rng = np.random.default_rng(0)
    layers = [
        {"norm": (rng.normal(size=8), rng.normal(size=8)), "mlp": {"up_proj": {"kernel": rng.normal(size=(8, 12))}}}
        for _ in range(3)
    ]
    forms = (layers, {str(number): layer for number, layer in enumerate(layers)})
    for name, members in zip(("list", "dict"), forms, strict=True):
        ocp.PyTreeCheckpointer().save(tmp_path / name, {"params": {"layers": members}, "step": 3})
    listed, named = (locate(tmp_path / name) for name in ("list", "dict"))
    assert listed.keys() == named.keys() and len(listed) == 9
    for name, tensor in listed.items():
        np.testing.assert_array_equal(tensor.read(), named[name].read())
    kernel = listed["layers.2.mlp.up_proj.weight"].read()
    np.testing.assert_array_equal(kernel, layers[2]["mlp"]["up_proj"]["kernel"].T)


def test_corrupted_trees_are_refused_in_one_sentence(params, tmp_path):
    with ocp.StandardCheckpointer() as writer:
        writer.save(tmp_path / "tree", maxtext_tree(params, 1))
    assert find_tree(tmp_path / "tree") == tmp_path / "tree"
    for path in (tmp_path / "tree" / "ocdbt.process_0" / "d").iterdir():
        path.write_bytes(path.read_bytes()[:10])
    with pytest.raises(InputError, match="cannot be read: save the tree again"):
        source = read_by_role(tmp_path / "tree")
        source.read(source.roles[0])
    (tmp_path / "tree" / "_METADATA").write_text("{")
    with pytest.raises(InputError, match="holds no parameters that can be read"):
        read_by_role(tmp_path / "tree")


def save_steps(folder, trees):
    with ocp.CheckpointManager(folder) as manager:
        for step, tree in trees.items():
            manager.save(step, args=ocp.args.Composite(items=ocp.args.PyTreeSave(tree)))
        manager.wait_until_finished()


@pytest.mark.slow
def test_audit_reads_each_step_of_a_tree_once(params, tmp_path):
    save_steps(tmp_path / "run", {5: maxtext_tree(params, 1), 9: maxtext_tree(params, 1)})
    items, _ = find_items(tmp_path)
    assert [(item.name, item.reference, item.note) for item in items] == [
        ("run/5", str(tmp_path / "run" / "5"), ""),
        ("run/9", str(tmp_path / "run" / "9"), ""),
    ]
    found = [(row["kind"], row["subjects"]) for row in audit_folder(tmp_path)["findings"]]
    assert ("duplicate", ["run/5", "run/9"]) in found


def test_audit_finds_nan_in_a_tree_and_digests_one_of_unknown_names(params, tmp_path):
    tree = maxtext_tree(params, 1)
    tree["params"]["params"]["decoder"]["decoder_norm"]["scale"] = np.full(CFG.d_model, np.nan, np.float32)
    save_steps(tmp_path / "run", {5: maxtext_tree(params, 1), 9: tree})
    with ocp.StandardCheckpointer() as writer:
        writer.save(tmp_path / "other", {"numbers": np.arange(6, dtype=np.float32)})
    rows = audit_folder(tmp_path)["findings"]
    assert any("NaN" in row["text"] for row in rows if "run/9" in row["subjects"]), rows
    items, _ = find_items(tmp_path)
    assert [item.note for item in items if item.name == "other"] == [SHARDED]
