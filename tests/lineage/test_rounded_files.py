"""Files in 8 and in 16 bits that are equal to their originals after rounding, tensor by tensor."""

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from bornbiased_jax.checkpoints.by_role import read_by_role
from bornbiased_jax.lineage.same_model import tensor_difference
from tests.fixtures.configs import edit_config
from tests.lineage.rounded import bfloat16, by_squares


def written(folder, name, change, **config):
    """Write a model with the tensors that ``change`` makes of each of a matrix's."""
    # Skips where transformers is missing.
    from tests.checkpoints.architectures import write_model

    write_model(name, folder, 0)
    path = folder / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    made = {}
    for key, array in tensors.items():
        made |= change(key, array) if array.ndim == 2 and "layers" in key else {key: array}
    safetensors.numpy.save_file({key: np.ascontiguousarray(array) for key, array in made.items()}, path)
    edit_config(folder, **config)
    return read_by_role(folder)


def plain(key, array):
    return {key: array}


def float8(key, array):
    """Keep a matrix in FP8 with a scale for each tensor, as files of the quantization method "fp8" do."""
    scale = np.float32(np.abs(array).max() / 448)
    return {key: (array / scale).astype(ml_dtypes.float8_e4m3fn), f"{key}_scale": scale.reshape(1)}


def int8(key, array):
    """Keep a matrix in integers with a scale for each row, as compressed-tensors does."""
    scale_O1 = (np.abs(array).max(axis=1, keepdims=True) / 127).astype(np.float32)
    return {key: np.rint(array / scale_O1).astype(np.int8), f"{key}_scale": scale_O1}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (float8, "equal after rounding to 8 bits (e4m3) with a scale for each tensor (largest difference 0."),
        (int8, "equal after rounding to 8 bits with a scale for each channel (largest difference 0.0"),
    ],
)
@pytest.mark.parametrize("name", ["llama", "deepseek_v3"])
def test_a_file_in_8_bits_is_equal_after_rounding_to_them(tmp_path, name, change, words):
    """Of latent attention what is stored: products of rounded matrices are no rounded products."""
    base = written(tmp_path / "base", name, plain)
    suspect = written(tmp_path / "suspect", name, change, quantization_config={"quant_method": "fp8"})
    difference = tensor_difference(base, suspect)
    assert difference is not None and words in difference.sentence, difference.sentence


def quiet(key, array):
    """Make all rows but the first few small: parts of a fused matrix whose largest number is a tenth of the whole's."""
    return {key: array * np.where(np.arange(len(array)) < 8, np.float32(1.0), np.float32(0.03))[:, None]}


def squares(key, array):
    made = by_squares("float8", array)
    scale = np.abs(made.reshape(len(made) // 128, 128, -1, 128)).max(axis=(1, 3)) / np.float32(448)
    codes = made / np.kron(scale, np.ones((128, 128), np.float32))
    return {key: codes.astype(ml_dtypes.float8_e4m3fn), f"{key}_scale_inv": scale.astype(np.float32)}


@pytest.mark.parametrize(("change", "group"), [(float8, "tensor"), (squares, "block of 128 × 128")])
@pytest.mark.parametrize("name", ["phi3", "gpt_neox"])
def test_scales_of_a_fused_matrix_are_those_of_the_whole(tmp_path, name, change, group):
    """Its parts need not have its largest number, and a block may lie across two of them."""
    base = written(tmp_path / "base", name, quiet)
    quantized = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    suspect = written(
        tmp_path / "suspect",
        name,
        lambda key, array: change(key, quiet(key, array)[key]),
        quantization_config=quantized,
    )
    assert (base.naming, suspect.naming) == ("native", "names")
    difference = tensor_difference(base, suspect)
    assert difference is not None and difference.rounding == f"8 bits (e4m3) with a scale for each {group}"


def test_a_copy_of_latent_attention_in_bfloat16_is_equal_after_rounding(tmp_path):
    base = written(tmp_path / "base", "deepseek_v3", plain)
    half = written(tmp_path / "half", "deepseek_v3", lambda key, array: {key: bfloat16(array)})
    difference = tensor_difference(base, half)
    assert difference is not None and difference.rounding == "bfloat16" and 0 < difference.largest < 0.05
    # Each stored tensor is compared once, though keys and values are products of the same.
    queries = [role for role in base.roles if role.group == "query"]
    assert queries and all(len(base.stored_in(role)) == 3 for role in queries)
    same = tensor_difference(base, base)
    assert same is not None and same.largest == 0.0

    def moved(key, array):
        return {key: array * np.float32(1.01 if "kv_b_proj" in key else 1.0)}

    near = tensor_difference(base, written(tmp_path / "near", "deepseek_v3", moved))
    assert near is not None and near.rounding is None and "kv_b_proj" in near.sentence


def test_a_copy_of_a_gemma_in_bfloat16_is_equal_after_rounding(tmp_path):
    sources = []
    for place, cast in (("base", np.asarray), ("half", bfloat16)):
        written(tmp_path / place, "gemma2", plain)
        path = tmp_path / place / "model.safetensors"
        made = {}
        for key, array in safetensors.numpy.load_file(path).items():
            draws = np.random.default_rng(len(key))
            moves = (0.03 * draws.standard_normal(array.shape)).astype(np.float32) if "norm" in key else np.float32(0)
            made[key] = cast(array + moves)
        safetensors.numpy.save_file(made, path)
        sources.append(read_by_role(tmp_path / place))
    difference = tensor_difference(*sources)
    assert difference is not None and difference.rounding == "bfloat16"
