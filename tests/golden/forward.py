"""Logits and captured activations of every architecture that the configuration can express."""

import functools

import jax
import numpy as np

from bornbiased_jax.config import PRESETS, ModelConfig
from bornbiased_jax.init import init_seed
from bornbiased_jax.model import apply
from bornbiased_jax.parameters import Params, flatten, unflatten
from tests.golden.record import NIGHTLY, Case, Tolerance, Values

# Float32 activations of four blocks: sums of up to 512 terms in another order differ by some 1e-6 of the value. Where
# a case amplifies rounding errors, such as logits of attention of a thousand in "olmo2" and "gemma3", or an entry is a
# small difference of large numbers, the tolerance is the case's own: the response to other last bits of the weights.
TOLERANCE = Tolerance(2e-4, 2e-6)
# Between two CPUs, values of five variants moved by at most 1.5 times the largest response of four draws.
NUM_DRAWS, SPREADS = 4, 4.0
CAPTURED = (
    "residual",
    "attention_output",
    "attention_weights",
    "attention_received",
    "values",
    "keys",
    "mlp_preactivation",
    "mlp_up",
    "mlp_hidden",
    "attention_update",
    "mlp_update",
    "attention_input",
    "mlp_input",
)
SIZES = dict(num_layers=3, num_heads=4, num_kv_heads=4, head_dim=8, d_model=32, d_ff=48, vocab_size=96, max_seq_len=64)
# A weight large enough that activations, gates and softmax are away from their linear parts.
GAIN = 20.0

VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "gpt2": ("gpt2-tiny", {}),
    "gpt2 learned positions": ("gpt2-tiny", {"positions": "learned", "activation": "gelu_tanh"}),
    "gpt2 relu no norm": ("gpt2-tiny", {"activation": "relu", "norm": "none"}),
    "gpt2 tanh no positions": ("gpt2-tiny", {"activation": "tanh", "positions": "none"}),
    "attention only": ("gpt2-tiny", {"mlp": False}),
    "mlp only": ("gpt2-tiny", {"attention": False}),
    "no residual": ("gpt2-tiny", {"residual": False}),
    "llama": ("llama-tiny", {}),
    "llama grouped window": ("llama-tiny", {"num_kv_heads": 2, "window": 5}),
    "llama linear rope": ("llama-tiny", {"rope_scaling": "linear", "rope_scaling_factor": 4.0}),
    "llama3 rope": (
        "llama-tiny",
        {"rope_scaling": "llama3", "rope_scaling_factor": 8.0, "rope_original_max_seq_len": 32},
    ),
    "qwen2": ("qwen-tiny", {"num_kv_heads": 2}),
    "qwen3": ("qwen3-tiny", {"num_kv_heads": 2}),
    "neox": ("neox-tiny", {}),
    "olmo2": ("olmo2-tiny", {}),
    "sigmoid": ("llama-tiny", {"attention_kernel": "sigmoid"}),
    "softpick": ("llama-tiny", {"attention_kernel": "softpick"}),
    "clipped": ("llama-tiny", {"attention_kernel": "clipped"}),
    "centred": ("llama-tiny", {"attention_kernel": "centred"}),
    "zero sink logit": ("llama-tiny", {"sink_logit": "zero"}),
    "learned sink logit": ("llama-tiny", {"sink_logit": "learned"}),
    "amplify": ("llama-tiny", {"positional_scale": "amplify"}),
    "attenuate": ("llama-tiny", {"positional_scale": "attenuate"}),
    "head norm": ("llama-tiny", {"head_norm": True}),
    "headwise gate": ("llama-tiny", {"output_gate": "headwise"}),
    "elementwise gate": ("llama-tiny", {"output_gate": "elementwise"}),
    "value gate": ("llama-tiny", {"output_gate": "value"}),
    "prefix": ("llama-tiny", {"prefix_length": 3, "prefix_memory": "elu"}),
    "gemma3": ("gemma3-tiny", {"num_kv_heads": 2, "window": 4, "attention_pattern": "lg"}),
    "capped": ("llama-tiny", {"logit_softcap": 2.0}),
    "mixtral": ("mixtral-tiny", {"num_kv_heads": 2}),
    "qwen3_moe": ("qwen3moe-tiny", {}),
}


def _config(name: str) -> ModelConfig:
    preset, changes = VARIANTS[name]
    return PRESETS[preset].replace(**(SIZES | changes))


