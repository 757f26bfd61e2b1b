"""Weights that are equal after rounding to 8 bits, with the scales that quantized files have."""

from __future__ import annotations

import json
from functools import partial

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from bornbiased_jax.checkpoints.naming import read_by_role
from bornbiased_jax.lineage.roundings import ROUNDINGS, Explanations
from bornbiased_jax.lineage.same_model import tensor_difference

LARGEST = {"int8": 127, "float8": 448}


def bfloat16(array):
    return array.astype(ml_dtypes.bfloat16).astype(np.float32)


def codes_of(kind, numbers):
    return np.rint(numbers) if kind == "int8" else numbers.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)


def rounded(kind, groups_GN, scale_type=np.float32):
    """Round groups to 8 bits as a quantizer does: numbers over the scale, which the file keeps in a type of its own."""
    scale_G1 = (np.abs(groups_GN).max(axis=1, keepdims=True) / LARGEST[kind]).astype(np.float32)
    stored_G1 = scale_G1.astype(scale_type).astype(np.float32)
    return codes_of(kind, groups_GN / scale_G1) * stored_G1


def by_tensor(kind, weight_OI):
    return rounded(kind, weight_OI.reshape(1, -1)).reshape(weight_OI.shape)


def by_channel(kind, weight_OI):
    return rounded(kind, weight_OI)


def by_32(kind, weight_OI):
    # Q8_0 of GGUF: numbers are rounded by the scale in float32, which is kept in float16.
    return rounded(kind, weight_OI.reshape(-1, 32), np.float16).reshape(weight_OI.shape)


def by_microscales(_kind, weight_OI):
    # MXFP8: scales are powers of two, and what they leave above the largest code is cut off.
    groups_GN = weight_OI.reshape(-1, 32)
    scale_G1 = np.exp2(np.floor(np.log2(np.abs(groups_GN).max(axis=1, keepdims=True))) - 8)
    return (codes_of("float8", np.clip(groups_GN / scale_G1, -448, 448)) * scale_G1).reshape(weight_OI.shape)


def by_squares(kind, weight_OI, side=128):
    made = np.empty_like(weight_OI)
    for row in range(0, len(weight_OI), side):
        for column in range(0, weight_OI.shape[1], side):
            square = weight_OI[row : row + side, column : column + side]
            made[row : row + side, column : column + side] = by_tensor(kind, square)
    return made


FORMS = {
    "8 bits with a scale for each tensor": ("int8", by_tensor),
    "8 bits with a scale for each channel": ("int8", by_channel),
    "8 bits with a scale for each block of 32": ("int8", by_32),
    "8 bits (e4m3) with a scale for each tensor": ("float8", by_tensor),
    "8 bits (e4m3) with a scale for each channel": ("float8", by_channel),
    "8 bits (e4m3) with a scale for each block of 128 × 128": ("float8", by_squares),
    "8 bits (e4m3) with a scale for each block of 64 × 64": ("float8", partial(by_squares, side=64)),
    "8 bits (e4m3) with a scale for each block of 32 × 32": ("float8", partial(by_squares, side=32)),
    "8 bits (e4m3) with a scale for each block of 32": ("float8", by_microscales),
}


def weights(seed=0):
    draws = np.random.default_rng(seed)
    # Rows of several sizes, so that scales for each tensor and each channel differ.
    return (draws.standard_normal((256, 192)) * np.exp(draws.normal(size=(256, 1)))).astype(np.float32)


def explained(base, suspect):
    explanations = Explanations()
    explanations.see(base, suspect, float(np.abs(base - suspect).max()))
    return explanations.sentence


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("was_bfloat16", [False, True])
def test_each_form_of_8_bits_is_told_by_its_scales(name, was_bfloat16):
    kind, form = FORMS[name]
    base_OI = weights()
    suspect_OI = form(kind, bfloat16(base_OI) if was_bfloat16 else base_OI)
    assert explained(base_OI, suspect_OI) == name
    # Either side may be the one in 8 bits; matrices stand as the transpose of what files hold.
    assert explained(suspect_OI.T, base_OI.T) == name


