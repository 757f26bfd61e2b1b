"""Settings of the chapter by scale; functions read them from their context alone (``bornbiased_jax.code.SILENT``)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bornbiased_jax.experiments._shared import probing
from bornbiased_jax.experiments.base import Entry, by_scale
from bornbiased_jax.experiments.birth import settings as birth

ABLATION = by_scale(
    cases=(
        [["gpt2-tiny", 16], ["llama-tiny", 16]],
        [["gpt2-nano", 64], ["gpt2-nano", 1024], ["gpt2-1.2b", 1024], ["llama-nano", 1024]],
        [[model, T] for model in ("gpt2-nano", "gpt2-1.2b", "llama-nano", "qwen-nano") for T in (64, 256, 1024)],
    )
)

FIGURE5 = by_scale(
    seeds=([42, 43], [42, 43], list(range(42, 58))),
    num_layers=12,
    d_model=(128, 768, 768),
    num_inputs=(128, 2_000, 2_000),
)

FIGURE8 = by_scale(
    seeds=[42],
    num_layers=(6, 12, 12),
    num_heads=(4, 12, 12),
    d_model=(64, 768, 768),
    lengths=([16], [16, 512], [16, 512]),
    num_inputs=([16], [128, 16], [2_000, 2_000]),
)

FIGURE9 = by_scale(
    model=("llama-tiny", "llama-nano", "llama-nano"),
    changes=({"d_model": 64}, ..., ...),
    seq_len=(16, 32, 32),
    num_inputs=(64, 256, 2000),
    seeds=([42, 123], [42, 123], [42, 123, 1000, 2000]),
)


def _mlp0(num_seeds: int, seq_len: int, num_inputs: int, d_model: int = 768) -> Entry:
    """Build one group of Table 3."""
    sizes = {"d_model": d_model, "d_ff": 4 * d_model, "num_inputs": num_inputs, "seq_len": seq_len}
    return {"seeds": list(range(num_seeds)), **sizes}


TABLE3 = by_scale(
    seeds=(list(range(12)), list(range(8)), list(range(64))),
    groups=([_mlp0(12, 16, 64, 64)], [_mlp0(2, 128, 2_000), _mlp0(16, 1, 2_000)], [_mlp0(64, 128, 2_000)]),
)


def _gaussian(model: str, seeds: Sequence[int], seq_len: int, num_inputs: int, **changes: object) -> probing.ProbeGroup:
    """Build a group on Gaussian inputs, with embeddings of each seed's own."""
    fields: Entry = {"inputs": "gaussian", "fix_embeddings": False, **changes}
    return probing.group(model, seeds, seq_len, num_inputs, **fields)


