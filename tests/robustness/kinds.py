"""Every kind of file that is read: how a small good one is made, which file of it is corrupted, and who reads it."""

import base64
import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.checkpoints.adapters import read_adapter
from bornbiased_jax.checkpoints.formats.run import read_run
from bornbiased_jax.chunk_store import Chunk, Store, TaskStore, task_of
from bornbiased_jax.config import preset
from bornbiased_jax.lineage import output_fingerprint as prints
from bornbiased_jax.lineage.audit.listing import audit_listing
from bornbiased_jax.probes.inputs import from_tokens
from bornbiased_jax.store import Request, fulfill, status
from bornbiased_jax.text import bpe, load_tokenizer, read_documents
from bornbiased_jax.text.bpe import BYTE_CHARACTERS, train_bpe
from bornbiased_jax.training.config import PretrainConfig
from bornbiased_jax.training.metrics import read_metrics
from bornbiased_jax.training.runs import list_runs
from tests.checkpoints.test_gguf_file import write as write_gguf
from tests.fixtures.sentence_pieces import sentence_piece_model
from tests.robustness import own_kinds, weight_kinds
from tests.text import test_gguf_vocabulary as gguf_vocabulary

HF = Path(__file__).resolve().parent.parent / "fixtures" / "hf"
LINES = [f"the quick brown fox {i} jumps over the lazy dogs" for i in range(60)]
SMALL = dict(num_layers=1, num_heads=2, d_model=32, d_ff=32, vocab_size=300, max_seq_len=16)


class Kind(NamedTuple):
    """One kind of file.

    Attributes:
        make: writes a good one, with what belongs to it, into an empty folder; the name of the file to damage.
        read: reads it, given the folder and that file.
    """

    make: Callable[[Path], str]
    read: Callable[[Path, Path], Any]


def _copied(source: str, name: str) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        for path in (HF / source).iterdir():
            if path.suffix != ".npz":
                shutil.copy(path, folder)
        return name

    return make


def _open(folder: Path, path: Path) -> Any:
    return open_checkpoint(folder).digest()


def _open_file(folder: Path, path: Path) -> Any:
    return open_checkpoint(path).digest()


def _encode(folder: Path, path: Path) -> Any:
    tokenizer = load_tokenizer(path)
    return tokenizer.decode(tokenizer.encode("the quick brown fox")), tokenizer.eos_id, tokenizer.bos_id


def _gguf(folder: Path) -> str:
    cfg = preset("llama-tiny", **SMALL)
    from bornbiased_jax.init import init_seed

    write_gguf(folder / "model.gguf", cfg, init_seed(cfg, 3), folder / "exported", kind="Q8_0")
    return "model.gguf"


def _trained(folder: Path) -> str:
    train_bpe(LINES, 280).save(folder)
    return "tokenizer.json"


def _pair(name: str) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        pieces = [*BYTE_CHARACTERS.values(), "th", "the"]
        (folder / "encoder.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
        (folder / "vocab.bpe").write_text("#version: 0.2\nt h\nth e\n")
        return name

    return make


RANKS = [bytes([byte]) for byte in range(256)] + [b"th", b"the", b" q", b"qu", b"ck", b"own"]


def _ranks(folder: Path) -> str:
    lines = (base64.b64encode(piece) + f" {rank}\n".encode() for rank, piece in enumerate(RANKS))
    (folder / "r.tiktoken").write_bytes(b"".join(lines))
    return "r.tiktoken"


def _encode_ranks(folder: Path, path: Path) -> Any:
    """As if a model were known by so few ranks."""
    special = {bpe.END_OF_TEXT: len(RANKS)}
    scheme = bpe.ByteLevel(patterns=[bpe.CL100K_PATTERN], special=special, eos_token=bpe.END_OF_TEXT)
    with mock.patch.dict(bpe.TIKTOKEN_SCHEMES, {len(RANKS): scheme}):
        return _encode(folder, path)


def _vocabulary(folder: Path) -> str:
    gguf_vocabulary.write(folder / "model.gguf", **gguf_vocabulary.parts(train_bpe(LINES, 280)))
    return "model.gguf"


def _scored_vocabulary(folder: Path) -> str:
    gguf_vocabulary.write(folder / "model.gguf", **gguf_vocabulary.scored_parts())
    return "model.gguf"


def _sentence_piece(folder: Path) -> str:
    (folder / "tokenizer.model").write_bytes(sentence_piece_model(LINES, 300))
    return "tokenizer.model"


def _run(name: str) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        config = PretrainConfig(model=preset("gpt2-tiny"), data="builtin:prose", out=str(folder), seeds=(42, 7))
        run = {"config": config.to_dict(), "steps": 9, "tokens_digest": "a", "initial_digest": None, "provenance": {}}
        (folder / "run.json").write_text(json.dumps(run))
        line = {"step": 1, "seeds": [42, 7], "loss": [2.5, 2.25], "grad_norm": [1.0, 1.0], "lr": 1e-3, "tokens": 64}
        lines = [line | {"step": step, "tokens_per_second": 10.0} for step in (1, 2, 3)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in lines))
        return name

    return make


def _metrics(folder: Path, path: Path) -> Any:
    from bornbiased_jax.training.plot import plot_run

    return read_metrics(folder), plot_run(folder, folder / "a.svg")


def _runs(folder: Path, path: Path) -> Any:
    return read_run(folder), list_runs(folder)


def _print_of(folder: Path) -> prints.OutputFingerprint:
    opened = open_checkpoint("seed:1@gpt2-tiny,num_layers=1,num_heads=1,d_model=8,d_ff=8,vocab_size=32")
    return prints.fingerprint_outputs(opened, from_tokens(np.arange(12).reshape(4, 3), 32))