@pytest.mark.parametrize("name", [name for name, (_, form) in FORMS.items() if form in (by_channel, by_tensor)])
def test_numbers_divided_in_16_bits_are_told_too(name):
    """As libraries quantize models in bfloat16: scale, quotient and product are rounded to it."""
    kind, form = FORMS[name]
    base_OI = weights()
    halved_OI = bfloat16(base_OI) if form is by_channel else bfloat16(base_OI).reshape(1, -1)
    scale_G1 = bfloat16(np.abs(halved_OI).max(axis=1, keepdims=True) / np.float32(LARGEST[kind]))
    codes_OI = np.minimum(codes_of(kind, bfloat16(halved_OI / scale_G1)), LARGEST[kind])
    assert explained(base_OI, (codes_OI * scale_G1).reshape(base_OI.shape)) == name


@pytest.mark.parametrize("name", FORMS)
def test_one_number_that_rounds_elsewhere_is_no_equality(name):
    kind, form = FORMS[name]
    base_OI = weights()
    suspect_OI = form(kind, base_OI)
    changed_OI = base_OI.copy()
    # Of a group that does not end at its largest number: by one and a half steps of the integers.
    changed_OI[130, 70] += 0.012 * np.abs(base_OI).max()
    assert explained(changed_OI, suspect_OI) is None


def test_a_small_change_of_all_numbers_is_no_rounding():
    base_OI = weights()
    for size in (1e-2, 1e-3, 1e-4):
        noise_OI = np.random.default_rng(1).standard_normal(base_OI.shape).astype(np.float32)
        assert explained(base_OI, base_OI + np.float32(size) * noise_OI) is None


@pytest.mark.parametrize("kind", LARGEST)
def test_a_part_of_a_matrix_that_was_rounded_whole_has_the_scale_of_the_whole(kind):
    """As the keys of fused queries, keys and values, whose largest number is none of the whole's."""
    base_OI = np.random.default_rng(0).standard_normal((256, 192)).astype(np.float32)
    base_OI[200, 100] = 1.2 * np.abs(base_OI).max()
    part_OI = by_tensor(kind, base_OI)[64:128]
    name = f"8 bits{' (e4m3)' if kind == 'float8' else ''} with a scale for each tensor"
    assert explained(base_OI[64:128], part_OI) == name
    part_OI[3, 5] += np.abs(part_OI).max() / 50
    assert explained(base_OI[64:128], part_OI) is None


def test_rows_may_be_cut_into_blocks_of_128():
    base_OI = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    suspect_OI = rounded("float8", base_OI.reshape(-1, 128)).reshape(base_OI.shape)
    assert explained(base_OI.T, suspect_OI.T) == "8 bits (e4m3) with a scale for each block of 128"


# ---------------------------------------------------------------------------------------------------------------------
# Zero points


def affine(groups_GN, scale_type=np.float32, cast=np.float32, bits=8, lowest=0):
    """Round groups as asymmetric quantizers do: least and largest number to both ends of the codes, zero to a code.

    ``scale_type`` is that of the scales in the file, ``cast`` rounds what is computed before, and ``lowest`` is the
    least code, to which the zero point is added before rounding.
    """
    groups_GN = cast(groups_GN).astype(np.float32)
    low_G1 = np.minimum(groups_GN.min(axis=1, keepdims=True), 0)
    high_G1 = np.maximum(groups_GN.max(axis=1, keepdims=True), 0)
    steps = 2**bits - 1
    scale_G1 = cast((high_G1 - low_G1) / np.float32(steps)).astype(np.float32)
    zero_G1 = np.clip(np.rint(cast(lowest - cast(low_G1 / scale_G1))).astype(np.float32), lowest, lowest + steps)
    sums_GN = cast(cast(groups_GN / scale_G1).astype(np.float32) + zero_G1).astype(np.float32)
    codes_GN = np.clip(np.rint(sums_GN), lowest, lowest + steps)
    return (codes_GN - zero_G1) * scale_G1.astype(scale_type).astype(np.float32)


def by_groups(size, weight_OI, **options):
    groups_GN = weight_OI if size is None else weight_OI.reshape(-1, size or weight_OI.size)
    return affine(groups_GN, **options).reshape(weight_OI.shape)


ZEROS = {
    "tensor": 0,
    "channel": None,
    "block of 128": 128,
    "block of 64": 64,
    "block of 32": 32,
}
WITH_ZERO = "8 bits with a scale and a zero point for each "


def skewed(seed=0):
    """Rows of several sizes and means, 384 numbers each."""
    draws = np.random.default_rng(seed)
    rows = draws.standard_normal((256, 384)) + draws.normal(size=(256, 1)) / 4
    return (rows * np.exp(draws.normal(size=(256, 1)) / 2)).astype(np.float32)


