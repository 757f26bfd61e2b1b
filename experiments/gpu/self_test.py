"""What must hold on any device: the bits of keys, normals within their bound, products that are float32, attention.

The environment is told beside it. A check that does not hold is a result: the others go on.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from bornbiased_jax import doctor, keys, models
from bornbiased_jax.checkpoints.digests import digest
from bornbiased_jax.checkpoints.storage import first_line
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.inputs import random_tokens
from bornbiased_jax.models.fused import fused_attention
from bornbiased_jax.seedprint.outputs import last_outputs
from bornbiased_jax.stats.permutations import drawn_sums, moments
from bornbiased_jax.stats.ranks import rank_correlation
from experiments.gpu import measured

KEY_BITS = "1d6d7a7a34bfd7986c8eaa21c16d6c203c411fa8ef506a596752894b958ff214"
"""SHA-256 of a thousand words of the key of layer 3 of ``blocks/mlp/up/kernel`` of seed 42."""
TOKENS = "230983a78712be494c9817952032c979649a297adcf3d0aa070113ef2bf85d0a"
"""Digest of the inputs of tests/test_inputs.py: 4 sequences of 6 ids of 50,304, seed 0."""

SETTINGS: dict[str, dict[str, Any]] = {
    "smoke": dict(
        draws=20_000,
        attention=dict(B=1, T=32, H=4, G=2, K=16, windows=[8]),
        seeds=[42, 43],
        num_inputs=60,
        permutations=2_000,
    ),
    "gpu": dict(
        draws=3_000_000,
        attention=dict(B=4, T=2048, H=12, G=4, K=64, windows=[None, 512]),
        seeds=[42, 43],
        num_inputs=2_000,
        permutations=20_000,
    ),
}

# In units of the last place of bfloat16, 2⁻⁸: rounding of the operands alone gives half of one.
ATTENTION_BOUND = 4 * 2.0**-8
# Of logits in their standard deviations: float32 sums of a few hundred terms, a few blocks deep. TF32 would give 1e-3.
LOGITS_BOUND = 1e-4
SMALL: dict[str, Any] = dict(num_layers=3, vocab_size=512)


def run(settings: Mapping[str, Any], folder: Path, seconds: float) -> dict[str, Any]:
    """The environment, and what must hold on any device."""
    checks: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
        "key bits": key_bits,
        "inputs": inputs,
        "normals": normals,
        "one seed, one birth": births,
        "logits beside the CPU's": logits,
        "fused attention": attention,
        "permutation moments": permutation_moments,
    }
    results = {name: _checked(check, settings) for name, check in checks.items()}
    return {
        "passed": all(row["passed"] is not False for row in results.values()),
        "checks": results,
        "environment": environment(),
    }


def _checked(check: Callable[[Mapping[str, Any]], dict[str, Any]], settings: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return check(settings)
    except Exception as error:  # a check that cannot be made is one that does not hold
        return {"passed": False, "error": f"{type(error).__name__}: {first_line(error)}"}


def environment() -> dict[str, Any]:
    """What is installed, and what the driver calls the devices."""
    told = doctor.diagnose()
    return {
        **{name: told[name] for name in ("python", "libraries", "backend", "devices", "cores", "memory_bytes")},
        "compute_capability": str(getattr(jax.local_devices()[0], "compute_capability", "")),
        "driver": _driver(),
    }


def _driver() -> str | None:
    """Names, drivers and memory as the driver's own tool tells them; None without one."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def key_bits(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Integer draws, bit for bit."""
    leaf = keys.leaf_key(keys.init_key(42), "blocks/mlp/up/kernel")
    bits = jax.random.bits(jax.random.fold_in(leaf, 3), (1000,), "uint32")
    made = hashlib.sha256(np.asarray(bits).astype("<u4").tobytes()).hexdigest()
    return {"passed": made == KEY_BITS, "digest": made}


