"""Settings of the chapter by scale; functions read them from their context alone (``bornbiased_jax.code.SILENT``)."""

from __future__ import annotations

from collections.abc import Sequence

from bornbiased_jax.experiments.base import Entry, by_scale

_INITS = ["gpt2-scaled", "normal-0.02"]
_TEXTS = ["builtin:prose", "builtin:code"]

_MODELS = ["gpt2-tiny", "llama-tiny", "qwen-tiny"]
_SMALL = {"num_layers": 2, "num_heads": 2, "num_kv_heads": 2, "d_model": 64, "d_ff": 128, "vocab_size": 256}
CALIBRATION = by_scale(
    models=(["gpt2-tiny"], _MODELS, ["gpt2-nano", "llama-nano", "qwen-nano"]),
    inits=(["gpt2-scaled"], _INITS, _INITS),
    changes=({**_SMALL, "num_layers": 1, "d_model": 32, "d_ff": 48, "vocab_size": 128}, _SMALL, {}),
    num_inputs=(32, 128, 2_000),
    seq_len=(4, 8, 64),
    pairs={
        "permutation": {"tokens": (60, 850, 850), "gaussian": (12, 150, 100)},
        "published": (12, 300, 100),
        "population": (3, 40, 10),
    },
    num_references=100,
    power={
        "model": ("gpt2-tiny", "llama-tiny", "llama-nano"),
        "init": ("gpt2-scaled", "normal-0.02", "normal-0.02"),
        "drifts": ([0.9], [0.9, 0.97, 0.99, 0.997], [0.9, 0.97, 0.99, 0.997]),
        "drift": (0.9, 0.997, 0.997),
        "num_pairs": (6, 40, 40),
        "sizes": {
            "num_inputs": ([32], [32, 128, 512], [500, 2_000, 10_000]),
            "seq_len": (..., [4, 16, 64], [16, 64, 256]),
            "d_model": (..., [32, 64, 128], [192, 384, 768]),
        },
    },
)


def _untrained(count: int, num_inputs: int, seq_len: int, model: str, **sizes: int) -> Sequence[Entry]:
    """Build a group of initializations for each initialization scheme and kind of inputs of Figure 13."""
    numbers = {"num_births": count, "num_inputs": num_inputs, "seq_len": seq_len}
    return [
        {"model": model, "changes": {**sizes, "init": init}, "inputs": kind, **numbers}
        for init in _INITS
        for kind in ("tokens", "gaussian")
    ]


_WIDER = {"d_model": 256, "d_ff": 704}
# 72 initializations have the paper's 2,556 pairs.
_SMOKE = _untrained(4, 64, 4, "llama-tiny", num_layers=1, num_heads=2, d_model=32, d_ff=48, vocab_size=128)[:2]
FIGURE13 = by_scale(
    groups=(_SMOKE, _untrained(8, 1_000, 32, "llama-tiny", **_WIDER), _untrained(72, 10_000, 1_024, "llama-nano"))
)
FIGURE13_TINY = by_scale(("smoke", "paper"), groups=(_SMOKE, _untrained(72, 1_000, 32, "llama-tiny", **_WIDER)))
FIGURE13_NANO = by_scale(("smoke", "paper"), groups=(_SMOKE, _untrained(72, 2_000, 16, "llama-nano")[:1]))

PAIRS = {
    "llama": [[42, 2000], [123, 42], [1000, 123], [2000, 1000]],
    "qwen": [[123, 1000], [1000, 123], [42, 2000], [2000, 42]],
}
"""Family -> base and suspect of the paper's comparisons."""
_TINY = {"num_layers": 2, "num_heads": 2, "num_kv_heads": 2, "d_model": 32, "d_ff": 48, "vocab_size": 260}


def _families(suffix: str, changes: Entry, only: Sequence[str] = tuple(PAIRS), **sizes: object) -> Entry:
    """Return settings with a group for each family, its model the preset with this suffix."""
    groups = [
        {"model": f"{family}-{suffix}", "changes": dict(changes), "pairs": PAIRS[family], **sizes} for family in only
    ]
    return {"seeds": [42, 123, 1000, 2000], "groups": groups}


