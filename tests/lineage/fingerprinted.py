"""Small models whose weights are fingerprinted, with scales and biases as training might leave them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.native_roles import NativeRoles
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.init import init_seed
from bornbiased_jax.lineage import (
    Settings,
    fingerprint,
)
from bornbiased_jax.lineage.fingerprints import Component
from bornbiased_jax.parameters import Params, flatten, unflatten

SIZES = dict(num_layers=2, d_model=32, d_ff=48, num_heads=4, vocab_size=96)
CONFIGS = {
    "llama": preset("llama-tiny", **SIZES, num_kv_heads=2, qk_norm=True),
    "gpt2": preset("gpt2-tiny", **SIZES),
    "experts": preset("qwen3moe-tiny", **SIZES, num_kv_heads=2, num_experts=4),
}
Model = tuple[ModelConfig, Params]
HEAD_NORMS = ("blocks/attention/query_norm", "blocks/attention/key_norm")


def model(name: str, seed: int = 1) -> Model:
    """Initial weights with norm scales and biases as training might leave them."""
    cfg = CONFIGS[name]
    draws = np.random.default_rng(seed)
    flat = {path: np.array(leaf) for path, leaf in flatten(init_seed(cfg, seed)).items()}
    for path, leaf in flat.items():
        if path.endswith(("scale", "bias")):
            flat[path] = (leaf + 0.3 * draws.standard_normal(leaf.shape)).astype(np.float32)
    return cfg, unflatten(flat)


def source(changed: Model) -> NativeRoles:
    return NativeRoles(Checkpoint.from_params(*changed))


def sketched(changed: Model, **settings: Any) -> Component:
    return fingerprint(source(changed), Settings(**settings)).components["language"]


class Labeled(NativeRoles):
    """A model whose tokens have strings."""

    def __init__(self, changed: Model, labels: Sequence[bytes | None]) -> None:
        super().__init__(Checkpoint.from_params(*changed))
        self._labels = tuple(labels)

    def token_labels(self) -> tuple[bytes | None, ...]:
        return self._labels


def edited(name: str, edit: Callable[[dict[str, np.ndarray]], None], **fields: Any) -> Model:
    cfg, params = model(name)
    flat = {path: np.array(leaf) for path, leaf in flatten(params).items()}
    edit(flat)
    return cfg.replace(**fields), unflatten(flat)
