"""The architecture of a checkpoint, and none of its weights: for what only needs sizes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from bornbiased_jax import files
from bornbiased_jax.checkpoints.gguf_file import locate_gguf
from bornbiased_jax.checkpoints.hf_config import read_config
from bornbiased_jax.checkpoints.llama2c import locate_llama2c
from bornbiased_jax.checkpoints.reference import Kind, parse_ref
from bornbiased_jax.checkpoints.run import locate_run
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError


class Shape(NamedTuple):
    """A model that is not opened: its architecture, and what kind of place it lies in."""

    cfg: ModelConfig
    kind: Kind


def read_shape(ref: str | Path) -> Shape:
    """Read a checkpoint's configuration; of a Hugging Face directory ``config.json`` alone need be there.

    Args:
        ref: what :func:`bornbiased_jax.checkpoints.open_checkpoint` takes, but for a name of the hub.

    Raises:
        InputError: nothing is there, it is damaged, or it lies on the hub.

    Example:
        >>> read_shape("seed:1@llama-tiny,num_layers=80").cfg.num_layers
        80
    """
    reference = parse_ref(ref)
    if reference.cfg is not None:
        return Shape(reference.cfg, reference.kind)
    if reference.path is None:
        raise InputError(f"{ref} lies on the hub, and nothing is fetched here: put its config.json into a folder")
    if reference.kind == "run":
        return Shape(locate_run(reference.path, reference.seed, reference.step).cfg, reference.kind)
    if reference.kind == "huggingface":
        place = reference.path / "config.json"
        return Shape(read_config(files.read_json(place), str(place)).cfg, reference.kind)
    locate = locate_gguf if reference.kind == "gguf" else locate_llama2c
    return Shape(locate(reference.path).cfg, reference.kind)