def model(name: str) -> tuple[ModelConfig, Params]:
    """Return a variant's configuration and its weights, enlarged."""
    cfg = _config(name)
    return cfg, jax.tree.map(lambda leaf: leaf * GAIN, init_seed(cfg, 42))


def activations(cfg: ModelConfig, params: Params) -> Values:
    """Summarize logits and captures, at all positions and at the last one, of tokens and of vectors."""
    tokens = np.random.default_rng(0).integers(0, cfg.vocab_size, (2, 11)).astype(np.int32)
    vectors = np.random.default_rng(1).normal(size=(2, 7, cfg.d_model)).astype(np.float32)
    values: dict[str, list[float]] = {}
    captured = tuple(site for site in CAPTURED if _has(cfg, site))
    whole = apply(cfg, params, tokens, capture=captured)
    values["logits"] = _summary(whole.logits_BTV)
    values["final"] = _summary(whole.final_BTD)
    for site in captured:
        values[site] = _summary(whole.layers[site])
    last = apply(cfg, params, tokens, positions="last")
    values["logits at the last position"] = _summary(last.logits_BTV)
    values["logits of vectors"] = _summary(apply(cfg, params, vectors).logits_BTV)
    return values


def _rounding(name: str) -> dict[str, float]:
    """Measure how far values move when the last bit of every weight does, times :data:`SPREADS`.

    Whatever amplifies the rounding errors of another CPU or compiler amplifies these as well: softmax of large logits,
    norms of small activations.
    """
    cfg, params = model(name)
    values = activations(cfg, params)
    rounding = dict.fromkeys(values, 0.0)
    for draw in range(NUM_DRAWS):
        moved = activations(cfg, _last_bits_moved(params, draw))
        for key, row in values.items():
            moves = np.abs(np.subtract(moved[key], row))  # type: ignore[arg-type]  # lists of floats
            rounding[key] = max(rounding[key], SPREADS * float(moves.max()))
    return rounding


def _last_bits_moved(params: Params, draw: int) -> Params:
    rng = np.random.default_rng(draw)
    last_bit = np.finfo(np.float32).eps
    return jax.tree.map(
        lambda leaf: leaf * (1 + rng.choice([-last_bit, last_bit], leaf.shape)).astype(np.float32), params
    )


def _longer_rope(cfg: ModelConfig, params: Params) -> tuple[ModelConfig, Params]:
    return cfg.replace(rope_theta=1.01 * cfg.rope_theta), params


def _negated_head(cfg: ModelConfig, params: Params) -> tuple[ModelConfig, Params]:
    """Negate what the first head of the first block writes."""
    flat = flatten(params)
    path = "blocks/attention/output/kernel"
    flat[path] = flat[path].at[0, : cfg.head_dim].multiply(-1.0)
    return cfg, unflatten(flat)


def _has(cfg: ModelConfig, site: str) -> bool:
    if cfg.num_experts is not None and site in ("mlp_preactivation", "mlp_up", "mlp_hidden"):
        return False
    mlp = site.startswith("mlp")
    return site == "residual" or (cfg.mlp if mlp else cfg.attention)


def _summary(x: jax.Array | None) -> list[float]:
    """Root mean square, mean, and eight entries rounding over the array."""
    array = np.asarray(x, np.float64)
    entries = array.reshape(-1)[np.linspace(0, array.size - 1, 8).astype(int)]
    return [float(np.sqrt(np.mean(array**2))), float(array.mean()), *entries.tolist()]


def _values(name: str) -> Values:
    return activations(*model(name))


FAULTS = {"RoPE base changed by 1%": _longer_rope, "one head negated": _negated_head}
# One variant of each kind every day; tests/model compares the others with their formulas.
NIGHTS = ("gpt2 relu no norm", "gpt2 tanh no positions", "no residual", "llama linear rope", "olmo2", "softpick")
NIGHTS += ("clipped", "zero sink logit", "attenuate", "elementwise gate", "value gate", "mixtral", "mlp only")
NIGHTS += ("gpt2 learned positions", "llama3 rope", "qwen2", "centred", "head norm", "neox", "amplify")
NIGHTS += ("headwise gate", "learned sink logit", "qwen3_moe", "gemma3", "prefix")
OFTEN = ("capped", "sigmoid")
MARKS = {**dict.fromkeys(OFTEN, ("slow",)), **dict.fromkeys(NIGHTS, NIGHTLY)}
CASES = {
    name: Case(functools.partial(_values, name), marks=MARKS.get(name, ()), rounding=functools.partial(_rounding, name))
    for name in VARIANTS
}
