"""Reference pages are complete: fields of a model with defaults, keys of the commands' JSON, walks and sizes."""

import dataclasses
import json
import re
import sys
import threading
from pathlib import Path
from typing import get_type_hints

from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.evaluation.perplexity import CheckpointScores
from bornbiased_jax.lineage import Settings, fingerprint
from bornbiased_jax.lineage.battery import Options
from bornbiased_jax.lineage.weights_verdict import auto_verdict
from bornbiased_jax.probes.inputs import parse_inputs
from tests.lineage.fingerprinted import model, source

ROOT = Path(__file__).resolve().parents[2]
# What every object holds is described once.
COMMON = re.compile(r"^(provenance|model|models|command|config)(\.|$)")


def test_every_field_of_a_model_has_a_row_with_its_default():
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", (ROOT / "docs" / "fields.md").read_text(), re.MULTILINE)
    assert rows == [(field.name, str(field.default)) for field in dataclasses.fields(ModelConfig)]


def test_every_key_of_json_is_on_its_page():
    page = (ROOT / "docs" / "json.md").read_text()
    named = set(re.findall(r"`([^`]+)`", page))
    values = json.loads((ROOT / "tests" / "golden" / "values" / "commands.json").read_text())
    keys = {str(key) for name, value in values.items() if name.startswith("keys-") for key in value["keys"]}
    # A key with keys below it is named by those.
    leaves = {key for key in keys if not any(other.startswith((f"{key}.", f"{key}[]")) for other in keys)}
    missing = {key for key in leaves if not COMMON.match(key)} - named
    assert not missing, sorted(missing)
    assert {key for key in leaves if key.startswith("provenance.")} <= named


def test_keys_that_other_models_and_inputs_have_are_in_the_rows_of_their_commands(tmp_path):
    page = (ROOT / "docs" / "json.md").read_text()
    rows = {
        name: set(re.findall(r"`([^`]+)`", keys)) for name, keys in re.findall(r"^\| `(\S+)` \| (.*) \|$", page, re.M)
    }
    assert rows["evaluate"] == set(get_type_hints(CheckpointScores))
    assert {"verdict", "reason"} <= rows["parity"]
    (tmp_path / "a.txt").write_text("some words " * 9)
    cfg = preset("gpt2-tiny", vocab_size=256)
    inputs = [parse_inputs("gaussian", num_inputs=2, seq_len=4, cfg=cfg)]
    inputs.append(parse_inputs(f"text:{tmp_path}", num_inputs=2, seq_len=4, cfg=cfg, tokenizer="bytes"))
    keys = {f"records[].inputs.{key}" for each in inputs for key in each.describe()}
    assert keys <= rows["probe"], sorted(keys - rows["probe"])


def _functions() -> set[str]:
    """Names of every function, class and method of the library."""
    files = (ROOT / "bornbiased_jax").rglob("*.py")
    return {name for path in files for name in re.findall(r"^ *(?:def|class) (\w+)", path.read_text(), re.MULTILINE)}


def test_walks_name_functions_that_exist_and_are_as_long_as_they_say():
    page = (ROOT / "docs" / "architecture.md").read_text()
    start = page.index("## From a seed to its record")
    pair = page.index("## From a pair of checkpoints to a verdict")
    end = page.index("## One table of parameters")
    named = set()
    for text, length in ((page[start:pair], 20), (page[pair:end], 25)):
        rows = re.findall(r"^\| ([\d, ]+) \| (.*?) \|", text, re.MULTILINE)
        assert [int(n) for numbers, _ in rows for n in numbers.split(", ")] == list(range(1, length + 1))
        named |= {name for _, functions in rows for name in re.findall(r"`([\w.]+)`", functions)}
    step = re.findall(r"^- (\d+) of .*?:((?:.|\n(?!-|\n))*)", page[page.index("## A training step") :], re.MULTILINE)
    by_part = {int(count): re.findall(r"`([\w.]+)`", names) for count, names in step}
    assert sum(by_part) == 40 and all(count == len(names) for count, names in by_part.items())
    named |= {name for names in by_part.values() for name in names}
    # What stands before a dot is a module, a package or the class of a method.
    ends = {name.rpartition(".")[2] for name in named}
    modules = {path.stem for path in (ROOT / "bornbiased_jax").rglob("*.py")}
    assert ends - _functions() - modules == set()


def test_walk_from_two_fingerprints_to_a_verdict_is_that_of_a_trace():
    page = (ROOT / "docs" / "architecture.md").read_text()
    walk = page[page.index("## From a pair of checkpoints to a verdict") : page.index("Both models reach a test")]
    rows = re.findall(r"^\| [\d, ]+ \| (.*?) \|", walk[walk.index("| 8 |") :], re.MULTILINE)
    sketches = fingerprint(source(model("llama")), Settings())
    codes = []

    def record(frame, event, _):
        if event == "call" and "/bornbiased_jax/" in frame.f_code.co_filename:
            codes.append(frame.f_code)

    threading.setprofile(record)
    sys.setprofile(record)
    try:
        auto_verdict(sketches, sketches, Options(num_permutations=99))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    calls = iter([f".{Path(code.co_filename).stem}.{code.co_qualname}".removesuffix(".__init__") for code in codes])
    for name in (name for row in rows for name in re.findall(r"`([\w.]+)`", row)):
        assert any(call.endswith(f".{name}") for call in calls), f"{name} is not called after those before it"


def test_sizes_are_those_of_the_tree_within_a_tenth():
    page = (ROOT / "docs" / "architecture.md").read_text()
    stated = re.findall(r"`(\w[\w/]*)/` \| ([\d.]+) \|", page[page.index("## Sizes") :])
    assert len(stated) == 8
    for folder, thousands in stated:
        files = (ROOT / folder).rglob("*.py")
        lines = sum(len(path.read_text().splitlines()) for path in files)
        assert abs(lines / 1000 - float(thousands)) <= 0.1 * float(thousands), f"{folder}: {lines}"