@pytest.mark.parametrize("group", ZEROS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale_type": np.float16},
        {"cast": bfloat16},
        {"cast": bfloat16, "lowest": -128},
        {"cast": lambda array: np.asarray(array, np.float16).astype(np.float32)},
    ],
    ids=["float32", "scales in float16", "in bfloat16", "in bfloat16 from -128", "in float16"],
)
def test_each_form_of_8_bits_with_zero_points_is_told(group, options):
    base_OI = skewed()
    suspect_OI = by_groups(ZEROS[group], base_OI, **options)
    assert explained(base_OI, suspect_OI) == WITH_ZERO + group
    assert explained(suspect_OI.T, base_OI.T) == WITH_ZERO + group


@pytest.mark.parametrize("group", ZEROS)
@pytest.mark.parametrize("scale_type", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_copy_in_bfloat16_may_have_been_rounded_with_zero_points(group, scale_type):
    base_OI = skewed()
    suspect_OI = by_groups(ZEROS[group], bfloat16(base_OI), scale_type=scale_type)
    assert explained(base_OI, suspect_OI) == WITH_ZERO + group


@pytest.mark.parametrize("group", ZEROS)
def test_an_offset_need_not_be_a_code(group):
    """As formats that store scale and offset as floats: the least number is code 0 exactly."""
    base_OI = skewed()
    groups_GN = base_OI if ZEROS[group] is None else base_OI.reshape(-1, ZEROS[group] or base_OI.size)
    low_G1 = groups_GN.min(axis=1, keepdims=True)
    scale_G1 = (groups_GN.max(axis=1, keepdims=True) - low_G1) / np.float32(255)
    suspect_OI = (np.rint((groups_GN - low_G1) / scale_G1) * scale_G1 + low_G1).reshape(base_OI.shape)
    assert explained(base_OI, suspect_OI) == WITH_ZERO + group


@pytest.mark.parametrize("group", ZEROS)
def test_one_number_that_rounds_to_another_step_is_no_equality(group):
    base_OI = skewed()
    suspect_OI = by_groups(ZEROS[group], base_OI)
    for changed, place in ((base_OI.copy(), (130, 70)), (base_OI.copy(), (255, 383))):
        changed[place] += 0.012 * np.abs(base_OI).max()
        assert explained(changed, suspect_OI) is None
    # Nor is a number between two steps.
    moved_OI = suspect_OI.copy()
    steps = np.diff(np.unique(suspect_OI[130, 64:96]))
    moved_OI[130, 70] += steps.min() / 10
    assert explained(base_OI, moved_OI) is None


def bases():
    """Weights as stored: in float32, in 16 bits, pruned, and in 4, 2 or less bits."""
    weight_OI = skewed()
    yield "float32", weight_OI
    yield "bfloat16", bfloat16(weight_OI)
    yield "float16", weight_OI.astype(np.float16).astype(np.float32)
    yield "pruned", weight_OI * (np.random.default_rng(2).random(weight_OI.shape) < 0.1)
    for bits in (4, 3, 2):
        yield f"{bits} bits", by_groups(32, weight_OI, bits=bits)
    yield "three values", np.sign(np.round(weight_OI)) * np.float32(0.1)
    yield "two values", np.where(weight_OI > 0, np.float32(0.1), np.float32(-0.1))


@pytest.mark.parametrize("name", [name for name, _ in bases()])
@pytest.mark.parametrize("size", [1e-2, 1e-3, 1e-4, 1e-5])
def test_noise_is_no_rounding_with_zero_points(name, size):
    """Asked as if the tensors were near, so that the search itself must say no; in 16 bits it does so too."""
    base_OI = dict(bases())[name].astype(np.float32)
    noise_OI = np.random.default_rng(3).standard_normal(base_OI.shape).astype(np.float32)
    noisy_OI = base_OI + np.float32(size) * noise_OI * np.abs(base_OI).std()
    for suspect_OI in (noisy_OI, bfloat16(noisy_OI), noisy_OI.astype(np.float16).astype(np.float32)):
        for group in ZEROS:
            assert not ROUNDINGS[WITH_ZERO + group].makes_equal(base_OI, suspect_OI, 0.0)


def test_four_bits_are_not_called_eight():
    base_OI = skewed()
    for size in (None, 128, 32):
        suspect_OI = by_groups(size, base_OI, bits=4)
        assert explained(base_OI, suspect_OI) is None
        assert not any(ROUNDINGS[WITH_ZERO + group].makes_equal(base_OI, suspect_OI, 0.0) for group in ZEROS)


def test_columns_of_two_numbers_prove_nothing():
    """Any two numbers are the ends of a grid."""
    base_OI = np.random.default_rng(0).standard_normal((4096, 2)).astype(np.float32)
    noisy_OI = base_OI + np.float32(1e-4) * np.random.default_rng(1).standard_normal(base_OI.shape).astype(np.float32)
    assert explained(base_OI, noisy_OI) is None and explained(base_OI.T, noisy_OI.T) is None


def test_symmetric_codes_are_not_said_to_have_zero_points():
    base_OI = weights()
    for form in (by_channel, by_tensor, by_32):
        assert "zero point" not in explained(base_OI, form("int8", base_OI))


def test_numbers_halfway_between_two_codes_may_go_either_way():
    base_N = np.array([[127.0, 0.5, 1.5, -2.5]], np.float32)
    for codes in ([127, 0, 2, -2], [127, 1, 1, -3]):
        assert ROUNDINGS["8 bits with a scale for each tensor"].makes_equal(base_N, np.array([codes], np.float32), 0.5)
    assert not ROUNDINGS["8 bits with a scale for each tensor"].makes_equal(
        base_N, np.array([[127, 1, 3, -2]], np.float32), 0.5
    )


def test_the_lowest_code_may_be_the_largest_number():
    """Formats that map the range to 255 steps use −128 too."""
    base_N = np.array([[-128.2, 3.3, 100.4, 7.0]], np.float32)
    suspect_N = np.array([[-128.0, 3.0, 100.0, 7.0]], np.float32)
    assert ROUNDINGS["8 bits with a scale for each tensor"].makes_equal(base_N / 1000, suspect_N / 1000, 4e-4)


@pytest.mark.parametrize("name", FORMS)
def test_a_tensor_of_another_size_or_zeros_is_no_rounding(name):
    kind, form = FORMS[name]
    base_OI = weights()
    suspect_OI = form(kind, base_OI)
    # Asked as if the tensors were near, so that the search itself must say no.
    assert ROUNDINGS[name].makes_equal(base_OI, suspect_OI, 0.0)
    assert not ROUNDINGS[name].makes_equal(base_OI * np.float32(1.02), suspect_OI, 0.0)
    silent_OI = suspect_OI.copy()
    silent_OI[:128, :128] = 0.0
    assert not ROUNDINGS[name].makes_equal(base_OI, silent_OI, 0.0)
    both_OI = base_OI.copy()
    both_OI[:128, :128] = 0.0
    if form not in (by_tensor, by_channel):
        assert ROUNDINGS[name].makes_equal(both_OI, silent_OI, 0.0)


def test_norms_in_16_bits_beside_matrices_in_8_are_said():
    explanations = Explanations()
    matrix_OI, scale_D = weights(), 1 + weights(1)[0] / 10
    for base, suspect in ((matrix_OI, by_channel("int8", matrix_OI)), (scale_D, bfloat16(scale_D))):
        explanations.see(base, suspect, float(np.abs(base - suspect).max()))
    assert explanations.sentence == "8 bits with a scale for each channel, of some tensors to bfloat16"
    explanations.see(matrix_OI, by_tensor("int8", matrix_OI), 1.0)
    assert explanations.sentence is None


def test_other_models_are_told_apart_without_a_search(monkeypatch):
    base_OI, other_OI = weights(0), weights(1)
    difference = float(np.abs(base_OI - other_OI).max())
    monkeypatch.setattr("bornbiased_jax.lineage.roundings.Rounding._on_grid", pytest.fail)
    for name in FORMS:
        assert not ROUNDINGS[name].makes_equal(base_OI, other_OI, difference)


# ---------------------------------------------------------------------------------------------------------------------
# Files


def written(folder, name, change, **config):
    """Write a model with the tensors that ``change`` makes of each of a matrix's."""
    torch = pytest.importorskip("torch")
    # Skips where transformers is missing.
    from tests.checkpoints.architectures import auto_class, transformers_config

    torch.manual_seed(0)
    auto_class(name).from_config(transformers_config(name, scale=4)).save_pretrained(folder)
    path = folder / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    made = {}
    for key, array in tensors.items():
        made |= change(key, array) if array.ndim == 2 and "layers" in key else {key: array}
    safetensors.numpy.save_file({key: np.ascontiguousarray(array) for key, array in made.items()}, path)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | config))
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