def inputs(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Ids of random inputs, by their digest."""
    made = random_tokens(4, 6, 50_304, seed=0).digest
    return {"passed": made == TOKENS, "digest": made}


def normals(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Normal draws against the inverse error function in float64, over the bound."""
    shape, lowest = (settings["draws"],), np.nextafter(np.float32(-1), np.float32(0))
    drawn = np.asarray(jax.random.normal(keys.init_key(7), shape, jnp.float32), np.float64)
    uniform = np.asarray(jax.random.uniform(keys.init_key(7), shape, jnp.float32, lowest, 1.0), np.float64)
    exact = np.sqrt(2.0) * special.erfinv(uniform)
    worst = float(np.max(np.abs(drawn - exact) / keys.normal_error_bound(exact)))
    return {"passed": worst <= 1.0, "largest_error_over_bound": worst}


def births(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same weights, bit for bit, eager, jitted, vmapped and mapped."""
    cfg = preset("llama-tiny", **SMALL)
    seeds = np.asarray(settings["seeds"], np.uint32)
    ways = {
        "eager": models.init_seed(cfg, int(seeds[0])),
        "jit": jax.jit(lambda seed: models.init_seed(cfg, seed))(seeds[0]),
        "vmap": _first(jax.jit(jax.vmap(lambda seed: models.init_seed(cfg, seed)))(seeds)),
        "map": _first(jax.jit(lambda all: jax.lax.map(lambda seed: models.init_seed(cfg, seed), all))(seeds)),
    }
    made = {name: digest(params) for name, params in ways.items()}
    return {"passed": len(set(made.values())) == 1, "digests": made}


def _first(params: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[0], params)


def logits(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Logits of one birth here and on the CPU, in their standard deviations."""
    cfg = preset("llama-tiny", **SMALL)
    tokens_BT: Any = random_tokens(8, 64, cfg.vocab_size).batch(0, 8)
    try:
        cpu = jax.devices("cpu")[0]
    except RuntimeError:
        return {"passed": None, "why": "this process has no CPU device beside"}
    with jax.default_device(cpu):
        params = models.init_seed(cfg, 42)
        exact = np.asarray(models.apply(cfg, params, tokens_BT).logits_BTV, np.float64)
    moved = jax.device_put(params, jax.local_devices()[0])
    here = np.asarray(jax.jit(lambda p, x: models.apply(cfg, p, x).logits_BTV)(moved, tokens_BT), np.float64)
    worst = float(np.max(np.abs(here - exact)) / np.std(exact))
    return {"passed": worst <= LOGITS_BOUND, "largest_error_in_std": worst, "bound": LOGITS_BOUND}


def attention(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The fused kernel in bfloat16 and its gradients beside the plain formula in float32.

    The plain formula on the same bfloat16 numbers says what rounding alone does: the kernel may be twice as far off.
    """
    B, T, H, G, K = (settings["attention"][name] for name in "BTHGK")
    rng = np.random.default_rng(0)
    shapes = ((B, T, H, K), (B, T, G, K), (B, T, G, K), (B, T, H, K))
    q, k, v, out = (jnp.asarray(rng.standard_normal(shape, np.float32), jnp.bfloat16) for shape in shapes)
    rows: list[dict[str, Any]] = []
    for window in settings["attention"]["windows"]:

        def kernel(q: jax.Array, k: jax.Array, v: jax.Array, window: int | None = window) -> Any:
            return fused_attention(q, k, v, window)

        if kernel(q, k, v) is None:
            return {"passed": None, "why": "no fused kernel takes these arrays here: the plain formula serves"}

        def plain(q: jax.Array, k: jax.Array, v: jax.Array, window: int | None = window) -> jax.Array:
            return _plain(q, k, v, window)

        exact = _with_gradients(plain, *(array.astype(jnp.float32) for array in (q, k, v, out)))
        fused, rounded = (_with_gradients(attend, q, k, v, out) for attend in (kernel, plain))
        for name, true, mine, other in zip(("output", "dq", "dk", "dv"), exact, fused, rounded, strict=True):
            rows.append(
                {"window": window, "what": name, "fused": _relative(mine, true), "plain": _relative(other, true)}
            )
    passed = all(row["fused"] <= max(ATTENTION_BOUND, 2 * row["plain"]) for row in rows)
    return {"passed": passed, "bound": ATTENTION_BOUND, "relative_errors": rows}


def _plain(q_BTHK: jax.Array, k_BTGK: jax.Array, v_BTGK: jax.Array, window: int | None) -> jax.Array:
    H, G = q_BTHK.shape[2], k_BTGK.shape[2]
    k, v = (jnp.repeat(array, H // G, axis=2) for array in (k_BTGK, v_BTGK))
    scores = jnp.einsum("BTHK,BSHK->BHTS", q_BTHK, k, precision="highest").astype(jnp.float32)
    distance = jnp.arange(q_BTHK.shape[1])[:, None] - jnp.arange(q_BTHK.shape[1])[None, :]
    seen = (distance >= 0) if window is None else (distance >= 0) & (distance < window)
    weights = jax.nn.softmax(jnp.where(seen[None, None], scores / np.sqrt(q_BTHK.shape[3]), -jnp.inf), axis=-1)
    return jnp.einsum("BHTS,BSHK->BTHK", weights.astype(v.dtype), v, precision="highest")


def _with_gradients(attend: Any, q: jax.Array, k: jax.Array, v: jax.Array, out: jax.Array) -> list[np.ndarray]:
    made, back = jax.vjp(jax.jit(attend), q, k, v)
    return [np.asarray(array, np.float64) for array in (made, *back(out.astype(made.dtype)))]


def _relative(mine: np.ndarray, true: np.ndarray) -> float:
    return float(np.linalg.norm(mine - true) / np.linalg.norm(true))


def permutation_moments(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Outputs of this device under the exact test: its moments beside drawn permutations, and two births apart."""
    cfg: ModelConfig = preset("llama-tiny", **SMALL)
    asked = random_tokens(settings["num_inputs"], 16, cfg.vocab_size)
    here, other = (last_outputs(cfg, models.init_seed(cfg, seed), asked) for seed in settings["seeds"])
    unrelated, own = rank_correlation(here, other), rank_correlation(here, here)
    mean, variance = (float(value) for value in moments(unrelated))
    sums = drawn_sums(unrelated, settings["permutations"], seed=0)
    # In standard errors: of a mean of so many draws, and of their variance (about normal, so √(2/n)).
    count = len(sums)
    mean_off = float((sums.mean() - mean) / np.sqrt(variance / count))
    variance_off = float((sums.var(ddof=1) / variance - 1) / np.sqrt(2 / count))
    z = [float((np.trace(cross) - moments(cross)[0]) / np.sqrt(moments(cross)[1])) for cross in (own, unrelated)]
    passed = max(abs(mean_off), abs(variance_off), abs(z[1])) < 5 < z[0]
    return {"passed": passed, "mean_off": mean_off, "variance_off": variance_off, "z_own": z[0], "z_unrelated": z[1]}


def main(arguments: list[str] | None = None) -> int:
    """Check and write the record."""
    return measured.run(run, SETTINGS, arguments)


if __name__ == "__main__":
    sys.exit(main())
