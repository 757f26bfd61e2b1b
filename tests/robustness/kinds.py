"""Every kind of file that is read: how a small good one is made, which file of it is corrupted, and who reads it."""

import base64
import functools
import gzip
import json
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from bornbiased_jax.checkpoints import export_hugging_face, open_checkpoint
from bornbiased_jax.checkpoints.by_role import read_by_names
from bornbiased_jax.checkpoints.formats.run import read_run
from bornbiased_jax.chunk_store import Chunk, Store, task_of
from bornbiased_jax.config import preset
from bornbiased_jax.experiments.base import cached
from bornbiased_jax.experiments.runner import is_complete, load
from bornbiased_jax.init import init_seed
from bornbiased_jax.io import MARKER, Folder
from bornbiased_jax.lineage import fingerprint_file
from bornbiased_jax.lineage import output_fingerprint as prints
from bornbiased_jax.lineage.audit.listing import audit_listing
from bornbiased_jax.lineage.fingerprint_pass import fingerprint
from bornbiased_jax.model import scratch
from bornbiased_jax.probes.inputs import from_tokens
from bornbiased_jax.schema import parse_json
from bornbiased_jax.store import Request, fulfill, status
from bornbiased_jax.text import bpe, load_tokenizer, read_documents
from bornbiased_jax.text.bpe import BYTE_CHARACTERS, train_bpe
from bornbiased_jax.text.byte_level import ByteTokenizer
from bornbiased_jax.training.checkpoint import INTERRUPTED, _read_interrupted
from bornbiased_jax.training.config import PretrainConfig
from bornbiased_jax.training.data.shards import INDEX, prepare
from bornbiased_jax.training.metrics import read_metrics
from bornbiased_jax.training.plot import plot_run
from bornbiased_jax.training.runs import list_runs
from tests.checkpoints.test_gguf_file import write as write_gguf
from tests.fixtures.four_bits import pack_words, quantized_nf4
from tests.fixtures.sentence_pieces import sentence_piece_model
from tests.text import test_gguf_vocabulary as gguf_vocabulary

HF = Path(__file__).resolve().parent.parent / "fixtures" / "hf"
WEIGHTS, PICKLE, SKETCHES = "model.safetensors", "pytorch_model.bin", "weights.fingerprint"
LINES = [f"the quick brown fox {i} jumps over the lazy dogs" for i in range(60)]
SMALL = preset("llama-tiny", num_layers=1, num_heads=4, d_model=32, d_ff=64, vocab_size=300, max_seq_len=16)
TINY = "num_layers=1,num_heads=2,d_model=8,d_ff=8,vocab_size=32"
TOY, CHUNKS, MAKER = "tests.toy_task:compute", [Chunk(7, 0, 3)], "bornbiased export"


class Kind(NamedTuple):
    """One kind of file.

    Attributes:
        file: the one that is corrupted, or a pattern of its name.
        make: writes a good one, with what belongs to it, into an empty folder.
        read: reads it, given the folder and that file.
    """

    file: str
    make: Callable[[Path], Any]
    read: Callable[[Path, Path], Any]