def _fingerprint(folder: Path) -> str:
    prints.save_outputs(folder / "a.fingerprint", _print_of(folder))
    return "a.fingerprint"


def _facts(folder: Path) -> str:
    """Write a fingerprint's facts under a digest that is right."""
    from safetensors import safe_open

    _fingerprint(folder)
    with safe_open(folder / "a.fingerprint", framework="numpy") as opened:
        (folder / "facts.json").write_text(opened.metadata()["facts"])
    return "facts.json"


def _signed(folder: Path, path: Path) -> Any:
    from safetensors.numpy import load_file, save_file

    outputs = load_file(folder / "a.fingerprint")["outputs"]
    facts = path.read_bytes().decode(errors="replace")
    metadata = {"format": prints.FORMAT, "facts": facts, "digest": prints._digest(outputs, facts)}
    save_file({"outputs": outputs}, folder / "b.fingerprint", metadata)
    stored = prints.load_outputs(folder / "b.fingerprint")
    prints.check_comparable(stored, stored)
    return stored


def _chunk(folder: Path) -> str:
    _results(folder, folder)
    return f"{_task(folder).path.name}/{CHUNK.name}"


def _task(folder: Path) -> TaskStore:
    return Store(folder).task(task_of(TOY, {"factor": 2}))


def _results(folder: Path, path: Path) -> Any:
    return list(fulfill(Request(TOY, {"factor": 2}, [CHUNK]), folder))


def _noted(name: str) -> Callable[[Path], str]:
    """A task with one chunk done and one failed; the file of this beginning."""

    def make(folder: Path) -> str:
        _results(folder, folder)
        _task(folder).fail([Chunk(8, 0, 3)], OSError("no room"))
        return next(path.relative_to(folder).as_posix() for path in sorted(folder.rglob(f"{name}*.json")))

    return make


CHUNK = Chunk(7, 0, 3)
TOY = "tests.toy_task:compute"


def _text(name: str, text: str) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        data = text.encode()
        (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return name

    return make


def _documents(folder: Path, path: Path) -> Any:
    return list(read_documents(path))


def _parquet(folder: Path) -> str:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"text": LINES}), folder / "a.parquet")
    return "a.parquet"


def _listing(folder: Path) -> str:
    entries = [{"type": "file", "path": "model.safetensors", "oid": "a" * 40, "lfs": {"oid": "b" * 64}}]
    (folder / "a.json").write_text(json.dumps({"revisions": {f"seed1-step{step}": entries for step in (10, 20, 40)}}))
    return "a.json"


def _read_adapter(folder: Path, path: Path) -> Any:
    return read_adapter(folder)


ROWS = "".join(json.dumps({"text": line, "n": 1}) + "\n" for line in LINES[:9])
ARTICLES = "".join(f"\n = Title {i} = \n\n {line} \n" for i, line in enumerate(LINES[:9]))

KINDS: dict[str, Kind] = {
    "config.json": Kind(_copied("llama", "config.json"), _open),
    "config.json of qwen2": Kind(_copied("qwen2-window", "config.json"), _open),
    "config.json with scaled RoPE": Kind(_copied("llama-scaled-3", "config.json"), _open),
    "model.safetensors": Kind(_copied("llama", "model.safetensors"), _open),
    "index of shards": Kind(_copied("llama-sharded-bfloat16", "model.safetensors.index.json"), _open),
    "gguf": Kind(_gguf, _open_file),
    "vocabulary of gguf": Kind(_vocabulary, _encode),
    "scored vocabulary of gguf": Kind(_scored_vocabulary, _encode),
    "tokenizer.json": Kind(_trained, _encode),
    "tokenizer_config.json": Kind(lambda folder: _trained(folder) and "tokenizer_config.json", lambda folder, path: (
        _encode(folder, folder / "tokenizer.json")
    )),
    "encoder.json": Kind(_pair("encoder.json"), _encode),
    "vocab.bpe": Kind(_pair("vocab.bpe"), _encode),
    "tiktoken": Kind(_ranks, _encode_ranks),
    "SentencePiece": Kind(_sentence_piece, _encode),
    "run.json": Kind(_run("run.json"), _runs),
    "metrics.jsonl": Kind(_run("metrics.jsonl"), _metrics),
    "fingerprint": Kind(_fingerprint, lambda folder, path: prints.load_outputs(path)),
    "facts of a fingerprint": Kind(_facts, _signed),
    "chunk of a store": Kind(_chunk, _results),
    "task of a store": Kind(_noted("task"), lambda folder, path: status(folder)),
    "chunks asked of a store": Kind(_noted("asked-"), lambda folder, path: status(folder)),
    "failure in a store": Kind(_noted("failed-"), lambda folder, path: status(folder)),
    "listing of an audit": Kind(_listing, lambda folder, path: audit_listing(path)),
    "adapter_config.json": Kind(weight_kinds.adapter("adapter_config.json"), _read_adapter),
    "adapter_model.safetensors": Kind(weight_kinds.adapter("adapter_model.safetensors"), _read_adapter),
    "JSON lines": Kind(_text("a.jsonl", ROWS), _documents),
    "gzip": Kind(_text("a.txt.gz", ARTICLES), _documents),
    "WikiText": Kind(_text("a.txt", ARTICLES), _documents),
    "Parquet": Kind(_parquet, _documents),
    **{name: Kind(*made) for name, made in (own_kinds.KINDS | weight_kinds.KINDS).items()},
}  # fmt: skip
