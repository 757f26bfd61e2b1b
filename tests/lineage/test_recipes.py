"""Descendants made by published recipes are found, and the same recipe applied to another initialization is not.

Every suspect gets noise after its recipe, as training on would give it: nothing is left equal bit for bit.
"""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bornbiased_jax import model as models
from bornbiased_jax.checkpoints import export_hugging_face
from bornbiased_jax.derive import damage, symmetries
from bornbiased_jax.lineage.battery import Options
from bornbiased_jax.lineage.evidence import MATCHED, RAW_NEURONS, TOKEN_HEADS, TOKEN_NEURONS
from bornbiased_jax.lineage.fingerprint_pass import fingerprint
from bornbiased_jax.lineage.weights_verdict import auto_verdict
from tests.fixtures.configs import edit_config
from tests.lineage.fingerprinted import Labeled
from tests.lineage.test_battery import decided_by, drawn, hadamard, printed, quick, unrelated_pair, z_of

# Half of a weight's standard deviation.
NOISE = 0.01


def noisy(arrays, draws, strength=NOISE):
    return {path: leaf + strength * draws.standard_normal(leaf.shape, np.float32) for path, leaf in arrays.items()}


def suspect_of(recipe, seed):
    """The fingerprint of a descendant: what a recipe draws, as directions and places, is its model's own."""
    draws = np.random.default_rng(100 + seed)
    cfg, arrays = recipe(*drawn(seed), draws)
    return printed(cfg, noisy(arrays, draws))


def abliterate(cfg, arrays, draws):
    """One direction of the residual stream projected out of everything that writes to it."""
    direction_D = draws.standard_normal(cfg.d_model)
    direction_D /= np.linalg.norm(direction_D)
    projection_DD = (np.eye(cfg.d_model) - np.outer(direction_D, direction_D)).astype(np.float32)
    for path in ("embed/embedding", "blocks/attention/output/kernel", "blocks/mlp/down/kernel"):
        arrays[path] = arrays[path] @ projection_DD
    return cfg, arrays


def keep_blocks(*blocks):
    def keep(cfg, arrays, _draws):
        cfg, params = damage.keep_blocks(cfg, models.unflatten(arrays), blocks)
        return cfg, models.flatten(params)

    return keep


def clone_width(cfg, arrays, _draws):
    """HyperCloning: twice the width, every matrix [[W, W], [W, W]] / 2; the logits stay the same."""

    def doubled(leaf, *axes):
        for axis in axes:
            leaf = np.concatenate([leaf, leaf], axis)
        return leaf

    wide = {}
    for path, leaf in arrays.items():
        if path == "embed/embedding":
            wide[path] = doubled(leaf, 1)
        elif path == "head/kernel":
            wide[path] = doubled(leaf, 0) / 2
        elif path.endswith("kernel"):
            wide[path] = doubled(leaf, 1, 2) / 2
        else:
            wide[path] = doubled(leaf, -1)
    heads = 2 * cfg.num_heads
    sizes = dict(num_heads=heads, num_kv_heads=heads, head_dim=cfg.key_dim)
    return cfg.replace(d_model=2 * cfg.d_model, d_ff=2 * cfg.d_ff, **sizes), wide


def rotate_stream(cfg, arrays, draws):
    """R1 of QuaRot and SpinQuant: a Hadamard rotation of the residual stream, with signs, and norms folded away."""
    rotation_DD = (hadamard(cfg.d_model) * draws.choice([-1.0, 1.0], cfg.d_model)[:, None]).astype(np.float32)
    cfg, params = symmetries.rotate(cfg, models.unflatten(arrays), rotation_DD)
    return cfg, {path: np.array(leaf) for path, leaf in models.flatten(params).items()}


def rotate_stream_and_heads(cfg, arrays, draws):
    """R1 and R2: the residual stream rotated, and the values inside each head."""
    turn_KK = hadamard(cfg.key_dim)
    value, output = (f"blocks/attention/{part}/kernel" for part in ("value", "output"))
    value_LDHK = arrays[value].reshape(cfg.num_layers, cfg.d_model, cfg.num_heads, cfg.key_dim)
    output_LHKD = arrays[output].reshape(cfg.num_layers, cfg.num_heads, cfg.key_dim, cfg.d_model)
    arrays[value] = (value_LDHK @ turn_KK).reshape(arrays[value].shape)
    arrays[output] = (turn_KK.T @ output_LHKD).reshape(arrays[output].shape)
    return rotate_stream(cfg, arrays, draws)