def int8_with_zeros(key, array):
    """Keep a matrix in integers with a scale and a zero point for each row, as compressed-tensors does."""
    low_O1, high_O1 = (np.array(end(array, axis=1, keepdims=True)) for end in (np.min, np.max))
    scale_O1 = ((np.maximum(high_O1, 0) - np.minimum(low_O1, 0)) / 255).astype(np.float32)
    zero_O1 = np.rint(-128 - np.minimum(low_O1, 0) / scale_O1)
    codes_OI = np.clip(np.rint(array / scale_O1 + zero_O1), -128, 127)
    names = (key, f"{key}_scale", f"{key}_zero_point")
    return dict(zip(names, (codes_OI.astype(np.int8), scale_O1, zero_O1.astype(np.int8)), strict=True))


def gptq(key, array, size=32):
    """Keep a matrix in GPTQ's packing of 8 bits, rounded to the nearest, with a zero point for each group of rows."""
    weight_IO = array.T
    groups_GNO = weight_IO.reshape(-1, size, weight_IO.shape[1])
    low_GO, high_GO = np.minimum(groups_GNO.min(axis=1), 0), np.maximum(groups_GNO.max(axis=1), 0)
    scale_GO = ((high_GO - low_GO) / 255).astype(np.float16)
    wide_GO = scale_GO.astype(np.float32)
    zero_GO = np.clip(np.rint(-low_GO / wide_GO), 1, 255).astype(np.uint8)
    codes_GNO = np.clip(np.rint(groups_GNO / wide_GO[:, None]) + zero_GO[:, None], 0, 255).astype(np.uint8)
    codes_IO = codes_GNO.reshape(weight_IO.shape)
    # Four codes a word: of rows, and of the columns of zero points, which are stored less one.
    words_IO = np.ascontiguousarray(codes_IO.reshape(-1, 4, codes_IO.shape[1]).swapaxes(1, 2)).view("<i4")[..., 0]
    base = key.removesuffix(".weight")
    return {
        f"{base}.qweight": words_IO,
        f"{base}.qzeros": np.ascontiguousarray(zero_GO - np.uint8(1)).view("<i4"),
        f"{base}.scales": scale_GO,
    }


