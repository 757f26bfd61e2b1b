"""float32 products by algorithm: which a device takes, how fast each is, and how far from float64."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.code import code_digest
from experiments.gpu import measured, tried

SETTINGS: dict[str, dict[str, Any]] = {
    "smoke": dict(shapes=[[64, 32, 48]], calls=1, repeats=1, rows=16, first_calls=1),
    # Rows of a probe's batch through GPT-2 nano's and the 1.2B model's MLP, and a square.
    "gpu": dict(
        shapes=[[8192, 768, 3072], [8192, 2048, 8192], [8192, 8192, 8192]], calls=8, repeats=5, rows=64, first_calls=2
    ),
}
"""[m, k, n] of products, of which ``rows`` rows are compared with float64."""


def algorithms() -> dict[str, Any]:
    """Name -> what ``precision=`` of a product takes: JAX's three precisions, and every algorithm it has a name for."""
    precisions = {name: getattr(jax.lax.Precision, name) for name in ("HIGHEST", "HIGH", "DEFAULT")}
    presets = {row.name: row for row in jax.lax.DotAlgorithmPreset if row.name not in precisions}
    return precisions | presets


def run(settings: Mapping[str, Any], folder: Path, seconds: float) -> dict[str, Any]:
    """Rates and errors of float32 products by algorithm."""
    known = algorithms()

    def compute(name: str) -> dict[str, Any]:
        rows = [one_shape(known[name], shape, settings) for shape in settings["shapes"]]
        return {"products": rows, "tflops": rows[-1]["tflops"], "error": max(row["error"] for row in rows)}

    return {"algorithms": tried.each(folder / f"products-{code_digest(one_shape)}.json", list(known), compute)}


def one_shape(precision: Any, shape: list[int], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The rate and the errors of one product.

    Returns:
        ``shape``, ``tflops``, ``error`` (‖C − exact‖ / ‖exact‖) and ``largest_error`` (of an entry, in standard
        deviations of the exact entries), of the first rows against float64.
    """
    m, k, n = shape
    rows = settings["rows"]
    on_device, exact = operands(m, k, n, rows)
    multiply = jax.jit(lambda a, b: jnp.matmul(a, b, precision=precision))
    for _ in range(settings["first_calls"]):
        c = multiply(*on_device).block_until_ready()
    taken = []
    for _ in range(settings["repeats"]):
        start = time.perf_counter()
        # Queued, so that launches are hidden as they are within a forward pass.
        jax.block_until_ready([multiply(*on_device) for _ in range(settings["calls"])])
        taken.append((time.perf_counter() - start) / settings["calls"])
    off = np.asarray(c[:rows], np.float64) - exact
    return {
        "shape": shape,
        "tflops": 2.0 * m * k * n / median(taken) / 1e12,
        "error": float(np.linalg.norm(off) / np.linalg.norm(exact)),
        "largest_error": float(np.max(np.abs(off)) / np.std(exact)),
    }


@functools.lru_cache(maxsize=4)
def operands(m: int, k: int, n: int, rows: int) -> tuple[list[jax.Array], np.ndarray]:
    """Two normal matrices on the device, and the first rows of their product in float64."""
    rng = np.random.default_rng([m, k, n])
    a, b = (rng.standard_normal(size, np.float32) for size in ((m, k), (k, n)))
    return [jnp.asarray(a), jnp.asarray(b)], a[:rows].astype(np.float64) @ b.astype(np.float64)


def main(arguments: list[str] | None = None) -> int:
    """Measure and write the record."""
    return measured.run(run, SETTINGS, arguments, precision="float32 by algorithm")


if __name__ == "__main__":
    sys.exit(main())