def written(contents: dict[str, bytes | str]) -> Callable[[Path], None]:
    """Files with these contents."""

    def make(folder: Path) -> None:
        for name, content in contents.items():
            (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return make


def copied(source: str) -> Callable[[Path], Any]:
    """A model of the fixtures."""
    return lambda folder: shutil.copytree(
        HF / source, folder, ignore=shutil.ignore_patterns("*.npz"), dirs_exist_ok=True
    )


# Tokenizers and texts


def encode(folder: Path, path: Path) -> Any:
    tokenizer = load_tokenizer(path)
    return tokenizer.decode(tokenizer.encode("the quick brown fox")), tokenizer.eos_id, tokenizer.bos_id


def encode_by_ranks(folder: Path, path: Path) -> Any:
    """As if a model were known by so few ranks."""
    special = {bpe.END_OF_TEXT: len(RANKS)}
    scheme = bpe.ByteLevel(patterns=[bpe.CL100K_PATTERN], special=special, eos_token=bpe.END_OF_TEXT)
    with mock.patch.dict(bpe.TIKTOKEN_SCHEMES, {len(RANKS): scheme}):
        return encode(folder, path)


PIECES = {piece: i for i, piece in enumerate([*BYTE_CHARACTERS.values(), "th", "the"])}
PAIR = written({"encoder.json": json.dumps(PIECES), "vocab.bpe": "#version: 0.2\nt h\nth e\n"})
RANKS = [bytes([byte]) for byte in range(256)] + [b"th", b"the", b" q", b"qu", b"ck", b"own"]
RANK_LINES = b"".join(base64.b64encode(piece) + f" {rank}\n".encode() for rank, piece in enumerate(RANKS))
ROWS = "".join(json.dumps({"text": line, "n": 1}) + "\n" for line in LINES[:9])
ARTICLES = "".join(f"\n = Title {i} = \n\n {line} \n" for i, line in enumerate(LINES[:9]))


def trained(folder: Path) -> None:
    train_bpe(LINES, 280).save(folder)


def vocabulary(folder: Path) -> None:
    gguf_vocabulary.write(folder / "model.gguf", **gguf_vocabulary.parts(train_bpe(LINES, 280)))


def scored_vocabulary(folder: Path) -> None:
    gguf_vocabulary.write(folder / "model.gguf", **gguf_vocabulary.scored_parts())


def parquet(folder: Path) -> None:
    import pyarrow
    from pyarrow.parquet import write_table

    write_table(pyarrow.table({"text": LINES}), folder / "a.parquet")


def documents(folder: Path, path: Path) -> Any:
    return list(read_documents(path))


def tokens(folder: Path) -> list[list[int]]:
    """A text's tokens: found, or made anew."""
    (folder / "a.txt").write_text("\n".join(LINES))
    data = prepare(str(folder / "a.txt"), ByteTokenizer(), folder=folder / "tokens", processes=1, quiet=True)
    return [split.read(0, len(split)).tolist() for split in (data.train, data.validation)]


@functools.cache
def sound_tokens() -> list[list[int]]:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        return tokens(Path(folder))


def read_tokens(folder: Path, path: Path) -> None:
    """They are the text's in any case."""
    assert tokens(folder) == sound_tokens()


# Weights


def digest(folder: Path, path: Path) -> Any:
    return open_checkpoint(path if path.suffix == ".gguf" else folder).digest()


def by_names(folder: Path, path: Path) -> Any:
    """Read every tensor of a folder by its role."""
    source = read_by_names(folder, roles_file=path if path.name == "roles.json" else None)
    source.token_labels()
    shapes = [source.shape(component) for component in {role.component for role in source.roles}]
    return shapes, [float(np.sum(source.read(role))) for role in source.roles]


def llama(folder: Path) -> dict[str, np.ndarray]:
    """Write a model of one block, and return its tensors."""
    # Few tokens: damage is to meet the header, and what stands by the matrices.
    cfg = SMALL.replace(vocab_size=48)
    export_hugging_face(cfg, init_seed(cfg, 1), folder)
    return load_file(folder / WEIGHTS)


def gguf(folder: Path) -> None:
    write_gguf(folder / "model.gguf", SMALL, init_seed(SMALL, 3), folder / "exported", kind="Q8_0")


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


def pickle_of_weights(folder: Path) -> None:
    """A ``pytorch_model.bin``, and its pickle in a file of its own."""
    data, storages = torch_file(llama(folder))
    (folder / WEIGHTS).unlink()
    (folder / "data.pkl").write_bytes(data)
    with zipfile.ZipFile(folder / PICKLE, "w") as archive:
        archive.writestr("archive/data.pkl", data)
        for key, content in storages.items():
            archive.writestr(f"archive/data/{key}", content)


def read_pickle(folder: Path, path: Path) -> Any:
    """Read a mutated pickle with the storages of the sound one."""
    with zipfile.ZipFile(folder / PICKLE) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(folder / PICKLE, "w") as archive:
        for name, content in (contents | {"archive/data.pkl": path.read_bytes()}).items():
            archive.writestr(name, content)
    return by_names(folder, path)


def quantized(folder: Path) -> None:
    """A model with a scheme for every matrix of its blocks, each with numbers of its own form; and a state."""
    rng = np.random.default_rng(0)
    tensors: dict[str, np.ndarray] = {}
    for name, array in llama(folder).items():
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
            tensors[f"{base}.weight_scale"] = scales.T
            tensors[f"{base}.weight_shape"] = np.array([out, into], np.int64)
        elif last == "up_proj":
            tensors[name] = rng.integers(-127, 128, array.shape).astype(np.int8)
            tensors[f"{base}.SCB"] = scales[0]
        else:
            tensors[name] = array
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, folder / WEIGHTS)
    state = next(name for name in tensors if "quant_state" in name)
    (folder / "state.json").write_bytes(tensors[state].tobytes())


