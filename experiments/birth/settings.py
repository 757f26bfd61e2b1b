"""Settings of the chapter by scale; functions read them from their context alone (``bornbiased_jax.code.SILENT``)."""

from __future__ import annotations

from collections.abc import Sequence

from bornbiased_jax.experiments._shared import probing
from bornbiased_jax.experiments.base import Entry, by_scale

_TINY: Entry = dict(num_layers=2, vocab_size=256)
GPT2_SMOKE = probing.group("gpt2-tiny", [42, 43], 16, 64, **_TINY)
_LLAMA_SMOKE = probing.group("llama-tiny", [42, 43], 16, 64, **_TINY)
_PROSE_SMOKE = probing.group("gpt2-tiny", [42, 43], 16, 32, inputs="builtin:code", **_TINY)
_LAPTOP = [probing.group("gpt2-nano", [42, 43], 64, 2_000), probing.group("llama-nano", [42, 43], 64, 500)]
_PROSE_LAPTOP = probing.group("gpt2-tiny", [42, 43], 64, 1_000, inputs="builtin:prose")
# N = 2,000 for GPT-2 and 10,000 for LLaMA are those with which the paper's printed p-values agree (theory/ERRATA.md).
_PAPER = [
    probing.group(model, [42, 43], length, num_inputs)
    for model, num_inputs in (("gpt2-nano", 2_000), ("llama-nano", 10_000), ("gpt2-1.2b", 2_000))
    for length in (64, 256, 1024)
]
_LONGEST = [_PAPER[2], _PAPER[5]]

TABLE1 = probing.settings(
    smoke=[GPT2_SMOKE, _LLAMA_SMOKE, _PROSE_SMOKE],
    laptop=[*_LAPTOP, probing.group("gpt2-tiny", [42, 43], 64, 1_000), _PROSE_LAPTOP],
    paper=_PAPER,
)


def table1_row(model: str, seq_len: int, seed: int) -> dict[str, Entry]:
    """Return settings of one row of Table 1 at the paper's size."""
    smoke = _LLAMA_SMOKE if model.startswith("llama") else GPT2_SMOKE
    (paper,) = (group for group in _PAPER if (group["model"], group["seq_len"]) == (model, seq_len))
    return probing.settings(smoke=[{**smoke, "seeds": [seed]}], paper=[{**paper, "seeds": [seed]}])


TABLE1_C_256_N125 = probing.settings(smoke=[GPT2_SMOKE], laptop=[probing.group("gpt2-1.2b", [42, 43], 256, 125)])
"""Of Table 1(c) at T = 256 with a sixteenth of the paper's inputs: theory's interval is for as many."""

FIGURE1 = probing.settings(smoke=[GPT2_SMOKE], laptop=[*_LAPTOP, _PROSE_LAPTOP], paper=_LONGEST)
FIGURE2 = probing.settings(smoke=[GPT2_SMOKE], laptop=_LAPTOP, paper=_LONGEST)
FIGURE10 = {**FIGURE2, **probing.settings(paper=[probing.group("gpt2-nano", [42], 1024, 10_000)])}
FIGURE10_64 = probing.settings(smoke=[GPT2_SMOKE], paper=[probing.group("gpt2-nano", [42], 64, 10_000)])


def _grid(num_seeds: int, num_inputs: int) -> list[probing.ProbeGroup]:
    """Vary depth, width, length and architecture, one at a time."""
    return [
        probing.group(model, range(num_seeds), seq_len, num_inputs, d_model=width, d_ff=d_ff, num_layers=depth)
        for model, seq_len, width, d_ff, depth in (
            ("gpt2-tiny", 32, 256, 1024, 6),
            ("gpt2-tiny", 32, 256, 1024, 2),
            ("gpt2-tiny", 32, 64, 256, 6),
            ("gpt2-tiny", 128, 256, 1024, 6),
            ("gpt2-tiny", 8, 256, 1024, 6),
            ("llama-tiny", 32, 256, 704, 6),
            ("qwen-tiny", 32, 256, 704, 6),
        )
    ]


FINDINGS1 = probing.settings(
    smoke=[probing.group(f"{family}-tiny", range(3), 8, 64, **_TINY) for family in ("gpt2", "qwen")],
    laptop=_grid(8, 500),
    paper=_grid(64, 10_000),
)


def _hundred_seeds(seq_len: int, **laptop: Sequence[probing.ProbeGroup]) -> dict[str, Entry]:
    """Return settings with the paper's hundred seeds of GPT-2 nano at one length, and those of ``laptop``, if any."""
    return probing.settings(
        smoke=[probing.group("gpt2-tiny", range(4), 16, 64, **_TINY)],
        **laptop,
        paper=[probing.group("gpt2-nano", range(100), seq_len, 2_000)],
    )


FINDING2 = _hundred_seeds(
    1024, laptop=[probing.group("gpt2-tiny", range(16), 64, 500, vocab_size=1024, num_layers=8, d_model=256, d_ff=1024)]
)
FINDING2_64 = _hundred_seeds(64)
FINDING2_NANO = _hundred_seeds(16)


