"""Forms of storage of one model give one answer, in each public architecture; two architectures besides."""

import json
import re
import shutil

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from bornbiased_jax.lineage.trace import trace
from tests.checkpoints.architectures import MODELS, auto_class, named_as_internlm2, transformers_config
from tests.tiers import nightly_except

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

# What the bound certifies needs no more.
FEW = 99
FORMS = ("bfloat16", "shards", "float8", "GPTQ", "files of torch")
# Sides of blocks that share a scale, and numbers of a row that do.
SIDE, GROUP = 64, 32


def _write(name, folder, seed):
    torch.manual_seed(seed)
    auto_class(name).from_config(transformers_config(name, scale=4)).save_pretrained(folder)
    return folder


def _tensors(folder):
    return safetensors.numpy.load_file(folder / "model.safetensors")


def _float8(prefix, weight_OI):
    rows, columns = weight_OI.shape[0] // SIDE, weight_OI.shape[1] // SIDE
    blocks = weight_OI.reshape(rows, SIDE, columns, SIDE)
    scale = np.abs(blocks).max(axis=(1, 3)) / 448
    numbers_OI = (blocks / scale[:, None, :, None]).reshape(weight_OI.shape).astype(ml_dtypes.float8_e4m3fn)
    return {f"{prefix}weight": numbers_OI, f"{prefix}weight_scale_inv": scale.astype(np.float32)}


def _gptq(prefix, weight_OI):
    groups_GIO = weight_OI.T.reshape(-1, GROUP, weight_OI.shape[0])
    scale_GO = np.abs(groups_GIO).max(axis=1) / 7
    numbers_IO = np.clip(np.rint(groups_GIO / scale_GO[:, None]) + 8, 0, 15).reshape(weight_OI.T.shape)
    numbers_IO = numbers_IO.astype(np.uint32)
    zeros_GO = np.full(scale_GO.shape, 7, np.uint32)
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    words_IO = numbers_IO.reshape(-1, 8, weight_OI.shape[0])
    return {
        f"{prefix}qweight": (words_IO << shifts[:, None]).sum(1).astype(np.int32),
        f"{prefix}qzeros": (zeros_GO.reshape(len(zeros_GO), -1, 8) << shifts).sum(2).astype(np.int32),
        f"{prefix}scales": scale_GO.astype(np.float16),
    }


QUANTIZED = {
    "float8": (_float8, {"quant_method": "fp8", "weight_block_size": [SIDE, SIDE]}),
    "GPTQ": (_gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP}),
}


# Routers and what state-space blocks have beside their matrices stay as they are, as in public files.
UNCHANGED = ("router", "mlp.gate.", "shared_expert_gate", "conv", "norm", "ln_")


def _quantized(tensors, change):
    """Change every matrix of a block that is in whole blocks of numbers, by the name before "weight"."""
    made = {}
    for name, array in tensors.items():
        is_whole = array.ndim == 2 and not any(size % SIDE for size in array.shape)
        is_in_block = re.search(r"\.\d+\.", name) is not None and name.endswith(".weight")
        is_changed = is_whole and is_in_block and not any(word in name for word in UNCHANGED)
        made |= change(name.removesuffix("weight"), array) if is_changed else {name: array}
    assert len(made) > len(tensors), "nothing was quantized"
    return {name: np.ascontiguousarray(array) for name, array in made.items()}


def _write_form(form, name, base, place):
    """Write the model of a folder in another form of storage."""
    tensors = _tensors(base)
    if form in ("bfloat16", "shards"):
        model = auto_class(name).from_pretrained(base, dtype=torch.bfloat16 if form == "bfloat16" else torch.float32)
        model.save_pretrained(place, max_shard_size="300KB" if form == "shards" else "5GB")
        return place
    shutil.copytree(base, place)
    if form == "files of torch":
        (place / "model.safetensors").unlink()
        torch.save({key: torch.tensor(array) for key, array in tensors.items()}, place / "pytorch_model.bin")
        return place
    change, settings = QUANTIZED[form]
    config = json.loads((base / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    safetensors.numpy.save_file(_quantized(tensors, change), place / "model.safetensors", {"format": "pt"})
    return place


CELLS = [(name, form) for name in MODELS for form in FORMS]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "form"),
    nightly_except(
        CELLS,
        *(("llama", form) for form in FORMS),
        *(("phi3", "GPTQ"), ("qwen3_moe", "float8"), ("deepseek_v3", "bfloat16"), ("llava", "float8")),
    ),
)
def test_forms_of_storage_of_one_model_are_one_lineage(tmp_path, name, form):
    base = _write(name, tmp_path / "base", 1)
    found = trace(base, _write_form(form, name, base, tmp_path / "form"), num_permutations=FEW)
    assert found.verdict == "same-lineage"
    assert found.log10_p < -300
    # What was only packed otherwise is the same, what was rounded is not.
    assert (found.detail["identity"] == "tensors") == (form in ("shards", "files of torch"))
    other = _write(name, tmp_path / "other", 2)
    of_other = _write_form(form, name, other, tmp_path / "form of other")
    assert trace(base, of_other, num_permutations=FEW).verdict == "unrelated"


def _noisy(tensors, fraction=0.1):
    """Return tensors with noise of a fraction of their standard deviation; norms have none, and get noise of 0.01."""
    rng = np.random.default_rng(0)
    return {
        name: array + np.float32(fraction * (array.std() or 0.1)) * rng.standard_normal(array.shape, np.float32)
        for name, array in tensors.items()
    }


def _as_internlm2(folder, place, change=dict):
    """Write the llama of a folder under the names of InternLM2."""
    config = json.loads((folder / "config.json").read_text())
    place.mkdir()
    (place / "config.json").write_text(json.dumps(config | {"model_type": "internlm2"}))
    tensors = named_as_internlm2(change(_tensors(folder)), config)
    safetensors.numpy.save_file(tensors, place / "model.safetensors", {"format": "pt"})
    return place


@pytest.mark.slow
def test_internlm2_is_compared_with_its_kin_and_with_a_llama_of_the_same_weights(tmp_path):
    llama, unrelated = (_write("llama", tmp_path / str(seed), seed) for seed in (1, 2))
    base = _as_internlm2(llama, tmp_path / "base")
    copy = _as_internlm2(llama, tmp_path / "copy", _noisy)
    other = _as_internlm2(unrelated, tmp_path / "other")
    found = trace(base, copy, num_permutations=FEW)
    assert found.verdict == "same-lineage" and found.log10_p < -300
    assert trace(base, other, num_permutations=FEW).verdict == "unrelated"
    # The matrix of queries, keys and values comes apart as the other family has it.
    renamed = trace(llama, base, num_permutations=FEW)
    assert renamed.verdict == "same-lineage" and renamed.detail["identity"] == "tensors"
    assert trace(llama, other, num_permutations=FEW).verdict == "unrelated"