_WIDE: Entry = dict(d_model=256, d_ff=1024, num_layers=6)
_SEEDS = range(1000, 1256)
# What findings1 measures in any case, so that both together cost no more than one.
_LAPTOP_GRID: list[probing.ProbeGroup] = birth.FINDINGS1["laptop"]["groups"]
_LAPTOP_FITS = [
    _gaussian("gpt2-tiny", _SEEDS[:64], 1, 2_000, attention=False, activation="relu", **_WIDE),
    _gaussian("gpt2-tiny", _SEEDS[:64], 4, 1_000, **_WIDE),
    _gaussian("gpt2-tiny", _SEEDS[:64], 8, 500, norm="rmsnorm", activation="silu", num_layers=3, d_model=192, d_ff=768),
]
# Seeds and configurations that nothing here was looked at for. A few tokens are enough to see many seeds at full size.
_UNSEEN_SEEDS = range(300, 316)
CHANGED_FOR: probing.ProbeGroup = _LAPTOP_FITS[1]
"""The group whose fit an earlier version of the theory failed, and for which it was changed."""
_NORMAL: Entry = {"init": "normal-0.02"}
_LAPTOP_UNSEEN = [
    _gaussian("gpt2-tiny", _UNSEEN_SEEDS, 16, 200, norm="rmsnorm", activation="relu", **_NORMAL),
    _gaussian("llama-tiny", _UNSEEN_SEEDS, 24, 200, norm="layernorm", num_layers=8, **_NORMAL),
    _gaussian("gpt2-tiny", _UNSEEN_SEEDS, 48, 100, num_layers=9, d_model=96, d_ff=480, num_heads=3, **_NORMAL),
    _gaussian("olmo2-tiny", _UNSEEN_SEEDS, 12, 200, **_NORMAL),
    _gaussian("gpt2-nano", _UNSEEN_SEEDS, 8, 64, vocab_size=1_024),
    _gaussian("llama-nano", _UNSEEN_SEEDS[:12], 4, 128, vocab_size=1_024),
]
_LAPTOP = [*_LAPTOP_GRID, *_LAPTOP_FITS, *_LAPTOP_UNSEEN]
_PAPER_FITS = [
    _gaussian("gpt2-nano", _SEEDS, 1, 2_000, attention=False),
    _gaussian("gpt2-nano", _SEEDS, 64, 2_000),
    _gaussian("llama-nano", _SEEDS, 64, 2_000),
    _gaussian("gpt2-tiny", _SEEDS, 32, 2_000, norm="rmsnorm", activation="relu", **_WIDE),
]
_PAPER_SHAPES: list[tuple[Entry, int, int]] = [({}, 4, 64), ({"d_model": 256}, 4, 64), ({}, 12, 64), ({}, 4, 512)]
_PAPER = [
    *_LAPTOP_GRID,
    *(
        probing.group(model, range(16), length, 2_000, num_layers=depth, **width)
        for model in ("gpt2-tiny", "llama-tiny", "qwen3-tiny", "neox-tiny", "olmo2-tiny")
        for width, depth, length in _PAPER_SHAPES
    ),
    *_PAPER_FITS,
]
PREDICTED = by_scale(
    seeds=(list(range(64)), list(range(8)), list(range(16))),
    groups=(birth.MODULES["smoke"]["groups"], _LAPTOP, _PAPER),
    # Places of the groups whose fit is tested, and of those that nothing was looked at for.
    fits=([2], [*range(len(_LAPTOP_GRID), len(_LAPTOP))], [*range(len(_PAPER) - len(_PAPER_FITS), len(_PAPER))]),
    unseen=(..., [*range(len(_LAPTOP) - len(_LAPTOP_UNSEEN), len(_LAPTOP))], ...),
)


def _decoder(beta: float, num_heads: int, num_seeds: int) -> probing.ProbeGroup:
    """Build a group of decoders without positions whose logits have variance β² ln T."""
    length, width = 40, 256
    std = (beta**2 * math.log(length)) ** 0.25 / math.sqrt(width)
    sizes: Entry = dict(num_layers=3, num_heads=num_heads, d_model=width, d_ff=2 * width, vocab_size=2048)
    fields: Entry = dict(positions="none", tie_embeddings=False, norm="rmsnorm", activation="relu", init="lecun")
    schemes: Entry = {f"init.{group}": f"normal:{std:.6f}" for group in ("query", "key")}
    seeds = range(5000, 5000 + num_seeds)
    return probing.group("gpt2-tiny", seeds, length, 24, fix_embeddings=False, **sizes, **fields, **schemes)


_BETAS = [0.5, 1.0, 1.4, 2.0, 3.0]
_DECODERS = [(beta, num_heads) for num_heads in (1, 4) for beta in _BETAS]
_DECODER_GROUPS = [_decoder(*decoder, 32) for decoder in _DECODERS]
_ENCODERS: Entry = {"post-norm": {}, "pre-norm": {"norm_position": "pre"}, "post-norm, centered": {"centered": True}}
ENTROPY_TRANSITION = by_scale(
    variants=({"post-norm": {}}, _ENCODERS, _ENCODERS),
    betas=([2.0], _BETAS, _BETAS),
    length=(64, 512, 512),
    width=(128, 720, 720),
    num_layers={"post-norm": (5, 50, 50), "pre-norm": (..., 20, 50), "post-norm, centered": (..., 20, 50)},
    networks=(4, 32, 32),
    cosine=0.1,
    decoders=(_DECODERS[:1], _DECODERS, _DECODERS),
    groups=([_decoder(*_DECODERS[0], 2)], _DECODER_GROUPS, _DECODER_GROUPS),
)

