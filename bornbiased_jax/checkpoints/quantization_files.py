"""Settings of quantized weights that lie next to ``config.json``, as AutoGPTQ and AutoAWQ wrote them before 2024.

Their names and keys are those of AutoGPTQ's ``quantization/config.py``, and the names of weights those of its
``modeling/_base.py``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from bornbiased_jax import io, schema
from bornbiased_jax.errors import InputError

FILES = ("quantize_config.json", "quant_config.json")
"""Names of the files, AutoGPTQ's first."""
FIELD = "quantization_config"
"""Where ``config.json`` has the same settings."""
# AutoAWQ's names of a key.
_SYNONYMS = {"w_bit": "bits", "q_group_size": "group_size"}
# Settings that two files of one model have in common.
_COMPARED = ("bits", "group_size", "desc_act", "sym", "quant_method", "checkpoint_format")
_ENDINGS = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt")


class SettingsError(InputError):
    """Settings of quantized weights that contradict each other or the weights: no comparison is possible either."""


def with_quantization(folder: Path, config: Mapping[str, object]) -> dict[str, object]:
    """Return a configuration with the settings of quantized weights from the files next to it; its own count first.

    Raises:
        InputError: a file is no JSON object.
        SettingsError: a file contradicts another one.
    """
    own = config.get(FIELD)
    files: dict[str, dict[str, object]] = {f"{folder / 'config.json'} ({FIELD})": own} if isinstance(own, dict) else {}
    files |= {str(folder / name): _read(folder / name) for name in FILES if (folder / name).is_file()}
    merged: dict[str, object] = {}
    sources: dict[str, str] = {}
    for where, settings in files.items():
        for key, value in settings.items():
            name = _SYNONYMS.get(key, key)
            if name in _COMPARED and merged.get(name, value) != value:
                raise SettingsError(
                    f"{where} has {name}={schema.shown(value)}, but {sources[name]} has "
                    f"{name}={schema.shown(merged[name])}: remove the file that is not of these weights"
                )
            if name not in merged:
                merged[name], sources[name] = value, where
    return {**config, FIELD: merged} if merged else dict(config)


def find_weights(folder: Path) -> str | None:
    """Return the file of quantized weights, or its index, that the settings name; None where there is none.

    Raises:
        InputError: a file of settings is no JSON object.
    """
    for file in FILES:
        if (folder / file).is_file():
            settings = _read(folder / file)
            name = settings.get("model_file_base_name")
            bits, size = (settings.get(key) for key in ("bits", "group_size"))
            stem = name if isinstance(name, str) and name else f"gptq_model-{bits}bit-{size}g"
            places = [Path(stem).name + ending for ending in _ENDINGS]
            # Not Path.is_file, which raises where no file can have such a name.
            return next((place for place in places if os.path.isfile(folder / place)), None)
    return None


def _read(path: Path) -> dict[str, object]:
    content: dict[str, object] = schema.check(dict[str, object], io.read_json(path), str(path))
    return content
