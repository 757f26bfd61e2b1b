"""Settings of the chapter: models that differ in their attention, by size, and what is measured of them."""

from __future__ import annotations

from collections.abc import Iterable

from bornbiased_jax.experiments._shared.training import LARGER
from bornbiased_jax.experiments.base import Entry, by_scale

MITIGATIONS: dict[str, Entry] = {
    "baseline": {},
    "positional amplification": {"positional_scale": "amplify"},
    "positional attenuation": {"positional_scale": "attenuate"},
    "per-head RMSNorm": {"head_norm": True},
    "head-wise gate": {"output_gate": "headwise"},
    "element-wise gate": {"output_gate": "elementwise"},
    "value-state gate": {"output_gate": "value"},
    "zero extra logit": {"sink_logit": "zero"},
    "learned extra logit": {"sink_logit": "learned"},
    "learned key and value": {"prefix_length": 1},
    "sigmoid attention": {"attention_kernel": "sigmoid"},
    "softpick": {"attention_kernel": "softpick"},
    "clipped softmax": {"attention_kernel": "clipped"},
    "centred attention": {"attention_kernel": "centred"},
    "window": {"window": 8},
    "no positions": {"positions": "none"},
}
"""Name -> fields of ``ModelConfig``. The first three are Figure 12's.

This is the one list of them: the experiments, Figure 9's predictions and their tests take it from here. A new one is a
field of :class:`~bornbiased_jax.config.ModelConfig` (or a new value of one), what it does in
:mod:`bornbiased_jax.model.attention`, and its line here; where theory knows it,
:mod:`bornbiased_jax.theory.variance` as well.
"""

FIGURE_12 = ("baseline", "positional amplification", "positional attenuation")
"""Figure 12: sink rate by sequence length for the baseline and the two positional calibrations."""

HEAD_NORM = "per-head RMSNorm"
"""The one whose convergence the paper reports."""

EPSILON = 0.25
"""A head is a sink where its mean attention to a position exceeds this."""

HELD_OUT = "held out"
"""The text of which nothing was trained on, among ``texts``."""

_WIKITEXT = "hf:Salesforce/wikitext,wikitext-2-raw-v1@test"
# The laptop's is the smallest setting of two layers found in which every seed of the baseline grows sinks on two cores.
# One layer grows them too (``sink_growth``), but its keys are read before any attention, so that the variance of an
# attention output, which the calibrations change, cannot matter to them. The larger one has more than eight times its
# parameters, as found by ``sink_search_larger``: at this width sinks at T = 64 take more steps than two hours have, and
# models trained at T = 32 grow them. The paper's is nano LLaMA-2 by Appendix B.4 on OpenWebText, sinks on WikiText-2,
# perplexity by Table 7's protocol.
_SIZES = by_scale(
    ("smoke", "laptop", "larger", "paper"),
    model=("llama-tiny", "llama-tiny", "llama-tiny", "llama-nano"),
    changes={
        "num_layers": (2, 2, 2, ...),
        "d_model": (32, 32, 128, ...),
        "num_heads": (2, 2, 4, ...),
        "d_ff": (64, 88, 344, ...),
        "vocab_size": (260, 513, 513, ...),
    },
    seeds=([42, 123], [42, 123, 1000], [42, 123, 1000], [42, 123, 1000]),
    seeds_at_once=(..., ..., ..., 1),
    data=("builtin:prose", "builtin:prose", "builtin:prose", "hf:Skylion007/openwebtext"),
    schedule={
        "tokenizer": ("byte", "bpe:512", "bpe:512", None),
        "steps": (12, 900, 600, 200_000),
        "batch_size": (4, 16, 32, 128),
        "accumulation": (..., ..., ..., 2),
        "context": (32, 64, 32, 2048),
        "learning_rate": (1e-3, 1.5e-2, 6e-3, 6e-4),
        "min_learning_rate": (..., 1.5e-3, 6e-3 / 10, 6e-5),
        "warmup": (2, 100, 100, 2000),
        "weight_decay": (..., ..., ..., 0.1),
        "dtype": (..., ..., ..., "bfloat16"),
    },
    bos_token=(..., True, True, ...),
    lengths=([16, 32], [16, 32, 64], [16, 32], [32, 64, 128, 256, 512]),
    num_sequences=(4, 100, 100, 100),
    sink_text=(None, None, None, _WIKITEXT),
    texts=(
        {HELD_OUT: None},
        {HELD_OUT: None, "built-in code": "builtin:code"},
        {HELD_OUT: None, "built-in code": "builtin:code"},
        {"WikiText-2": _WIKITEXT, "C4": "hf:allenai/c4,en@validation"},
    ),
    evaluation={"num_sequences": (4, 128, 128, 256), "context": (32, 64, 32, 2048)},
)


WIDE: Entry = {
    "model": "llama-tiny",
    **LARGER,
    "seeds": [42, 123],
    "data": "builtin:prose",
    "bos_token": False,
    "lengths": [16, 32, 64, 128, 256],
    "num_sequences": 100,
    "sink_text": None,
    "texts": {HELD_OUT: None},
    "evaluation": {"num_sequences": 128, "context": 256},
}
"""The larger models, without a BOS token."""


def settings_of(size: str, mitigations: Iterable[str], **changes: object) -> Entry:
    """Return settings of a size (smoke, laptop, larger or paper), as :func:`run_mitigations` takes them."""
    return {**_SIZES[size], "cures": list(mitigations), **changes}


ONE_LAYER = {"num_layers": 1, "num_heads": 4}
"""What the smallest model that grew a sink in every seed changes in the laptop's setting."""


def with_changes(base: Entry, **changes: object) -> Entry:
    """Change fields of the model in a setting."""
    return {**base, "changes": {**base["changes"], **changes}}


PRICED = {
    "schemes": ["w8a8", "w6a6", "kv8", "kv4"],
    "granularities": ["tensor", "token"],
    "keep_sinks": [0, 1],
    "num_sequences": 64,
    "window": 48,
    "streaming_keep": [0, 1, 4],
    "streaming_length": 256,
    "streaming_sequences": 32,
}
"""What the table of prices measures, for models trained on 64 positions."""

PRICED_SHORT = {**PRICED, "window": 24, "streaming_length": 128}
"""The same for models trained on 32 positions."""

PRICED_SMOKE = {
    **PRICED,
    "schemes": ["w8a8"],
    "num_sequences": 2,
    "window": 8,
    "streaming_keep": [0, 1],
    "streaming_length": 24,
    "streaming_sequences": 2,
}

FIVE_SEEDS = [42, 123, 1000, 7, 2024]