def _reef(number: int, length: int, text: str = "builtin:prose") -> Entry:
    """Return what REEF reads."""
    return {"text": text, "num_sentences": number, "sentence_len": length}


_SMOKE_REEF = _reef(12, 8, "builtin:code")
TABLE4A = {
    "smoke": _families("tiny", _TINY, num_inputs=64, seq_len=4, num_null=2, reef=_SMOKE_REEF),
    "laptop": _families("tiny", {}, num_inputs=2_000, seq_len=16, num_null=12, reef=_reef(200, 32)),
    "paper": _families("nano", {}, num_inputs=10_000, seq_len=1_024, num_null=12, reef=_reef(200, 64)),
}


def table4a(family: str, seq_len: int, num_inputs: int, pair: list[int] | None) -> dict[str, Entry]:
    """Return settings of Table 4a for one family at one length, with one of its pairs, or with all of them for None."""
    # Baselines read no inputs of this length: their null is in the record of all pairs.
    pairs, num_null = (PAIRS[family], 12) if pair is None else ([pair], 0)
    smoke: Entry = dict(num_inputs=64, seq_len=4, num_null=0, reef=_SMOKE_REEF, pairs=pairs)
    paper: Entry = dict(num_inputs=num_inputs, seq_len=seq_len, num_null=num_null, reef=_reef(200, 64), pairs=pairs)
    seeds = {} if pair is None else {"seeds": pair}
    return {
        "smoke": {**_families("tiny", _TINY, [family], **smoke), **seeds},
        "paper": {**_families("nano", {}, [family], **paper), **seeds},
    }


TABLE4A_WEIGHTS = {"smoke": _families("tiny", _TINY), "paper": _families("nano", {})}

ALGORITHM1_M = by_scale(
    model=("llama-tiny", "llama-nano", "llama-nano"),
    changes=(_TINY, {}, {}),
    num_inputs=(64, 2_000, 10_000),
    seq_len=(4, 16, 1_024),
    m=([8, 16], [50, 200, 400], [50, 200, 400]),
    seeds=([42, 2000], [42, 123, 2000], [42, 123, 1000, 2000]),
    pairs=(PAIRS["llama"][:1], PAIRS["llama"][:2], PAIRS["llama"]),
)

TABLE6 = by_scale(
    num_inputs=(100, 500, 2_000),
    seq_len=(8, 32, 1_024),
    dtype=("float32", "float32", "bfloat16"),
    reef={"text": "builtin:prose", "num_sentences": (12, 100, 200), "sentence_len": (8, 32, 64)},
)

_DAMAGES = {"noise": [0.01, 0.1, 0.3, 1.0, 2.0], "pruning": [0.2, 0.5, 0.8], "re-quantisation": [8, 4, 3, 2]}
LINEAGE_PAIRS = by_scale(
    num_inputs=(24, 200, 2_000),
    num_inputs_small=(100, 2_000, 10_000),
    seq_len=(4, 16, 64),
    changes=({"noise": [0.1], "pruning": [0.5], "re-quantisation": [4]}, _DAMAGES, _DAMAGES),
    fresh_seeds=([42], [42, 123], [42, 123, 1000, 2000]),
    num_strangers=(6, 100, 1_000),
)

# Models trained on bytes of the built-in texts.
_SCHEDULE: Entry = {
    "steps": (3, 200, 5_000),
    "batch_size": (4, 8, 32),
    "context": (16, 32, 256),
    "warmup": (1, 20, 200),
    "learning_rate": (..., 4e-3, 1e-3),
    "min_learning_rate": (..., 4e-4, 1e-4),
}
_RATES: Entry = {"learning_rate": (4e-3, 4e-3, 1e-3), "min_learning_rate": (4e-4, 4e-4, 1e-4)}
_SHAPE: Entry = {
    "num_layers": (2, 2, 6),
    "num_heads": (2, 4, 8),
    "num_kv_heads": (2, 4, 8),
    "vocab_size": 260,
    "max_seq_len": (64, 64, 256),
}