GPTQ = {"bits": 4, "group_size": 8, "desc_act": True}


def quantized_with(name: str, settings: dict[str, Any]) -> Callable[[Path], None]:
    """Quantized weights whose settings stand in ``config.json``, or in a file of their own as AutoGPTQ writes it."""

    def make(folder: Path) -> None:
        quantized(folder)
        path = folder / name
        path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | settings))

    return make


def read_state(folder: Path, path: Path) -> Any:
    """Read quantized weights of which every state is the mutated one."""
    text, tensors = np.frombuffer(path.read_bytes(), np.uint8), load_file(folder / WEIGHTS)
    save_file({name: text if "quant_state" in name else array for name, array in tensors.items()}, folder / WEIGHTS)
    return by_names(folder, path)


def roles(folder: Path) -> None:
    """A file of roles, and tensors that only it describes."""
    arrays = {"net.3.alpha": np.ones((12, 8), np.float32), "table": np.ones((5, 8), np.float32)}
    save_file(arrays, folder / WEIGHTS)
    rows = [{"name": "net.{block}.alpha", "group": "up", "axes": "residual hidden"}]
    rows.append({"name": "table", "group": "embedding"})
    (folder / "roles.json").write_text(json.dumps({"tensors": rows}))


def adapter(folder: Path) -> None:
    """An adapter and its base."""
    out, into = llama(folder / "base")["model.layers.0.self_attn.q_proj.weight"].shape
    module, rng = "base_model.model.model.layers.0.self_attn.q_proj", np.random.default_rng(0)
    tensors = {"A.weight": rng.normal(size=(2, into)), "B.weight": np.ones((out, 2)), "magnitude_vector": np.ones(out)}
    save_file(
        {f"{module}.lora_{name}": array.astype(np.float32) for name, array in tensors.items()},
        folder / "adapter_model.safetensors",
    )
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "use_dora": True, "rank_pattern": {"q_proj": 2}}
    (folder / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": "base"}))


# Runs, fingerprints and listings


def run(folder: Path) -> None:
    """The record of a run, and lines of its metrics."""
    config = PretrainConfig(model=preset("gpt2-tiny"), data="builtin:prose", out=str(folder), seeds=(42, 7))
    record = {"config": config.to_dict(), "steps": 9, "tokens_digest": "a", "initial_digest": None, "provenance": {}}
    (folder / "run.json").write_text(json.dumps(record))
    line = {"step": 1, "seeds": [42, 7], "loss": [2.5, 2.25], "grad_norm": [1.0, 1.0], "lr": 1e-3, "tokens": 64}
    lines = [line | {"step": step, "tokens_per_second": 10.0} for step in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in lines))


def outputs(folder: Path) -> None:
    """A fingerprint of outputs, and its facts in a file of their own."""
    inputs = from_tokens(np.arange(12).reshape(4, 3), 32)
    stored = prints.fingerprint_outputs(open_checkpoint(f"seed:1@gpt2-tiny,{TINY}"), inputs)
    with safe_open(prints.save_outputs(folder / "a.fingerprint", stored), framework="numpy") as opened:
        (folder / "facts.json").write_text(opened.metadata()["facts"])


def read_facts(folder: Path, path: Path) -> None:
    """Read facts under a digest that is right."""
    outputs_ND, facts = load_file(folder / "a.fingerprint")["outputs"], path.read_bytes().decode(errors="replace")
    metadata = {"format": prints.FORMAT, "facts": facts, "digest": prints._digest(outputs_ND, facts)}
    save_file({"outputs": outputs_ND}, folder / "b.fingerprint", metadata)
    stored = prints.load_outputs(folder / "b.fingerprint")
    prints.check_comparable(stored, stored)


