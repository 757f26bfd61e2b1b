"""To fetch a file again is advised where it ends too soon, and nowhere else."""

import ast
import gzip
import re
import shutil
import traceback
from pathlib import Path

import pytest

import bornbiased_jax
from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.checkpoints.formats import safetensors, torch_distributed, torch_file
from bornbiased_jax.errors import InputError
from bornbiased_jax.text.documents import read_documents

PACKAGE = Path(bornbiased_jax.__file__).parent
FIXTURES = Path(__file__).resolve().parent / "fixtures"
LLAMA = FIXTURES / "hf" / "llama"


def _cut(path: Path, keep: int) -> None:
    path.write_bytes(path.read_bytes()[:keep])


def _copy(folder: Path) -> Path:
    return Path(shutil.copy(LLAMA / "model.safetensors", folder / "model.safetensors"))


def _numbers_of_safetensors(folder: Path) -> None:
    path = _copy(folder)
    _cut(path, -1)
    safetensors.locate(path)


def _safetensors_while_it_is_read(folder: Path) -> None:
    path = _copy(folder)
    tensors = safetensors.locate(path)
    _cut(path, -1)
    for tensor in tensors.values():
        tensor.read()


def _torch(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"a": torch.ones(300)}, folder / "pytorch_model.bin")
    _cut(folder / "pytorch_model.bin", -40)
    torch_file.locate(folder / "pytorch_model.bin")


def _shard_of_torch(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    checkpoint = pytest.importorskip("torch.distributed.checkpoint", exc_type=ImportError)
    with pytest.warns(UserWarning, match="single process"):
        checkpoint.save({"model": {"a": torch.ones(300, 4)}}, checkpoint_id=folder, no_dist=True)
    _cut(next(folder.glob("*.distcp")), 900)
    torch_distributed.locate(folder / torch_distributed.METADATA)


def _gguf(folder: Path) -> None:
    path = folder / "model.gguf"
    path.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + (9).to_bytes(8, "little") + (9).to_bytes(8, "little"))
    open_checkpoint(path)


def _gzip(folder: Path) -> None:
    (folder / "a.txt.gz").write_bytes(gzip.compress(b"some text" * 100)[:-12])
    list(read_documents(folder / "a.txt.gz"))


# By the function that finds the end, module first.
CUT = {
    "checkpoints.formats.safetensors.read": _safetensors_while_it_is_read,
    "checkpoints.formats.safetensors.locate": _numbers_of_safetensors,
    "checkpoints.formats.torch_file._unreadable": _torch,
    "checkpoints.formats.torch_distributed._check_shard": _shard_of_torch,
    "text.gguf_vocabulary.unreadable": _gguf,
    "text.documents._reading": _gzip,
}


def _callers() -> set[str]:
    """Return every function of the package that itself calls :func:`bornbiased_jax.errors.cut_short`."""
    callers = set()
    for path in PACKAGE.rglob("*.py"):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                nested = {
                    id(node)
                    for inner in ast.walk(function)
                    if isinstance(inner, ast.FunctionDef) and inner is not function
                    for node in ast.walk(inner)
                }
                nodes = [node for node in ast.walk(function) if id(node) not in nested]
                calls = [node.func for node in nodes if isinstance(node, ast.Call)]
                if any(isinstance(call, ast.Name) and call.id == "cut_short" for call in calls):
                    callers.add(f"{module}.{function.name}")
    return callers


@pytest.mark.slow
def test_every_refusal_of_a_cut_file_is_driven_here():
    assert _callers() == CUT.keys()


@pytest.mark.parametrize("place", CUT)
def test_a_file_that_is_cut_short_is_to_be_fetched_again(tmp_path, monkeypatch, place):
    raised = []

    def note(what: str) -> InputError:
        raised.append(traceback.extract_stack()[-2])
        return InputError(f"{what} is cut short: fetch it again")

    module, _, function = place.rpartition(".")
    monkeypatch.setattr(f"bornbiased_jax.{module}.cut_short", note)
    with pytest.raises(InputError, match=f"{re.escape(str(tmp_path))}.* is cut short: fetch it again$"):
        CUT[place](tmp_path)
    assert [frame.name for frame in raised] == [function]


def test_no_other_message_advises_to_fetch_a_file_again():
    advice = re.compile(r".*fetch [\w' ]*again")
    guides = PACKAGE.parent / "docs" / "guides"
    advised = {
        path.name: advice.findall(path.read_text())
        for path in (*PACKAGE.rglob("*.py"), *guides.glob("*.py"))
        if advice.search(path.read_text())
    }
    assert advised.keys() == {"errors.py", "convert_llama2c.py"}
    assert all(len(lines) == 1 and "cut short: fetch it again" in lines[0] for lines in advised.values())