_SCHEMES: dict[str, Entry] = {
    "kaiming": {"init": "kaiming"},
    "kaiming-balanced": {"init": "kaiming-balanced"},
    "kaiming, leaky ReLU, RMSNorm": {"init": "kaiming", "activation": "leaky_relu", "norm": "rmsnorm"},
    "gemma-jax": {"init": "gemma-jax", "activation": "gelu_tanh"},
    "modded-nanogpt": {"init": "modded-nanogpt", "activation": "relu_squared", "tie_embeddings": False},
    "rezero": {"init": "rezero"},
    "gpt2-scaled-mirrored": {"init": "gpt2-scaled-mirrored"},
    "xavier, SiLU less its mean": {"init": "xavier", "activation": "silu_centered"},
    "orthogonal MLPs": {"init": "normal-0.02", "init.up": "orthogonal:0.05", "init.down": "orthogonal:0.03"},
}
_SHAPES: dict[str, tuple[Entry, int]] = {
    "5 × 80, T = 12": (dict(num_layers=5, d_model=80, d_ff=320, num_heads=5), 12),
    "7 × 112, T = 20": (dict(num_layers=7, d_model=112, d_ff=300, num_heads=7), 20),
    "3 × 144, T = 40": (dict(num_layers=3, d_model=144, d_ff=576, num_heads=4), 40),
}


def _cell(scheme: str, shape: str, num_seeds: int, num_inputs: int) -> probing.ProbeGroup:
    """Build the group of a scheme and a shape, with embeddings of each seed's own."""
    sizes, seq_len = _SHAPES[shape]
    fields: Entry = {"fix_embeddings": False, **sizes, **_SCHEMES[scheme]}
    return probing.group("gpt2-tiny", range(700, 700 + num_seeds), seq_len, num_inputs, **fields)


def _narrowed(width: int, num_layers: int, num_seeds: int, seq_len: int, num_inputs: int) -> probing.ProbeGroup:
    """Build a group of models 128 wide with the pre-activations of a wide one drawn by ``gpt2-scaled``."""
    std = 0.02 * math.sqrt(width / 128)
    readers: Entry = {f"init.{group}": f"normal:{std:.6g}" for group in ("embedding", "query", "key", "value", "up")}
    writers: Entry = {f"init.{group}": f"normal:{std / math.sqrt(2 * num_layers):.6g}" for group in ("output", "down")}
    shape: Entry = dict(num_layers=num_layers, d_model=128, d_ff=512, num_heads=4, vocab_size=256)
    return _gaussian("gpt2-tiny", range(700, 700 + num_seeds), seq_len, num_inputs, **shape, **readers, **writers)


_SMOKE_CELLS = [[scheme, "5 × 80, T = 12"] for scheme in ("kaiming", "rezero")]
_CELLS = [[scheme, shape] for shape in _SHAPES for scheme in _SCHEMES]
_UNSEEN = [
    *(_cell(scheme, shape, 8, 100) for scheme, shape in _CELLS),
    _narrowed(768, 12, 96, 16, 60),
    _narrowed(2048, 24, 48, 32, 40),
]
UNSEEN_SCHEMES = by_scale(
    cells=(_SMOKE_CELLS, _CELLS, _CELLS),
    groups=(
        [*(_cell(scheme, shape, 2, 16) for scheme, shape in _SMOKE_CELLS), _narrowed(768, 2, 4, 4, 16)],
        _UNSEEN,
        _UNSEEN,
    ),
)