def _modules(
    model: str, seeds: Sequence[int], seq_len: int, num_inputs: int, mlp_inputs: int | None = None, **changes: object
) -> list[probing.ProbeGroup]:
    """Build groups of the full model, of its self-attention alone and of its MLPs alone, on Gaussian inputs.

    Positions meet nowhere in a model without attention, so there the last position is the whole sequence:
    MLP-only models run at T = 1, which is any T, and can afford more inputs (``mlp_inputs``).
    """
    shared: Entry = {"inputs": "gaussian", **changes}
    return [
        probing.group(model, seeds, seq_len, num_inputs, **shared),
        probing.group(model, seeds, seq_len, num_inputs, **shared, mlp=False),
        probing.group(model, seeds, 1, mlp_inputs or num_inputs, **shared, attention=False),
    ]


# Seeds are many and have embeddings of their own, because it costs nothing here and the theory's test of fit
# shares these initializations.
_SMALL: Entry = dict(num_layers=2, vocab_size=256, d_ff=512, activation="relu")
MODULES = probing.settings(
    smoke=_modules("gpt2-tiny", range(64), 8, 200, fix_embeddings=False, **_SMALL),
    laptop=_modules("gpt2-nano", [42, 43], 16, 500, mlp_inputs=2_000),
    paper=_modules("gpt2-nano", [42, 43], 1024, 2_000),
)
"""Of Table 2, Figures 3 and 7, which share their initializations."""

FIGURE4 = {scale: {**values, "groups": values["groups"][-1:]} for scale, values in MODULES.items()}

FIGURE6 = by_scale(
    model=("gpt2-tiny", "gpt2-nano", "gpt2-nano"),
    changes=(_TINY, ..., ...),
    seq_len=2,
    num_inputs=(64, 500, 2000),
    seeds=([42, 43], [42], [42, 123]),
)


_SIX_BLOCKS: Entry = dict(num_layers=6, d_model=256, d_ff=1024, init="normal-0.02")
TOP1_INPUTS = by_scale(
    groups=(
        [{"model": "gpt2-tiny", "changes": _TINY, "seeds": [42, 43], "num_inputs": 64, "longest": 16}],
        [{"model": "gpt2-tiny", "changes": _SIX_BLOCKS, "seeds": [42, 43], "num_inputs": 1_000, "longest": 64}],
        [{"model": "gpt2-nano", "changes": {}, "seeds": list(range(42, 58)), "num_inputs": 2_000, "longest": 1_024}],
    ),
    lengths=([4, 8], [16, 64], [16, 64, 256, 1_024]),
    num_input_sets=(2, 8, 8),
    num_ranked=5,
)


def _top1_nano(num_inputs: int, longest: int, **laptop: object) -> dict[str, Entry]:
    """Return settings of :data:`TOP1_INPUTS` for the paper's model and the two seeds of Table 1(a)."""
    group = {"model": "gpt2-nano", "changes": {}, "seeds": [42, 43], "num_inputs": num_inputs, "longest": longest}
    return {"smoke": TOP1_INPUTS["smoke"], "laptop": {**TOP1_INPUTS["laptop"], "groups": [group], **laptop}}


TOP1_INPUTS_NANO = _top1_nano(1_000, 64)
"""At several lengths, for which Table 1(a) gives top-1 tokens."""
TOP1_INPUTS_256 = _top1_nano(500, 256, lengths=[256])
"""At the middle length of Table 1(a), with half as many inputs in a set for time."""

TOP1_TABLES = by_scale(
    ("smoke", "laptop"),
    model=("gpt2-tiny", "gpt2-nano"),
    changes=(_TINY, {}),
    seeds=([42, 43, 44], list(range(42, 50))),
    num_inputs=(64, 500),
    seq_len=(8, 64),
    table_seeds=[0, 1],
    num_input_sets=2,
    num_ranked=5,
)

SCHEME_MATRIX = by_scale(
    model="gpt2-tiny",
    changes={
        "vocab_size": 256,
        "tie_embeddings": False,
        "num_layers": (2, 4, 6),
        "d_model": (32, 64, 256),
        "d_ff": (64, 256, 1024),
        "num_heads": (2, 4, 8),
        "head_dim": (16, 16, 32),
        "max_seq_len": (16, 32, 128),
    },
    rows=(["gpt2-scaled", "ReLU", "ReLU balanced"], None, None),
    seeds=([0, 1], [0, 1, 2, 3, 4], list(range(16))),
    data="builtin:prose",
    schedule={
        "context": (16, 32, 128),
        "steps": (6, 300, 3000),
        "batch_size": (4, 8, 32),
        "learning_rate": 1e-3,
        "min_learning_rate": 1e-4,
        "warmup": (2, 20, 100),
    },
    loss_steps=([2, 4], [10, 30, 100], [10, 30, 100, 300, 1000]),
    held_out=(8, 256, 512),
    traced=(2, 2, 16),
    num_inputs=(64, 512, 2000),
    gradient_sequences=(4, 32, 32),
)
