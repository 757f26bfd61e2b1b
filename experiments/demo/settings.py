"""Settings of the chapter by scale; functions read them from their context alone (``bornbiased_jax.code.SILENT``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bornbiased_jax.experiments._shared import probing
from bornbiased_jax.experiments.base import Entry, by_scale
from bornbiased_jax.experiments.birth.settings import GPT2_SMOKE
from bornbiased_jax.experiments.sinks.settings import ONE_LAYER, settings_of, with_changes

PREFERENCE = probing.settings(smoke=[GPT2_SMOKE], laptop=[probing.group("gpt2-nano", [42, 43], 64, 200)])

TRACES = by_scale(
    ("smoke", "laptop"),
    seeds=[42, 43],
    model="llama-tiny",
    changes={
        "num_layers": (2, 4),
        "num_heads": (2, 4),
        "d_model": (32, 96),
        "d_ff": (48, 256),
        "vocab_size": 256,
        "max_seq_len": (16, 64),
    },
    data=("builtin:code", "builtin:prose"),
    schedule={
        "steps": (4, 360),
        "batch_size": (4, 16),
        "context": (16, 64),
        "warmup": (1, 20),
        "learning_rate": 3e-3,
        "min_learning_rate": 3e-4,
    },
    every=(2, 120),
    rotation_seed=0,
)


def _growth(size: str, num_heads: int, **changes: object) -> Entry:
    base = settings_of(size, ["baseline"], **changes)
    return {"seeds": base["seeds"], "variants": {"one layer": with_changes(base, num_layers=1, num_heads=num_heads)}}


SINKS = by_scale(
    ("smoke", "laptop"),
    seeds=([42, 123], [42, 123, 1000]),
    variance={
        "model": ("llama-tiny", "llama-nano"),
        "changes": ({"d_model": 64}, ...),
        "seq_len": (16, 32),
        "num_inputs": (64, 256),
        "seeds": ([42], [42, 123]),
    },
    growth=(_growth("smoke", 2, bos_token=True), _growth("laptop", ONE_LAYER["num_heads"])),
)


def _by_scheme(
    schemes: Sequence[str], seeds: int, num_inputs: int, changes: Mapping[str, int]
) -> list[probing.ProbeGroup]:
    groups = [probing.group("gpt2-tiny", range(seeds), 16, num_inputs) for _ in schemes]
    for group, scheme in zip(groups, schemes, strict=True):
        group["changes"] = {"tie_embeddings": False, **changes, "init": scheme}
    return groups


_SMALL = {"num_layers": 6, "d_model": 128, "d_ff": 512, "num_heads": 4, "vocab_size": 256}
# GPT-2's scheme, one with larger weights, and two that remove the mean of the MLPs' outputs, or their even part.
_SCHEMES = ("gpt2-scaled", "kaiming", "gpt2-scaled-balanced", "gpt2-scaled-mirrored")

SCHEMES = probing.settings(
    smoke=_by_scheme(_SCHEMES[1::2], 2, 64, {"num_layers": 2, "vocab_size": 256}),
    laptop=_by_scheme(_SCHEMES, 8, 500, _SMALL),
)
