"""Predictions of every preset, and theory at fifty random architectures, lengths and numbers of inputs."""

import functools

import numpy as np

from bornbiased_jax.config import PRESETS, ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.prediction import predict
from tests.golden.record import NIGHTLY, Case, Tolerance, Value, Values

# Float64 throughout; quadratures and root searches stop at relative errors of some 1e-9.
TOLERANCE = Tolerance(1e-6, 1e-12)
NUM_RANDOM = 50
GROUPS = 5


def _prediction(cfg: ModelConfig, seq_len: int, num_inputs: int | None, tokens: bool) -> dict[str, Value]:
    values = predict(cfg, seq_len, num_inputs=num_inputs, tokens=tokens)
    return {key: _scalars(value) for key, value in values.items()}


def _scalars(value: object) -> Value:
    """Sixteen entries of a list, the means of rows of a matrix; scalars as they are."""
    if not isinstance(value, list) or not value:
        return value  # type: ignore[return-value]
    row = np.asarray(value, np.float64)
    row = row.mean(axis=1) if row.ndim == 2 else row
    return [float(x) for x in row[np.unique(np.linspace(0, len(row) - 1, 16).astype(int))]]


def _preset(name: str) -> Values:
    try:
        return _prediction(PRESETS[name], 64, 1000, True)
    except InputError:  # layers that differ, and experts
        return {"refused": True}


def random_arguments(index: int) -> tuple[ModelConfig, int, int | None, bool]:
    """Draw an architecture, a length, a number of inputs and their kind; equal for equal indices."""
    rng = np.random.default_rng(1000 + index)

    def pick(*choices: object) -> object:
        return choices[rng.integers(len(choices))]

    heads, head_dim = int(rng.choice([1, 2, 4])), int(rng.choice([8, 16]))
    parallel = rng.random() < 0.15
    changes: dict[str, object] = {
        "num_layers": int(rng.integers(1, 9)),
        "num_heads": heads,
        "num_kv_heads": int(pick(1, heads)),  # type: ignore[call-overload]
        "head_dim": head_dim,
        "d_model": int(rng.integers(2, 9)) * 32,
        "d_ff": int(rng.integers(2, 9)) * 48,
        "vocab_size": int(rng.integers(100, 40_000)),
        "norm": pick("layernorm", "rmsnorm", "none"),
        "norm_position": "pre" if parallel else pick("pre", "pre", "post"),
        "activation": pick("gelu", "gelu_tanh", "relu", "tanh", "silu"),
        "gated_mlp": bool(rng.random() < 0.4),
        "residual": bool(parallel or rng.random() < 0.85),
        "parallel_residual": parallel,
        "attention": bool(parallel or rng.random() < 0.9),
        "tie_embeddings": bool(rng.random() < 0.5),
        "positions": pick("rope", "learned", "none"),
        "qk_norm": bool(rng.random() < 0.2),
        "window": pick(None, None, None, 7),
        "attention_kernel": pick("softmax", "softmax", "softmax", "sigmoid"),
        "positional_scale": pick("none", "none", "amplify", "attenuate"),
        "head_norm": bool(rng.random() < 0.15),
        "output_gate": pick("none", "none", "none", "headwise", "elementwise"),
        "init": pick("gpt2-scaled", "normal-0.02"),
    }
    cfg = PRESETS["gpt2-tiny"].replace(**changes)
    return cfg, int(rng.integers(2, 200)), pick(None, 50, 2000), bool(rng.random() < 0.7)  # type: ignore[return-value]


def _random(group: int) -> Values:
    rows: dict[str, Value] = {}
    for index in range(group, NUM_RANDOM, GROUPS):
        try:
            # Without norms the variance can overflow, which NumPy warns of: the refusal is golden, its words are not.
            with np.errstate(all="ignore"):
                values = _prediction(*random_arguments(index))
        except InputError:
            values = {"refused": True}
        rows |= {f"{index} {key}": value for key, value in values.items()}
    return rows


DAILY = ("gpt2-tiny", "qwen3-tiny")
CASES = {name: Case(functools.partial(_preset, name), marks=() if name in DAILY else NIGHTLY) for name in PRESETS}
CASES |= {f"random {group}": Case(functools.partial(_random, group), marks=NIGHTLY) for group in range(GROUPS)}
