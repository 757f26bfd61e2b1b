"""Kinds of weight files that are read by the names of their tensors: pickles, quantized tensors, shards, adapters."""

import json
import shutil
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from bornbiased_jax.checkpoints.by_role import read_by_names
from tests.fixtures.four_bits import pack_words, quantized_nf4

HF = Path(__file__).resolve().parent.parent / "fixtures" / "hf"
WEIGHTS, PICKLE = "model.safetensors", "pytorch_model.bin"


def read(folder: Path, path: Path) -> Any:
    """Read every tensor of a folder by its role."""
    source = read_by_names(folder, roles_file=path if path.name == "roles.json" else None)
    source.token_labels()
    shapes = [source.shape(component) for component in {role.component for role in source.roles}]
    return shapes, [float(np.sum(source.read(role))) for role in source.roles]


def _llama(folder: Path) -> dict[str, np.ndarray]:
    """Write the configuration of a model of one block, and return its tensors."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 48, **sizes}))
    rng = np.random.default_rng(1)
    block = "model.layers.0"
    shapes: dict[str, tuple[int, ...]] = {f"{block}.self_attn.{name}_proj": (32, 32) for name in "qkvo"}
    shapes |= {f"{block}.mlp.gate_proj": (64, 32), f"{block}.mlp.up_proj": (64, 32), f"{block}.mlp.down_proj": (32, 64)}
    shapes |= {f"{block}.{name}_layernorm": (32,) for name in ("input", "post_attention")}
    shapes |= {"model.embed_tokens": (48, 32), "lm_head": (48, 32), "model.norm": (32,)}
    return {f"{name}.weight": rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def torch_file(tensors: dict[str, np.ndarray]) -> tuple[bytes, dict[str, bytes]]:
    """Write the pickle and the storages of what ``torch.save`` makes of float32 tensors, opcode by opcode."""

    def text(value: str) -> bytes:
        return b"X" + struct.pack("<I", len(value.encode())) + value.encode()

    def integers(values: tuple[int, ...]) -> bytes:
        return b"(" + b"".join(b"J" + struct.pack("<i", value) for value in values) + b"t"

    pickled, storages = [b"\x80\x02}("], {}
    for index, (name, array) in enumerate(tensors.items()):
        storages[str(index)] = np.ascontiguousarray(array, np.float32).tobytes()
        strides = tuple(int(np.prod(array.shape[axis + 1 :])) for axis in range(array.ndim))
        storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text(str(index)) + text("cpu")
        storage += b"J" + struct.pack("<i", array.size) + b"tQ"
        arguments = storage + b"K\0" + integers(array.shape) + integers(strides) + b"\x89ccollections\nOrderedDict\n)R"
        pickled.append(text(name) + b"ctorch._utils\n_rebuild_tensor_v2\n(" + arguments + b"tR")
    return b"".join([*pickled, b"u."]), storages


def pickle_of_weights(folder: Path) -> str:
    """A ``pytorch_model.bin``, mutated as a file: its archive too."""
    data, storages = torch_file(_llama(folder))
    with zipfile.ZipFile(folder / PICKLE, "w") as archive:
        archive.writestr("archive/data.pkl", data)
        for key, content in storages.items():
            archive.writestr(f"archive/data/{key}", content)
    return PICKLE


def pickle_within(folder: Path) -> str:
    """The pickle alone, which :func:`read_within` puts into an archive that is sound."""
    data, _ = torch_file(_llama(folder))
    (folder / "data.pkl").write_bytes(data)
    return "data.pkl"


def read_within(folder: Path, path: Path) -> Any:
    """Read a mutated pickle with the storages of the sound one."""
    _, storages = torch_file(_llama(folder))
    with zipfile.ZipFile(folder / PICKLE, "w") as archive:
        archive.writestr("archive/data.pkl", path.read_bytes())
        for key, content in storages.items():
            archive.writestr(f"archive/data/{key}", content)
    return read(folder, path)


def quantized(folder: Path) -> dict[str, np.ndarray]:
    """A model with a scheme for every matrix of its blocks, each with numbers of its own form."""
    rng = np.random.default_rng(0)
    tensors: dict[str, np.ndarray] = {}
    for name, array in _llama(folder).items():
        base, last = name.removesuffix(".weight"), name.split(".")[-2]
        out, into = array.shape if array.ndim == 2 else (1, 1)
        scales = rng.uniform(0.01, 0.1, (4, out)).astype(np.float32)
        if last in ("q_proj", "o_proj"):
            tensors |= quantized_nf4(name, array)
        elif last in ("k_proj", "v_proj"):
            axis = 0 if last == "k_proj" else 1
            tensors[f"{base}.qweight"] = pack_words(rng.integers(0, 16, (into, out)), axis)
            tensors[f"{base}.qzeros"] = pack_words(rng.integers(0, 15, (4, out)), 1)
            tensors[f"{base}.scales"] = scales
            if last == "k_proj":
                tensors[f"{base}.g_idx"] = (np.arange(into) % 4).astype(np.int32)
        elif last == "gate_proj":
            tensors[f"{base}.weight_packed"] = pack_words(rng.integers(0, 16, (out, into)), 1)
            tensors[f"{base}.weight_scale"] = scales.T.copy()
            tensors[f"{base}.weight_shape"] = np.array([out, into], np.int64)
        elif last == "up_proj":
            tensors[name] = rng.integers(-127, 128, array.shape).astype(np.int8)
            tensors[f"{base}.SCB"] = scales[0]
        else:
            tensors[name] = array
    return {name: np.ascontiguousarray(array) for name, array in tensors.items()}


def quantized_weights(folder: Path) -> str:
    """A file of quantized weights."""
    save_file(quantized(folder), folder / WEIGHTS)
    return WEIGHTS


def quantized_config(folder: Path) -> str:
    """The configuration of quantized weights."""
    quantized_weights(folder)
    config = json.loads((folder / "config.json").read_text())
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 8, "weight_block_size": [128, 128]}
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    return "config.json"


def quantization_file(folder: Path) -> str:
    """The settings of quantized weights in a file of their own, as AutoGPTQ writes it."""
    quantized_weights(folder)
    settings = {"bits": 4, "group_size": 8, "desc_act": True, "sym": False, "model_file_base_name": "model"}
    (folder / "quantize_config.json").write_text(json.dumps(settings))
    return "quantize_config.json"


def quantization_state(folder: Path) -> str:
    """The JSON text that stands next to a tensor of bitsandbytes, alone in a file."""
    tensors = quantized(folder)
    state = next(name for name in tensors if "quant_state" in name)
    (folder / "state.json").write_bytes(tensors[state].tobytes())
    return "state.json"


def read_state(folder: Path, path: Path) -> Any:
    """Read quantized weights of which every state is the mutated one."""
    tensors = quantized(folder)
    text = np.frombuffer(path.read_bytes(), np.uint8)
    save_file({name: text if "quant_state" in name else array for name, array in tensors.items()}, folder / WEIGHTS)
    return read(folder, path)


def index(folder: Path) -> str:
    """An index of shards."""
    shutil.copytree(HF / "llama-sharded-bfloat16", folder, dirs_exist_ok=True)
    return f"{WEIGHTS}.index.json"


def roles(folder: Path) -> str:
    """A file of roles, and tensors that only it describes."""
    arrays = {"net.3.alpha": np.ones((12, 8), np.float32), "table": np.ones((5, 8), np.float32)}
    save_file(arrays, folder / WEIGHTS)
    rows = [
        {"name": "net.{block}.alpha", "group": "up", "axes": "residual hidden"},
        {"name": "table", "group": "embedding"},
    ]
    (folder / "roles.json").write_text(json.dumps({"tensors": rows}))
    return "roles.json"


def adapter(file: str) -> Any:
    """An adapter and its base, of which one file is mutated."""

    def make(folder: Path) -> str:
        base = folder / "base"
        base.mkdir()
        save_file(_llama(base), base / WEIGHTS)
        out, into = load_file(base / WEIGHTS)["model.layers.0.self_attn.q_proj.weight"].shape
        module = "base_model.model.model.layers.0.self_attn.q_proj"
        rng = np.random.default_rng(0)
        tensors = {f"{module}.lora_A.weight": rng.normal(size=(2, into)), f"{module}.lora_B.weight": np.ones((out, 2))}
        tensors[f"{module}.lora_magnitude_vector"] = np.ones(out)
        save_file(
            {name: array.astype(np.float32) for name, array in tensors.items()}, folder / "adapter_model.safetensors"
        )
        config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "use_dora": True, "rank_pattern": {"q_proj": 2}}
        (folder / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": "base"}))
        return file

    return make


KINDS = {
    "pytorch_model.bin": (pickle_of_weights, read),
    "pickle of pytorch_model.bin": (pickle_within, read_within),
    "quantized weights": (quantized_weights, read),
    "state of quantized weights": (quantization_state, read_state),
    "config.json of quantized weights": (quantized_config, read),
    "quantize_config.json": (quantization_file, read),
    "index of shards by names": (index, read),
    "file of roles": (roles, read),
    "adapter_config.json over its base": (adapter("adapter_config.json"), read),
    "adapter_model.safetensors over its base": (adapter("adapter_model.safetensors"), read),
}
"""Name of a kind -> how a good file is made, and who reads it (:class:`tests.robustness.kinds.Kind`)."""
