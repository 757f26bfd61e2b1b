"""Forms of storage of one model give one answer, in each public architecture."""

import json
import re
import shutil

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from bornbiased_jax.checkpoints.by_role import read_by_role
from bornbiased_jax.checkpoints.quantized import FP4
from bornbiased_jax.lineage.trace import trace
from tests.checkpoints.architectures import (
    MODELS,
    auto_class,
    noisy,
    tensors_of,
    with_tensors,
    write_model,
)
from tests.fixtures.gguf_files import convert
from tests.tiers import nightly_except

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

# What the bound certifies needs no more.
FEW = 99
FORMS = ("bfloat16", "shards", "float8", "GPTQ", "files of torch")
# Sides of blocks that share a scale, numbers of a row that do, and those of a row in MXFP4.
SIDE, GROUP, BLOCK = 64, 32, 32


def _largest(array, axis, size):
    """Return the largest of every ``size`` numbers along an axis; of what is left at its end, too."""
    return np.maximum.reduceat(np.abs(array), np.arange(0, array.shape[axis], size), axis=axis)


def _as_float8(numbers, scale):
    return (numbers / scale).astype(ml_dtypes.float8_e4m3fn)


def _float8(name, weight_OI):
    rows, columns = weight_OI.shape
    scale = (_largest(_largest(weight_OI, 0, SIDE), 1, SIDE) / 448).astype(np.float32)
    scale_OI = scale.repeat(SIDE, axis=0)[:rows].repeat(SIDE, axis=1)[:, :columns]
    return {name: _as_float8(weight_OI, scale_OI), f"{name}_scale_inv": scale}


def _gptq(name, weight_OI):
    prefix, weight_IO = name.removesuffix("weight"), weight_OI.T
    group_I = np.arange(len(weight_IO)) // GROUP
    scale_GO = _largest(weight_IO, 0, GROUP) / 7
    numbers_IO = np.clip(np.rint(weight_IO / scale_GO[group_I]) + 8, 0, 15).astype(np.uint32)
    zeros_GO = np.full(scale_GO.shape, 7, np.uint32)
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    words_IO = numbers_IO.reshape(-1, 8, weight_IO.shape[1])
    return {
        f"{prefix}qweight": (words_IO << shifts[:, None]).sum(1).astype(np.int32),
        f"{prefix}qzeros": (zeros_GO.reshape(len(zeros_GO), -1, 8) << shifts).sum(2).astype(np.int32),
        f"{prefix}scales": scale_GO.astype(np.float16),
        f"{prefix}g_idx": group_I.astype(np.int32),
    }


def _float8_of_rows(name, weight_OI):
    scale_O1 = np.abs(weight_OI).max(axis=1, keepdims=True) / 448
    return {name: _as_float8(weight_OI, scale_O1), f"{name}_scale": scale_O1}


def _float8_of_stack(name, weight_EIO):
    """As transformers writes Llama 4's experts with fbgemm: scales of down_proj are turned."""
    scale_E1O = np.abs(weight_EIO).max(axis=1, keepdims=True) / 448
    stored = scale_E1O.swapaxes(1, 2) if name.endswith("down_proj") else scale_E1O
    return {name: _as_float8(weight_EIO, scale_E1O), f"{name}_scale": stored}


