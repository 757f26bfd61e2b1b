"""What the project keeps for itself next to a user's files: markers, passes block by block, tokens, values, records."""

import functools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from bornbiased_jax.experiments.base import cached
from bornbiased_jax.experiments.runner import is_complete, load
from bornbiased_jax.io import MARKER, Folder
from bornbiased_jax.lineage import fingerprint_file
from bornbiased_jax.lineage.fingerprint_pass import fingerprint
from bornbiased_jax.model import scratch
from bornbiased_jax.schema import parse_json
from bornbiased_jax.text.byte_level import ByteTokenizer
from bornbiased_jax.training.checkpoint import INTERRUPTED, _read_interrupted
from bornbiased_jax.training.data.shards import INDEX, prepare

TEXT = "\n".join(f"the quick brown fox {i} jumps over the lazy dogs" for i in range(60))
MAKER = "bornbiased export"


def marker(folder: Path) -> str:
    """A folder that a command filled."""
    Folder(folder / "made", MAKER, overwrite=False).write_text("config.json", "{}")
    return f"made/{MARKER}"


def read_marker(folder: Path, path: Path) -> Any:
    """Read the marker as the command does before it writes there again, and add a line."""
    result = Folder(folder / "made", MAKER, overwrite=True)
    result.check("config.json")
    result.note("model.safetensors", "0" * 64)
    return result.owns("config.json"), result.knows("config.json")


def _page(folder: Path) -> scratch.Page:
    return scratch.Page(folder / "page", [(1, 2, 3)])


def streamed(name: str) -> Callable[[Path], str]:
    """A pass with one block whole; the file of this name."""

    def make(folder: Path) -> str:
        (folder / "page").mkdir()
        page = _page(folder)
        page.resume()
        stream_BTD = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
        page.commit(0, [page.write_stream(0, 0, stream_BTD)], [])
        page.commit(1, [page.write_stream(1, 0, 2 * stream_BTD)], [[stream_BTD]])
        return f"page/{name}"

    return make


def read_streamed(folder: Path, path: Path) -> Any:
    """Read the progress of the pass and the states of its complete blocks."""
    page = _page(folder)
    blocks = page.resume()
    return blocks, [page.block(block, 0) for block in range(blocks)]


def _ids(folder: Path) -> list[list[int]]:
    (folder / "a.txt").write_text(TEXT)
    data = prepare(str(folder / "a.txt"), ByteTokenizer(), folder=folder / "tokens", processes=1, quiet=True)
    return [split.read(0, len(split)).tolist() for split in (data.train, data.validation)]


@functools.cache
def _sound() -> list[list[int]]:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        return _ids(Path(folder))


def tokens(name: str) -> Callable[[Path], str]:
    """A text's tokens; the file of this name."""

    def make(folder: Path) -> str:
        _ids(folder)
        return next(path.relative_to(folder).as_posix() for path in sorted(folder.rglob(name)))

    return make


def read_tokens(folder: Path, path: Path) -> Any:
    """The tokens: found, or made anew. They are the text's in any case."""
    assert _ids(folder) == _sound()


def value(folder: Path) -> str:
    """A value that an experiment keeps."""
    cached(folder / "births/tiny", {"seed": 1}, _compute)
    return next(path.relative_to(folder).as_posix() for path in folder.rglob("value.json"))


def _compute(folder: Path) -> dict[str, float]:
    return {"found": 0.5}


def read_value(folder: Path, path: Path) -> Any:
    """The value: found, or computed again."""
    value = cached(folder / "births/tiny", {"seed": 1}, _compute)
    assert value == {"found": 0.5}, value
    return value


def record(folder: Path) -> str:
    """A record of an experiment."""
    (folder / "table3.json").write_text(json.dumps({"name": "table3", "scale": "smoke", "status": "complete"}))
    return "table3.json"


def read_record(folder: Path, path: Path) -> Any:
    """Return whether it stands for a run that need not be made again."""
    return is_complete(path, load("table3"), "smoke", None)


SKETCHES = "weights.fingerprint"
SMALL = "seed:1@qwen3moe-tiny,num_layers=1,d_model=16,d_ff=8,num_heads=2,vocab_size=32,num_experts=2"


def sketches(name: str) -> Callable[[Path], str]:
    """A fingerprint of weights, its header and the shapes of its arrays; the file of this name."""

    def make(folder: Path) -> str:
        path = fingerprint_file.save_fingerprint(folder / SKETCHES, fingerprint(SMALL))
        with safe_open(path, framework="numpy") as opened:
            (folder / "header.json").write_text(opened.metadata()["payload"])
        (folder / "shapes.json").write_text(json.dumps({key: x.shape for key, x in load_file(path).items()}))
        return name

    return make


def read_sketches(folder: Path, path: Path) -> Any:
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


def interrupted(folder: Path) -> str:
    """The steps at which a signal ended a run."""
    (folder / INTERRUPTED).write_text("[10, 20]")
    return INTERRUPTED


def read_interrupted(folder: Path, path: Path) -> Any:
    """Those steps, or none."""
    return _read_interrupted(folder)


KINDS = {
    "marker of a folder": (marker, read_marker),
    "list of a pass block by block": (streamed(scratch.LIST), read_streamed),
    "block of a pass block by block": (streamed("block-0000.npz"), read_streamed),
    "stream of a pass block by block": (streamed("stream-1.f32"), read_streamed),
    "index of tokens": (tokens(INDEX), read_tokens),
    "tokens": (tokens("train-*.bin"), read_tokens),
    "value of an experiment": (value, read_value),
    "record of an experiment": (record, read_record),
    "interrupted steps of a run": (interrupted, read_interrupted),
    "fingerprint of weights": (sketches(SKETCHES), read_sketches),
    "header of a fingerprint of weights": (sketches("header.json"), read_sketches),
    "arrays of a fingerprint of weights": (sketches("shapes.json"), read_sketches),
}
"""Name of a kind -> how a good file is made, and who reads it (:class:`tests.robustness.kinds.Kind`)."""