@pytest.mark.parametrize(
    ("change", "settings", "group"),
    [
        (int8_with_zeros, {"quant_method": "compressed-tensors"}, "channel"),
        (gptq, {"quant_method": "gptq", "bits": 8, "group_size": 32}, "block of 32"),
    ],
)
def test_a_file_in_8_bits_with_zero_points_is_equal_after_rounding_to_them(tmp_path, change, settings, group):
    base = written(tmp_path / "base", "llama", plain)
    suspect = written(tmp_path / "suspect", "llama", change, quantization_config=settings)
    found = tensor_difference(base, suspect)
    assert found is not None and found.rounding == WITH_ZERO + group


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


@pytest.mark.parametrize("cast", [bfloat16, lambda array: array.astype(np.float16).astype(np.float32)])
def test_scales_that_a_file_stores_less_one_are_rounded_there(cast):
    """Gemma stores g and multiplies by 1 + g: rounding 1 + g would be another rounding."""
    offsets_D = (0.05 * np.random.default_rng(0).standard_normal(4096)).astype(np.float32)
    base_D, suspect_D = 1 + offsets_D, 1 + cast(offsets_D)
    explanations = Explanations()
    explanations.see(base_D, suspect_D, 1e-3)
    assert explanations.sentence not in ("bfloat16", "float16")
    explanations = Explanations()
    explanations.see(base_D, suspect_D, 1e-3, is_scale=True)
    assert explanations.sentence == ("bfloat16" if cast is bfloat16 else "float16")
    # One number a step further is no rounding.
    suspect_D[7] += 2 * np.abs(suspect_D - base_D).max()
    explanations = Explanations()
    explanations.see(base_D, suspect_D, 1e-3, is_scale=True)
    assert explanations.sentence not in ("bfloat16", "float16")


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