def sketches(folder: Path) -> None:
    """A fingerprint of weights, its header and the shapes of its arrays."""
    made = fingerprint(f"seed:1@qwen3moe-tiny,{TINY},num_experts=2")
    with safe_open(fingerprint_file.save_fingerprint(folder / SKETCHES, made), framework="numpy") as opened:
        (folder / "header.json").write_text(opened.metadata()["payload"])
    arrays = load_file(folder / SKETCHES)
    (folder / "shapes.json").write_text(json.dumps({key: array.shape for key, array in arrays.items()}))


def read_sketches(folder: Path, path: Path) -> None:
    """Read a fingerprint, under a digest that fits where it is not the file itself that is damaged."""
    if path.name != SKETCHES:
        with safe_open(folder / SKETCHES, framework="numpy") as opened:
            metadata = opened.metadata()
        header, sound = (folder / "header.json").read_bytes().decode(errors="replace"), load_file(folder / SKETCHES)
        arrays = {}
        for key, shape in dict(parse_json((folder / "shapes.json").read_bytes(), "shapes.json")).items():
            arrays[key] = array = sound.get(key, sound["tensors/statistics"])
            if isinstance(shape, list) and all(type(size) is int for size in shape) and np.prod(shape) == array.size:
                arrays[key] = array.reshape(shape)
        ordered = dict(sorted(arrays.items(), key=lambda item: (-item[1].itemsize, item[0])))
        signed = {"payload": header, "payload_digest": fingerprint_file._digest(header, ordered)}
        save_file(arrays, folder / SKETCHES, metadata | signed)
    content = fingerprint_file.encode(fingerprint_file.load_fingerprint(folder / SKETCHES))
    # What is read can be written, and holds what the file held.
    (folder / "again").write_bytes(content)
    assert fingerprint_file.encode(fingerprint_file.load_fingerprint(folder / "again")) == content


ENTRIES = [{"type": "file", "path": WEIGHTS, "oid": "a" * 40, "lfs": {"oid": "b" * 64}}]
LISTING = {"revisions": {f"seed1-step{step}": ENTRIES for step in (10, 20, 40)}}


# What the project keeps for itself


def results(folder: Path, *unused: Path) -> Any:
    return list(fulfill(Request(TOY, {"factor": 2}, CHUNKS), folder))


def noted(folder: Path) -> None:
    """A task with one chunk done and one failed."""
    results(folder)
    Store(folder).task(task_of(TOY, {"factor": 2})).fail([Chunk(8, 0, 3)], OSError("no room"))


def read_status(folder: Path, path: Path) -> Any:
    return status(folder)


def marker(folder: Path) -> None:
    Folder(folder / "made", MAKER, overwrite=False).write_text("config.json", "{}")


def read_marker(folder: Path, path: Path) -> Any:
    """Read the marker as the command does before it writes there again, and add a line."""
    result = Folder(folder / "made", MAKER, overwrite=True)
    result.check("config.json")
    result.note(WEIGHTS, "0" * 64)
    return result.owns("config.json"), result.knows("config.json")


def streamed(folder: Path) -> None:
    """A pass block by block with one block whole."""
    page = scratch.Page(folder / "page", [(1, 2, 3)])
    page.path.mkdir()
    page.resume()
    stream_BTD = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    page.commit(0, [page.write_stream(0, 0, stream_BTD)], [])
    page.commit(1, [page.write_stream(1, 0, 2 * stream_BTD)], [[stream_BTD]])


def read_streamed(folder: Path, path: Path) -> Any:
    """Read the progress of the pass and the states of its complete blocks."""
    page = scratch.Page(folder / "page", [(1, 2, 3)])
    return [page.block(block, 0) for block in range(page.resume())]


def value(folder: Path, *unused: Path) -> None:
    """A value that an experiment keeps: found, or computed again."""
    assert cached(folder / "births/tiny", {"seed": 1}, _compute) == {"found": 0.5}


def _compute(folder: Path) -> dict[str, float]:
    return {"found": 0.5}


