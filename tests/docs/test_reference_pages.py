"""Reference pages are complete: every field of a model with its default, every key of the commands' JSON."""

import dataclasses
import json
import re
from pathlib import Path

from bornbiased_jax.config import ModelConfig

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
