"""Records of `probe` on untrained models: top-1 tokens, contraction vectors, several sweeps of the same seeds."""

import functools
from typing import Literal

from bornbiased_jax.config import PRESETS
from bornbiased_jax.probes import ProbeOptions, probe, untrained
from bornbiased_jax.probes.inputs import parse_inputs
from tests.golden.record import NIGHTLY, Case, Tolerance, Value, Values

# Cosines of float32 states, some of them differences of near-equal sums, over 300 inputs.
TOLERANCE = Tolerance(1e-3, 2e-6)
OFTEN = {"gpt2-tiny tokens vmap": (), "gpt2-tiny gaussian map": ("slow",)}
SEEDS = (0, 42, 2**32 - 1)
MODELS: dict[str, dict[str, object]] = {
    "gpt2-tiny": {"init": "normal-0.02"},
    "llama-tiny": {},
    "qwen-tiny": {},
    "qwen3-tiny": {},
    "neox-tiny": {"init": "normal-0.02"},
    "olmo2-tiny": {},
}


def _records(name: str, inputs: str, mode: Literal["vmap", "map"]) -> Values:
    cfg = PRESETS[name].replace(d_model=64, num_layers=3, vocab_size=512, **MODELS[name])
    sequences = parse_inputs(inputs, num_inputs=300, seq_len=16, cfg=cfg)
    values: dict[str, Value] = {"inputs_digest": sequences.digest}
    for record in probe(untrained(cfg), SEEDS, sequences, ProbeOptions(intra=True, mode=mode, batch_size=64)):
        preference, contraction = record["preference"], record["contraction"]
        seed = f"seed {record['seed']}"
        # Ids and counts are exact: logits of float32 hardly ever tie, and these do not.
        values |= {f"{seed} {key}": value for key, value in preference.items()}
        values |= {f"{seed} {key}": value for key, value in contraction.items()}
        values[f"{seed} direction_token"] = record["direction_token"]
    return values


CASES = {
    f"{name} {inputs} {mode}": Case(
        functools.partial(_records, name, inputs, mode),
        # Often each kind of inputs and each kind of sweep.
        marks=OFTEN.get(f"{name} {inputs} {mode}", NIGHTLY),
    )
    for name in MODELS
    for inputs in (("tokens", "gaussian") if name in ("gpt2-tiny", "llama-tiny") else ("tokens",))
    for mode in (("vmap", "map") if name in ("gpt2-tiny", "llama-tiny") else ("map",))
}