def _mxfp4_of_stack(name, weight_EIO):
    experts, inputs, outputs = weight_EIO.shape
    numbers_EOGB = weight_EIO.swapaxes(1, 2).reshape(experts, outputs, inputs // BLOCK, BLOCK)
    exponent_EOG = np.floor(np.log2(np.abs(numbers_EOGB).max(axis=-1))) - 2
    distances = np.abs(np.ldexp(numbers_EOGB, -exponent_EOG[..., None].astype(int))[..., None] - FP4)
    codes_EOGB = distances.argmin(axis=-1).astype(np.uint8)
    return {
        f"{name}_blocks": codes_EOGB[..., ::2] | codes_EOGB[..., 1::2] << 4,
        f"{name}_scales": (exponent_EOG + 127).astype(np.uint8),
    }


# What becomes of matrices, of stacked experts, and what the configuration says. Experts that are stacked in one tensor
# stay as they are in forms in which no public file has them: GPTQ and blocks of FP8 are for matrices, so that the
# quantizers leave the experts of gpt-oss and Granite alone, and take those of Llama 4 apart.
QUANTIZED = {
    "float8": (_float8, None, {"quant_method": "fp8", "weight_block_size": [SIDE, SIDE]}),
    "GPTQ": (_gptq, None, {"quant_method": "gptq", "bits": 4, "group_size": GROUP}),
    "float8 of fbgemm": (_float8_of_rows, _float8_of_stack, {"quant_method": "fbgemm_fp8"}),
    "MXFP4": (None, _mxfp4_of_stack, {"quant_method": "mxfp4"}),
}
# Routers and what state-space blocks have beside their matrices stay as they are, as in public files.
UNCHANGED = ("router", "mlp.gate.", "shared_expert_gate", "conv", "in_proj_ba", "norm.weight", "ln_")


def _as_linear(name, tensors):
    """Return a model's tensors as quantizers see them: all matrices [out, in], experts of Llama 4 one by one."""
    made = {}
    for key, array in tensors.items():
        if name == "gpt2" and re.search(r"\.c_\w+\.weight", key):
            made[key] = array.T
        elif name == "llama4" and key.endswith(("experts.gate_up_proj", "experts.down_proj")):
            place, _, kind = key.rpartition(".")
            parts = ("gate_proj", "up_proj") if kind == "gate_up_proj" else (kind,)
            for number, expert_IO in enumerate(array):
                for part, matrix_IO in zip(parts, np.split(expert_IO, len(parts), axis=1), strict=True):
                    made[f"{place}.{number}.{part}.weight"] = matrix_IO.T
        else:
            made[key] = array
    return made


def _quantized(tensors, of_matrix, of_stack):
    """Change what a quantizer changes: every matrix of a block that packs into whole words, and stacked experts."""
    made = {}
    for name, array in tensors.items():
        is_matrix = array.ndim == 2 and name.endswith(".weight") and not any(size % 8 for size in array.shape)
        is_stack = array.ndim == 3 and "experts" in name
        change = of_matrix if is_matrix else of_stack if is_stack else None
        is_in_block = re.search(r"\.\d+\.", name) is not None and not any(word in name for word in UNCHANGED)
        made |= change(name, array) if change and is_in_block else {name: array}
    assert len(made) > len(tensors), "nothing was quantized"
    return {name: np.ascontiguousarray(array) for name, array in made.items()}


def _write_form(form, name, base, place):
    """Write the model of a folder in another form of storage."""
    tensors = tensors_of(base)
    if form in ("bfloat16", "shards"):
        model = auto_class(name).from_pretrained(base, dtype=torch.bfloat16 if form == "bfloat16" else torch.float32)
        model.save_pretrained(place, max_shard_size="300KB" if form == "shards" else "5GB")
        return place
    shutil.copytree(base, place)
    if form == "files of torch":
        (place / "model.safetensors").unlink()
        torch.save({key: torch.tensor(array) for key, array in tensors.items()}, place / "pytorch_model.bin")
        return place
    of_matrix, of_stack, settings = QUANTIZED[form]
    config = json.loads((base / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    made = _quantized(tensors if of_stack else _as_linear(name, tensors), of_matrix, of_stack)
    safetensors.numpy.save_file(made, place / "model.safetensors", {"format": "pt"})
    return place


def _largest_change(base, form):
    """Return how far any tensor of another form is off, as a fraction of its size."""
    sources = [read_by_role(folder) for folder in (base, form)]
    base_roles, form_roles = ({role.path: role for role in source.roles} for source in sources)
    assert base_roles.keys() == form_roles.keys() and len(sources[0].unread) == len(sources[1].unread)
    changes = []
    for path, role in base_roles.items():
        array = sources[0].read(role)
        difference = sources[1].read(form_roles[path]) - array
        changes.append(np.linalg.norm(difference) / max(np.linalg.norm(array), 1e-9))
    return max(changes)


# What rounding leaves of a tensor's size, in latent attention of two that are multiplied.
ROUNDING = {"bfloat16": 0.003, "float8": 0.04, "float8 of fbgemm": 0.04, "GPTQ": 0.15, "MXFP4": 0.15}
IDENTITY = {"shards": "tensors", "files of torch": "tensors", "bfloat16": "rounded"}
IDENTITY |= {"float8": "rounded", "float8 of fbgemm": "rounded"}
# Of RWKV a formula decides vectors in another way in each block: two untrained models are undefined.
CELLS = [(name, form) for name in MODELS if name != "rwkv" for form in FORMS]
CELLS += [("gpt_oss", "MXFP4"), ("llama4", "float8 of fbgemm")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "form"),
    nightly_except(
        CELLS,
        *(("llama", form) for form in FORMS if form != "float8"),
        *(("phi3", "GPTQ"), ("qwen3_moe", "float8"), ("deepseek_v3", "bfloat16")),
    ),
)
def test_forms_of_storage_of_one_model_are_one_lineage(tmp_path, name, form):
    base = write_model(name, tmp_path / "base", 1)
    rounded = _write_form(form, name, base, tmp_path / "form")
    assert _largest_change(base, rounded) <= ROUNDING.get(form, 0)
    verdict = trace(base, rounded, num_permutations=FEW)
    assert verdict.verdict == "same-lineage"
    # Without neurons and heads there are the 128 coordinates alone, in one of 10^215 orders.
    assert verdict.log10_p < (-200 if name.startswith("mamba") else -300)
    # What was only packed otherwise is the same, what was rounded is so after rounding, to four bits not even that.
    assert verdict.detail["identity"] == IDENTITY.get(form)
    other = write_model(name, tmp_path / "other", 2)
    of_other = _write_form(form, name, other, tmp_path / "form of other")
    assert trace(base, of_other, num_permutations=FEW).verdict == "unrelated"


YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64, rope_theta=1e4)
# Settings with which this package does not run a family that it runs.
NOT_RUN = {
    "yarn": ("llama", {"rope_parameters": YARN}),
    "dynamic": ("llama", {"rope_parameters": dict(rope_type="dynamic", factor=2.0, rope_theta=1e4)}),
    # Of the five GPT-2 of the Center for Research on Foundation Models.
    "crfm": ("gpt2", {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True}),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", nightly_except(NOT_RUN, "yarn", "crfm"))
def test_settings_that_are_not_run_are_no_reason_not_to_compare_weights(tmp_path, kind):
    name, settings = NOT_RUN[kind]
    plain, unrelated = (write_model(name, tmp_path / f"plain {seed}", seed) for seed in (1, 2))
    base = with_tensors(plain, tmp_path / "base", tensors_of(plain), **settings)
    assert read_by_role(base).naming == "names"
    saved = tmp_path / "saved again"
    auto_class(name).from_pretrained(base).save_pretrained(saved, max_shard_size="300KB")
    assert any(setting in json.loads((saved / "config.json").read_text()).items() for setting in settings.items())
    verdict = trace(base, saved, num_permutations=FEW)
    assert (verdict.verdict, verdict.detail["identity"]) == ("same-lineage", "tensors")
    assert verdict.reason == "the two models have the same weights, tensor by tensor"
    # Also beside the family as it is run: the numbers are the same, and whether the function is nobody says.
    verdict = trace(plain, saved, num_permutations=FEW)
    assert verdict.detail["identity"] == "tensors" and "function" not in verdict.reason
    unknown = {"net.alpha": np.ones((3, 2), np.float32)}
    copy = with_tensors(plain, tmp_path / "copy", noisy(tensors_of(plain)) | unknown, **settings)
    verdict = trace(base, copy, num_permutations=FEW)
    assert verdict.verdict == "same-lineage" and verdict.detail["identity"] is None
    assert any("net.alpha" in note for note in verdict.detail["notes"])
    other = with_tensors(plain, tmp_path / "other", tensors_of(unrelated), **settings)
    assert trace(base, other, num_permutations=FEW).verdict == "unrelated"


# What the file holds, and how equal it is called.
GGUF_FORMS = {
    "F32": r"the two models have the same weights, tensor by tensor$",
    "F16": r"the weights are equal after rounding to float16 \(largest difference 0\.00\d+ of",
    "BF16": r"the weights are equal after rounding to bfloat16 \(largest difference 0\.0\d+ of",
    "Q8_0": r"the weights are equal after rounding to 8 bits with a scale for each block of 32 \(largest",
    "Q4_K_M": "",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", nightly_except(GGUF_FORMS, "Q8_0", "Q4_K_M"))
def test_gguf_files_are_called_as_equal_as_they_are(tmp_path, kind):
    # Rows of whole blocks of 256.
    base, other = (write_model("llama", tmp_path / str(seed), seed, scale=8) for seed in (1, 2))
    paths = [convert(tmp_path / f"{folder.name}.gguf", folder, kind=kind) for folder in (base, other)]
    verdict = trace(base, paths[0], num_permutations=FEW)
    assert verdict.verdict == "same-lineage"
    assert verdict.detail["identity"] == {"F32": "tensors", "Q4_K_M": None}.get(kind, "rounded")
    assert re.match(GGUF_FORMS[kind], verdict.reason)
    assert not re.search("settings differ|same function|exact copy", verdict.reason)
    assert trace(*paths, num_permutations=FEW).verdict == "unrelated"