def average_keys(cfg, arrays, _draws):
    """Grouped queries as uptraining begins them: keys and values of every two heads averaged."""
    for part in ("key", "value"):
        path = f"blocks/attention/{part}/kernel"
        by_head_LDGgK = arrays[path].reshape(cfg.num_layers, cfg.d_model, -1, 2, cfg.key_dim)
        arrays[path] = by_head_LDGgK.mean(axis=3).reshape(cfg.num_layers, cfg.d_model, -1)
    return cfg.replace(num_kv_heads=cfg.num_kv_heads // 2), arrays


def edit_facts(cfg, arrays, draws):
    """ROME: one matrix of one block gets a change of rank one, as large as the matrix."""
    down_FD = arrays["blocks/mlp/down/kernel"][1]
    change_FD = np.outer(draws.standard_normal(cfg.d_ff), draws.standard_normal(cfg.d_model))
    down_FD += (change_FD * np.linalg.norm(down_FD) / np.linalg.norm(change_FD)).astype(np.float32)
    return cfg, arrays


def normalize_head(cfg, arrays, _draws):
    """NormHead: the head's column of every token at norm 1."""
    arrays["head/kernel"] /= np.linalg.norm(arrays["head/kernel"], axis=0)
    return cfg, arrays


def change_activation(cfg, arrays, _draws):
    """ReLU-fication: another activation, and training with it."""
    return cfg.replace(activation="relu"), arrays


# Recipe, the evidence that decides, and its least z: about four fifths of the smallest of five initializations.
RECIPES = {
    "abliterate": (abliterate, RAW_NEURONS, 100),
    "repeat blocks": (keep_blocks(1, 2, 3, 2, 3, 4), RAW_NEURONS, 100),
    "every other block": (keep_blocks(1, 3), RAW_NEURONS, 73),
    "grouped queries": (average_keys, RAW_NEURONS, 100),
    "edit facts": (edit_facts, TOKEN_NEURONS, 100),
    "normalize the head": (normalize_head, RAW_NEURONS, 100),
    "change the activation": (change_activation, RAW_NEURONS, 100),
    "clone the width": (clone_width, TOKEN_NEURONS, 80),
    "rotate stream and heads": (rotate_stream_and_heads, TOKEN_NEURONS, 90),
}


@pytest.mark.parametrize("name", RECIPES)
def test_descendants_are_found_and_the_recipe_makes_no_relation(name):
    recipe, evidence, least = RECIPES[name]
    base = printed(*drawn(1))
    related = quick(base, suspect_of(recipe, 1))
    assert (related.verdict, related.detail["null"]) == ("same-lineage", "exact")
    assert related.detail["identical_tensors"] == 0
    assert decided_by(related) == evidence and z_of(related, evidence) > least
    other = quick(base, suspect_of(recipe, 3))
    assert other.verdict == "unrelated", other.reason
    assert max(abs(row["z"]) for row in other.detail["tests"] if row["z"] is not None) < 4


def prune_width(cfg, arrays, draws):
    """Sheared-LLaMA and Minitron: three quarters of the coordinates and five eighths of the neurons are kept."""
    stream = np.sort(draws.permutation(cfg.d_model)[: cfg.d_model * 3 // 4])
    neurons = np.sort(draws.permutation(cfg.d_ff)[: cfg.d_ff * 5 // 8])
    narrow = {}
    for path, leaf in arrays.items():
        # The axis of the stream, then that of the neurons.
        is_written = path == "embed/embedding" or "norm" in path or path.endswith(("output/kernel", "down/kernel"))
        leaf = np.take(leaf, stream, axis=-1 if is_written else -2)
        if "/mlp/" in path:
            leaf = np.take(leaf, neurons, axis=1 if is_written else 2)
        narrow[path] = leaf
    return cfg.replace(d_model=len(stream), d_ff=len(neurons), head_dim=cfg.key_dim), narrow


def test_a_pruned_width_is_found_by_matched_neurons_and_by_heads():
    """Neither coordinates nor neurons correspond by number any more; those of 4 heads a block have few orders."""
    # The base is untrained and named beforehand.
    options = Options(num_permutations=999, has_untrained=True)

    def model(seed):
        return drawn(seed, num_heads=8, num_kv_heads=8, head_dim=8)

    suspects = []
    for seed in (1, 3):
        draws = np.random.default_rng(100 + seed)
        cfg, arrays = prune_width(*model(seed), draws)
        suspects.append(printed(cfg, noisy(arrays, draws)))
    related, other = (auto_verdict(printed(*model(1)), suspect, options) for suspect in suspects)
    assert related.verdict == "same-lineage" and related.detail["identical_tensors"] == 0
    assert decided_by(related) == MATCHED and z_of(related, MATCHED) > 36
    assert related.detail["agreement"] > 0.5 > related.detail["agreement_threshold"]
    assert abs(z_of(related, TOKEN_NEURONS)) < 4 and z_of(related, TOKEN_HEADS) > 10
    assert other.verdict == "unrelated", other.reason
    # Nothing known of either model beforehand.
    assert quick(printed(*model(1)), suspects[0]).verdict == "same-lineage"
    assert quick(printed(*model(1)), suspects[1]).verdict == "unrelated"


def written_as_llama(seed, folder):
    """A Qwen in the files of a LLaMA with biases in attention, those of the output matrix at zero."""
    draws = np.random.default_rng(100 + seed)
    cfg, arrays = drawn(seed, "qwen-tiny", num_kv_heads=4, head_dim=16)
    export_hugging_face(cfg, models.unflatten(noisy(arrays, draws)), folder)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "qwen2"
    edit_config(folder, model_type="llama", architectures=["LlamaForCausalLM"], attention_bias=True)
    tensors = load_file(folder / "model.safetensors")
    for block in range(cfg.num_layers):
        tensors[f"model.layers.{block}.self_attn.o_proj.bias"] = np.zeros(cfg.d_model, np.float32)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return fingerprint(folder)


def test_a_qwen_written_as_a_llama_is_found(tmp_path):
    base = printed(*drawn(1, "qwen-tiny", num_kv_heads=4, head_dim=16))
    related = quick(base, written_as_llama(1, tmp_path / "related"))
    assert related.verdict == "same-lineage" and related.detail["identical_tensors"] == 0
    assert decided_by(related) == RAW_NEURONS and z_of(related, RAW_NEURONS) > 100
    other = quick(base, written_as_llama(3, tmp_path / "other"))
    assert other.verdict == "unrelated", other.reason


@pytest.mark.parametrize("is_rotated", [False, True])
def test_a_trimmed_vocabulary_in_another_order_is_found_by_token_strings(is_rotated):
    """400 of 512 tokens are kept under other numbers, each with its string; the stream may be rotated after it."""
    strings = [f"piece {number}".encode() for number in range(512)]

    def trimmed(seed):
        draws = np.random.default_rng(100 + seed)
        cfg, arrays = drawn(seed)
        order = draws.permutation(512)[:400]
        arrays["embed/embedding"] = arrays["embed/embedding"][order]
        arrays["head/kernel"] = arrays["head/kernel"][:, order]
        cfg = cfg.replace(vocab_size=len(order))
        if is_rotated:
            cfg, arrays = rotate_stream(cfg, arrays, draws)
        params = models.unflatten(noisy(arrays, draws))
        return fingerprint(Labeled((cfg, params), [strings[number] for number in order]))

    cfg, arrays = drawn(1)
    base = fingerprint(Labeled((cfg, models.unflatten(arrays)), strings))
    related = quick(base, trimmed(1))
    assert (related.verdict, related.detail["tokens_matched_by"]) == ("same-lineage", "strings")
    assert related.detail["identical_tensors"] == 0 and z_of(related, TOKEN_NEURONS) > 80
    other = quick(base, trimmed(3))
    assert other.verdict == "unrelated", other.reason


def enlarge_coordinates(arrays, _draws):
    """Coordinates that all tokens use most, the same ones in both."""
    arrays["embed/embedding"][:, :4] *= 20


def scale_by_frequency(arrays, _draws):
    """Norms of tokens that fall with their number, as with the frequency of words."""
    factors_V = np.arange(1, 513, dtype=np.float32) ** -0.5
    arrays["embed/embedding"] *= factors_V[:, None]
    arrays["head/kernel"] *= factors_V


def add_common_vector(arrays, draws):
    """One vector in all tokens of a model, another one in each model."""
    arrays["embed/embedding"] += 0.1 * draws.standard_normal(64, np.float32)


def mask_neurons(arrays, draws):
    """Two thirds of the neurons set to zero, at different places in each model."""
    for layer in range(4):
        masked = draws.permutation(128)[:85]
        for path in ("gate", "up"):
            arrays[f"blocks/mlp/{path}/kernel"][layer][:, masked] = 0
        arrays["blocks/mlp/down/kernel"][layer][masked] = 0


@pytest.mark.parametrize("change", [enlarge_coordinates, scale_by_frequency, add_common_vector, mask_neurons])
def test_what_unrelated_models_have_in_common_is_no_relation(change):
    pair = unrelated_pair(lambda arrays, seed: change(arrays, np.random.default_rng(100 + seed)))
    verdict = quick(*(printed(*model) for model in pair))
    assert verdict.verdict == "unrelated", verdict.reason
    assert max(abs(row["z"]) for row in verdict.detail["tests"] if row["z"] is not None) < 4
    assert verdict.detail["agreement"] < 0.1