COURT = by_scale(
    model="llama-tiny",
    changes={**_SHAPE, "num_layers": (2, 4, 6)},
    widths=([16], [64, 96], [256, 384]),
    corpora=_TEXTS,
    seeds_an_order=(2, 8, 8),
    schedule={**_SCHEDULE, "batch_size": (4, 16, 32)},
    probe={
        "num_inputs": (32, 256, 2_000),
        "seq_len": (8, 16, 64),
        "text": "builtin:prose",
        "num_sentences": (16, 200, 200),
        "num_matched": (8, 32, 64),
        "sentence_len": (8, 16, 64),
    },
    num_permutations=(200, 1_000, 2_000),
)

EVIDENCE_SHEET = by_scale(
    model="llama-tiny",
    changes={**_SHAPE, "qkv_bias": True},
    widths=([16, 24], [64, 96], [256, 384]),
    corpora=_TEXTS,
    seeds_an_order=(1, 3, 8),
    schedule=_SCHEDULE,
    num_pairs=(4, 72, 200),
    num_documents=(20, 400, 400),
    num_pieces=(300, 1_000, 4_000),
)

DESCENDANTS = by_scale(
    model="llama-tiny",
    changes={
        "num_layers": (2, 3, 6),
        "num_heads": (4, 4, 8),
        "num_kv_heads": (2, 2, 4),
        "d_model": (16, 32, 256),
        "d_ff": (24, 64, 512),
        "vocab_size": 260,
        "max_seq_len": (64, 64, 256),
    },
    families=(4, 46, 46),
    partners=(1, 46, 46),
    corpora=_TEXTS,
    schedule={**_SCHEDULE, "steps": (3, 400, 5_000), "batch_size": (2, 8, 32), "warmup": (1, 40, 200)},
    further={
        "tuned": ([2], [30, 100, 300], [100, 1_000, 5_000]),
        "distilled": ([2], [100, 300], [1_000, 5_000]),
        "learning_rate": (1e-3, 2e-3, 5e-4),
    },
    rank=(2, 4, 8),
    strengths={
        "noise": ([0.1], [0.1, 0.5, 2.0], [0.1, 0.5, 2.0]),
        "prune": ([0.3], [0.3, 0.6, 0.9], [0.3, 0.6, 0.9]),
        "round": ([8], [8, 4, 2], [8, 4, 2]),
        "merge": ([0.5], [0.25, 0.5, 0.75], [0.25, 0.5, 0.75]),
        "slerp": ([0.5], [0.25, 0.5, 0.75], [0.25, 0.5, 0.75]),
        "drop-layers": (["2"], ["2", "1,3"], ["3", "2,5"]),
        "repeat-layers": (["2-2"], ["2-3"], ["3-4"]),
        "resize-vocab": ([256], [256, 320], [256, 320]),
    },
    probe={
        "num_inputs": (32, 128, 1_000),
        "seq_len": (4, 8, 64),
        "vocab_size": 256,
        "text": "builtin:prose",
        "num_sentences": (16, 100, 200),
        "num_matched": (4, 16, 64),
        "sentence_len": (8, 16, 64),
    },
    num_offsets=(1, 3, 3),
    num_born=(4, 10, 12),
    birth_permutations=(199, 9_999, 9_999),
)

DISPUTES = by_scale(
    model="llama-tiny",
    changes={
        "num_layers": (2, 2, 6),
        "num_heads": 8,
        "num_kv_heads": 8,
        "d_model": (16, 64, 256),
        "d_ff": (32, 256, 1_024),
        "vocab_size": 260,
        "max_seq_len": (32, 64, 256),
        "qkv_bias": True,
    },
    corpora=_TEXTS,
    models=(2, 10, 24),
    others=(1, 4, 8),
    schedule={**_SCHEDULE, **_RATES},
    retraining={"steps": (2, 100, 2_000), "learning_rate": (1e-3, 1e-3, 3e-4)},
    experts=(2, 4, 8),
    rank=(2, 4, 16),
    num_permutations=(99, 999, 9_999),
)