KINDS: dict[str, Kind] = {
    "config.json of qwen2": Kind("config.json", copied("qwen2-window"), digest),
    "config.json with scaled RoPE": Kind("config.json", copied("llama-scaled-3"), digest),
    "model.safetensors": Kind(WEIGHTS, copied("llama"), digest),
    "index of shards": Kind(f"{WEIGHTS}.index.json", copied("llama-sharded-bfloat16"), digest),
    "gguf": Kind("model.gguf", gguf, digest),
    "vocabulary of gguf": Kind("model.gguf", vocabulary, encode),
    "scored vocabulary of gguf": Kind("model.gguf", scored_vocabulary, encode),
    "tokenizer.json": Kind("tokenizer.json", trained, encode),
    "tokenizer_config.json": Kind(
        "tokenizer_config.json", trained, lambda folder, path: encode(folder, folder / "tokenizer.json")
    ),
    "encoder.json": Kind("encoder.json", PAIR, encode),
    "vocab.bpe": Kind("vocab.bpe", PAIR, encode),
    "tiktoken": Kind("r.tiktoken", written({"r.tiktoken": RANK_LINES}), encode_by_ranks),
    "SentencePiece": Kind(
        "tokenizer.model",
        lambda folder: (folder / "tokenizer.model").write_bytes(sentence_piece_model(LINES, 300)),
        encode,
    ),
    "run.json": Kind("run.json", run, lambda folder, path: (read_run(folder), list_runs(folder))),
    "metrics.jsonl": Kind(
        "metrics.jsonl", run, lambda folder, path: (read_metrics(folder), plot_run(folder, folder / "a.svg"))
    ),
    "fingerprint": Kind("a.fingerprint", outputs, lambda folder, path: prints.load_outputs(path)),
    "facts of a fingerprint": Kind("facts.json", outputs, read_facts),
    "fingerprint of weights": Kind(SKETCHES, sketches, read_sketches),
    "header of a fingerprint of weights": Kind("header.json", sketches, read_sketches),
    "arrays of a fingerprint of weights": Kind("shapes.json", sketches, read_sketches),
    "chunk of a store": Kind("*.npz", results, results),
    "task of a store": Kind("task*.json", noted, read_status),
    "chunks asked of a store": Kind("asked-*.json", noted, read_status),
    "failure in a store": Kind("failed-*.json", noted, read_status),
    "listing of an audit": Kind(
        "a.json", written({"a.json": json.dumps(LISTING)}), lambda folder, path: audit_listing(path)
    ),
    "adapter_config.json": Kind("adapter_config.json", adapter, by_names),
    "adapter_model.safetensors": Kind("adapter_model.safetensors", adapter, by_names),
    "JSON lines": Kind("a.jsonl", written({"a.jsonl": ROWS}), documents),
    "gzip": Kind("a.txt.gz", written({"a.txt.gz": gzip.compress(ARTICLES.encode())}), documents),
    "WikiText": Kind("a.txt", written({"a.txt": ARTICLES}), documents),
    "Parquet": Kind("a.parquet", parquet, documents),
    "marker of a folder": Kind(MARKER, marker, read_marker),
    "list of a pass block by block": Kind(scratch.LIST, streamed, read_streamed),
    "block of a pass block by block": Kind("block-0000.npz", streamed, read_streamed),
    "stream of a pass block by block": Kind("stream-1.f32", streamed, read_streamed),
    "index of tokens": Kind(INDEX, tokens, read_tokens),
    "tokens": Kind("train-*.bin", tokens, read_tokens),
    "value of an experiment": Kind("value.json", value, value),
    "record of an experiment": Kind(
        "table3.json",
        written({"table3.json": json.dumps({"name": "table3", "scale": "smoke", "status": "complete"})}),
        lambda folder, path: is_complete(path, load("table3"), "smoke", None),
    ),
    "interrupted steps of a run": Kind(
        INTERRUPTED, written({INTERRUPTED: "[10, 20]"}), lambda folder, path: _read_interrupted(folder)
    ),
    "pytorch_model.bin": Kind(PICKLE, pickle_of_weights, by_names),
    "pickle of pytorch_model.bin": Kind("data.pkl", pickle_of_weights, read_pickle),
    "quantized weights": Kind(WEIGHTS, quantized, by_names),
    "state of quantized weights": Kind("state.json", quantized, read_state),
    "config.json of quantized weights": Kind(
        "config.json",
        quantized_with(
            "config.json", {"quantization_config": GPTQ | {"quant_method": "gptq", "weight_block_size": [8, 8]}}
        ),
        by_names,
    ),
    "quantize_config.json": Kind(
        "quantize_config.json",
        quantized_with("quantize_config.json", GPTQ | {"sym": False, "model_file_base_name": "model"}),
        by_names,
    ),
    "file of roles": Kind("roles.json", roles, by_names),
}
