"""Initial weights of every preset, seed and scheme, bit for bit.

Weights are drawn in a process of their own that compiles as users do: the last bit of a normal draw is the compiler's.
"""

import functools
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np

from bornbiased_jax.config import PRESETS, ModelConfig
from bornbiased_jax.init import init_seed
from bornbiased_jax.parameters import flatten
from tests.golden.record import NIGHTLY, Case, Tolerance, Values

# Only hashes: nothing here is compared within a tolerance.
TOLERANCE = Tolerance(0.0, 0.0)
SEEDS = (0, 42)
SCHEMES = ("gpt2-scaled", "normal-0.02")
ROWS = 1000
TINY = tuple(name for name in PRESETS if name.endswith("-tiny"))
NANO = ("gpt2-nano", "llama-nano", "qwen-nano", "qwen3-nano", "gpt2-small")
LARGE = (*NANO, "gpt2-1.2b")

# Fields that add parameters which no preset has.
RARE: dict[str, object] = {
    "bias": True,
    "positions": "learned",
    "max_seq_len": 33,
    "output_gate": "elementwise",
    "sink_logit": "learned",
    "head_norm": True,
    "qk_norm": True,
    "prefix_length": 3,
    "prefix_memory": "elu",
}


def digest(cfg: ModelConfig, seed: int, *, sampled: bool) -> str:
    """Hash paths, shapes and bytes of all initial weights; ``sampled``: of first and last block and 1,000 rows."""
    hasher = hashlib.sha256()
    for path, leaf in flatten(init_seed(cfg, seed)).items():
        array = np.asarray(leaf)
        hasher.update(f"{path} {array.shape}\n".encode())
        for part in _sampled(path, array) if sampled else (array,):
            hasher.update(np.ascontiguousarray(part).tobytes())
    return hasher.hexdigest()


def _sampled(path: str, array: np.ndarray) -> Iterator[np.ndarray]:
    if path.startswith("blocks/"):
        yield from (array[0], array[-1])
    else:
        yield array[:, :ROWS] if path.startswith("head/") else array[:ROWS]


def digests(group: str) -> dict[str, str]:
    """Hash the weights of a group of configurations: ``tiny``, ``rare``, ``nano``, ``large``."""
    if group == "rare":
        configs = {"rare": PRESETS["llama-tiny"].replace(**RARE)}
    else:
        configs = {name: PRESETS[name] for name in {"tiny": TINY, "nano": NANO[:3], "large": LARGE}[group]}
    # Of larger models one draw a preset, of the largest all of them in full.
    pairs = [(42, "gpt2-scaled")] if group == "nano" else [(s, k) for s in SEEDS for k in SCHEMES]
    return {
        f"{name} {scheme} seed {seed}": digest(cfg.replace(init=scheme), seed, sampled=group == "nano")
        for name, cfg in configs.items()
        for seed, scheme in pairs
    }


@functools.cache
def _in_own_process(*groups: str) -> dict[str, Values]:
    code = "import json; from tests.golden.initialization import digests; "
    code += f"print(json.dumps({{group: digests(group) for group in {groups!r}}}))"
    env = {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows: dict[str, Values] = json.loads(done.stdout)
    return rows


CASES = {
    "tiny": Case(lambda: _in_own_process("tiny", "rare")["tiny"]),
    "rare": Case(lambda: _in_own_process("tiny", "rare")["rare"]),
    "nano": Case(lambda: _in_own_process("nano")["nano"], marks=NIGHTLY),
    "large": Case(lambda: _in_own_process("large")["large"], marks=NIGHTLY),
}