POWER = by_scale(
    model="llama-tiny",
    changes={"num_layers": (2, 2, 6), "num_heads": 4, "num_kv_heads": 4, "vocab_size": 260, "max_seq_len": 64},
    widths=([[16, 64]], [[16, 64], [32, 128], [64, 256]], [[256, 1_024], [512, 2_048]]),
    corpora=_TEXTS,
    seeds=(2, 4, 12),
    dims=[4, 8, 16, 64],
    marks=([1, 3], [10, 50, 150], [100, 1_000, 10_000]),
    schedule={"batch_size": (4, 8, 32), "context": (16, 32, 64), "steps": (3, 150, 10_000)},
    learning_rate=(1e-3, 4e-3, 1e-3),
)

TOKEN_SPACE = by_scale(
    model="llama-tiny",
    changes=({"num_layers": 3, "d_model": 32, "d_ff": 48, "vocab_size": 260, "max_seq_len": 64}, {}, {}),
    corpora=_TEXTS,
    bases=(3, 4, 4),
    schedule={
        "steps": (3, 200, 200),
        "batch_size": (4, 16, 16),
        "context": (16, 128, 128),
        "tokenizer": ("bytes", *["bpe:4096"] * 2),
    },
    further=(2, 80, 80),
    dims=([4, 8], [8, 16, 64], [8, 16, 64]),
)

# Eight heads: as many as have orders enough for a p.
_EIGHT_HEADS = {"num_heads": 8, "num_kv_heads": 8, "head_dim": 4}
_NARROW = {**_EIGHT_HEADS, "num_layers": 2, "d_model": 32, "d_ff": 64, "vocab_size": 64}
_POPULATIONS: dict[str, dict[str, object]] = {
    "D = 64": {"d_model": 64, "d_ff": 128},
    "another text": {"d_model": 64, "d_ff": 128, "text": "builtin:code"},
    "D = 96": {"d_model": 96, "d_ff": 192},
    "4 blocks": {"d_model": 64, "d_ff": 128, "num_layers": 4},
    "another vocabulary": {"d_model": 64, "d_ff": 128, "vocab_size": 384},
    "tied": {"d_model": 64, "d_ff": 128, "tie_embeddings": True},
    "LayerNorm, no gate": {"d_model": 64, "d_ff": 256, "norm": "layernorm", "gated_mlp": False, "activation": "gelu"},
    "experts": {"d_model": 64, "d_ff": 64, "num_experts": 4},
}
WEIGHTS_CALIBRATION = by_scale(
    model="llama-tiny",
    changes=(
        {**_NARROW, "head_dim": 2, "d_model": 12, "d_ff": 16, "vocab_size": 24},
        _NARROW,
        {**_NARROW, "d_model": 96, "d_ff": 256, "vocab_size": 256},
    ),
    num_pairs=(40, 5_000, 20_000),
    num_permutations=(200, 2_000, 2_000),
    chunk=(40, 500, 500),
    # Of the pairs of models trained apart.
    shape={"num_layers": 2, "num_heads": 8, "num_kv_heads": 8, "vocab_size": 260, "max_seq_len": 64},
    populations=(
        {name: {**_POPULATIONS[name], "d_model": 16, "d_ff": 16} for name in ("D = 64", "experts")},
        _POPULATIONS,
        _POPULATIONS,
    ),
    seeds=(3, 12, 24),
    schedule={**_SCHEDULE, **_RATES, "steps": (3, 200, 2_000), "context": (16, 32, 64)},
)
TOKEN_NEURONS_LEVEL = by_scale(
    model="llama-tiny",
    changes=tuple(WEIGHTS_CALIBRATION[scale]["changes"] for scale in ("smoke", "laptop", "paper")),
    num_pairs=(40, 10_000, 20_000),
    num_permutations=(200, 2_000, 2_000),
    chunk=(40, 500, 500),
)
TOKEN_NEURONS_FURTHER = {
    scale: entry | ({} if scale == "smoke" else {"num_pairs": 40_000}) for scale, entry in TOKEN_NEURONS_LEVEL.items()
}
