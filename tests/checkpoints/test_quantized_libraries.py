"""Decoded matrices are those of bitsandbytes, compressed-tensors and gptqmodel, bit for bit."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.checkpoints.test_weight_files import _decoded

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "quantized"


def cases_of(library):
    """List a library's stored and decoded tensors, by case (``tests/fixtures/make_quantized_fixtures.py``)."""
    cases = {}
    with np.load(FOLDER / f"{library}.npz") as file:
        for key in file.files:
            place, _, kind = key.partition(":")
            case, _, name = place.rpartition("/")
            array = file[key]
            cases.setdefault(case, {})[name] = array.view(getattr(ml_dtypes, kind)) if kind else array
    return cases


BITSANDBYTES, COMPRESSED_TENSORS = cases_of("bitsandbytes"), cases_of("compressed_tensors")
GPTQMODEL = cases_of("gptqmodel")


@pytest.mark.parametrize("case", BITSANDBYTES)
def test_bitsandbytes_decodes_the_same_numbers(case):
    arrays = dict(BITSANDBYTES[case])
    expected = arrays.pop("decoded")
    values = _decoded(arrays).read("m.weight")
    assert values.dtype == expected.dtype == np.float32 and np.array_equal(values, expected)
    if case != "int8":
        # The bytes may be stored as numbers of another type (``bnb_4bit_quant_storage``).
        arrays["m.weight"] = arrays["m.weight"].reshape(-1).view(ml_dtypes.bfloat16)[:, None]
        assert np.array_equal(_decoded(arrays).read("m.weight"), expected)


@pytest.mark.parametrize("case", COMPRESSED_TENSORS)
def test_compressed_tensors_decodes_the_same_numbers(case):
    arrays = dict(COMPRESSED_TENSORS[case])
    expected = arrays.pop("decoded")
    bits = 8 if case.startswith("8 bits") else 4
    settings = {"config_groups": {"group_0": {"weights": {"num_bits": bits}}}}
    values = _decoded(arrays, settings).read("m.weight")
    # Products are exact numbers in float32 here; the library rounds them to its own type once more.
    if "torch.bfloat16 of" in case:
        assert not np.array_equal(values, expected) or case.startswith("float8, tensor")
        values = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(values, expected)


@pytest.mark.parametrize("case", GPTQMODEL)
def test_gptqmodel_decodes_the_same_numbers(case):
    arrays = dict(GPTQMODEL[case])
    expected = arrays.pop("decoded")
    bits, _, kind = case.partition(" bits, ")
    version = {"checkpoint_format": "gptq_v2"} if kind == "gptq_v2" else {}
    values = _decoded(arrays, {"bits": int(bits), **version}).read("m.weight")
    # Products are exact numbers in float32 here; the library rounds them to float16 once more.
    assert expected.dtype == np.float16 and np.array_equal(values.astype(np.float16), expected)
    assert not np.array_equal(values, expected)


@pytest.mark.parametrize("older", [None, "gptq", "gptq_v2"])
@pytest.mark.parametrize("newer", [None, "gptq", "gptq_v2"])
def test_format_of_zeros_under_either_name(older, newer):
    """transformers reads ``format``, and before it ``checkpoint_format`` of earlier files."""
    transformers = pytest.importorskip("transformers")
    stated = {"checkpoint_format": older, "format": newer}
    settings = {"bits": 4, **{name: value for name, value in stated.items() if value is not None}}
    arrays = {name: array for name, array in GPTQMODEL["4 bits, gptq_v2"].items() if name != "decoded"}
    form = transformers.GPTQConfig(**settings).format
    expected = _decoded(arrays, {"bits": 4, "checkpoint_format": form}).read("m.weight")
    assert np.array_equal(_decoded(arrays, settings).read("m.weight"), expected)


@pytest.mark.parametrize(
    ("settings", "is_whole"),
    [
        ({"backend": "auto_round:exllamav2", "quant_method": "intel/auto-round"}, True),
        ({"packing_format": "auto_round:triton", "backend": "auto"}, True),
        ({"backend": "auto_round:gptq:exllamav2"}, False),
        ({"packing_format": "auto_round:auto_gptq"}, False),
    ],
)
def test_zeros_of_autoround_are_whole_in_its_own_format_alone(settings, is_whole):
    """Its ``packing_format`` of kernels is "triton" or "triton_zp+-1"."""
    arrays = {name: array for name, array in GPTQMODEL["4 bits, gptq_v2"].items() if name != "decoded"}
    version = {"checkpoint_format": "gptq_v2" if is_whole else "gptq"}
    expected = _decoded(arrays, {"bits": 4, **version}).read("m.weight")
    assert np.array_equal(_decoded(arrays, {"bits": 4, **settings}).read("m.weight"), expected)


def test_both_tables_blocks_and_every_format_are_there():
    assert len(BITSANDBYTES) == 9 and len(COMPRESSED_TENSORS) == 18
    assert set(GPTQMODEL) == {
        "4 bits, gptq", "4 bits, gptq by activation", "8 bits, gptq", "4 bits, gptq_v2", "4 bits, awq"
    }  # fmt: skip
    everything = (*BITSANDBYTES.values(), *COMPRESSED_TENSORS.values(), *GPTQMODEL.values())
    assert all(np.ptp(arrays["decoded"]) > 0.1 for arrays in everything)
