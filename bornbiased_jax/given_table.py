"""The top-1 token's fraction over seeds that share one embedding table, one head and one table of positions.

Model. As in ``theory.preference``: a seed's final states lie around a direction m, and the logit of token v is
√ρ w_v·m + √(1 − ρ) w_v·ĝ for an input's own part ĝ. There the rows w_v are drawn anew for each seed; here they are
those of the table that is held fixed, and m is drawn: what all inputs of every seed have in common, the last
position's row and the mean of the token table, keeps its part of m, and the rest is uniform. Of ĝ the scale of each
token's noise is known up to the anisotropy of the states (``theory.logits``). Directions, inputs and nothing else are
sampled.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy import special

import theory.preference
from bornbiased_jax import hardware, keys
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.models.initialise import FIXABLE, distributions
from bornbiased_jax.predict import stack_of
from theory.mean_field import profile
from theory.predict import contraction, scatter

DIRECTIONS = 96
"""Drawn directions, a seed's worth each: the 10th and 90th percentile are then known to 3 percentiles."""
NODES = 64
_ROOT_2PI = math.sqrt(2 * math.pi)


class Given(NamedTuple):
    """Of seeds that share their tables, JSON-ready: the mean fraction, and the band that holds 80% of them."""

    mean: float
    p10: float
    p90: float


def fixed_tables(cfg: ModelConfig, seed: int) -> dict[str, np.ndarray]:
    """The tables that births with ``fixed_embedding_seed=seed`` share, by path, bit by bit.

    Example:
        >>> from bornbiased_jax.config import preset
        >>> sorted(fixed_tables(preset("gpt2-tiny", vocab_size=8, d_model=16, num_heads=2), 0))
        ['embed/embedding']
    """
    source = keys.stream_key(seed, "embedding")
    return {
        path: np.asarray(keys.normal(keys.leaf_key(source, path), row.shape, row.std))
        for path, row in distributions(cfg).items()
        if path.startswith(FIXABLE)
    }


def top1_given_table(cfg: ModelConfig, seq_len: int, num_inputs: int, seed: int, *, tokens: bool = True) -> Given:
    """The fraction's mean and 80% band over seeds of births that share the tables of one seed.

    Args:
        cfg: the architecture.
        seq_len: T.
        num_inputs: N, inputs a seed.
        seed: of the shared tables (``--embedding-seed``).
        tokens: inputs are uniform random tokens; else Gaussian vectors.

    Raises:
        ValueError: what theory refuses.
        InputError: the tables do not fit.
    """
    cells = cfg.vocab_size * (2 * cfg.d_model + 6 * NODES)
    hardware.check_memory(8.0 * cells, f"a table of {cfg.vocab_size:,} tokens", "leave --theory out", on_host=True)
    with jax.default_matmul_precision("highest"):
        tables = fixed_tables(cfg, seed)
    found = profile(stack_of(cfg, tokens=tokens), seq_len)
    cosine = contraction(found)
    head_VD = tables["embed/embedding"] if cfg.tie_embeddings else tables["head/kernel"].T
    head_VD = head_VD / head_VD.std()
    rho, rho_std = float(np.clip(cosine.mean[-1], 0.0, 1.0)), float(cosine.seed_std[-1])
    variance = float(found.variance[-1, -1])
    common_D = np.zeros(cfg.d_model) if not tokens else tables["embed/embedding"].mean(axis=0, dtype=np.float64)
    if cfg.positions == "learned":
        common_D = common_D + tables["positions/embedding"][seq_len - 1]
    part = 0.0
    if cfg.residual and rho > 0 and variance > 0:
        part = min(1.0, math.sqrt(float(common_D @ common_D) / cfg.d_model / (rho * variance)))
    lost = 0.0
    if cfg.tie_embeddings and tokens and cfg.residual and variance > 0:
        aligned = math.sqrt(min(cfg.embedding_std**2 / variance, 1.0))
        lost = theory.preference.tied_last_token_fraction(rho, cfg.vocab_size, cfg.d_model, aligned)
    states = scatter(found)
    fractions = _draw(head_VD, common_D, part, (rho, rho_std), states, lost, num_inputs)
    low, high = np.quantile(fractions, [0.1, 0.9], method="inverted_cdf")
    return Given(float(fractions.mean()), float(low), float(high))


def _draw(
    head_VD: np.ndarray,
    common_D: np.ndarray,
    part: float,
    cosine: tuple[float, float],
    states: Any,
    lost: float,
    num_inputs: int,
) -> np.ndarray:
    """Fractions of ``DIRECTIONS`` seeds."""
    generator = np.random.default_rng(0)
    V, D = head_VD.shape
    length = np.linalg.norm(common_D)
    along_D = common_D / length if length > 0 else common_D
    square_V = np.einsum("vd,vd->v", head_VD, head_VD, dtype=np.float64) / D
    extra = math.sqrt(2 * max(states.anisotropy - 1, 0.0) / D)
    fractions = []
    for _ in range(DIRECTIONS):
        rho = float(np.clip(cosine[0] + cosine[1] * generator.standard_normal(), 0.0, 1.0 - 1e-9))
        free_D = generator.standard_normal(D)
        free_D -= (free_D @ along_D) * along_D
        m_D = part * along_D + math.sqrt(1 - part**2) * free_D / np.linalg.norm(free_D)
        a_V = (head_VD @ m_D.astype(np.float32)).astype(np.float64)
        lean = min(states.lean, (1 - rho) / 2)
        scale_V = square_V * np.maximum(1 + extra * generator.standard_normal(V), 1e-3)
        noise_V = np.sqrt((1 - rho - lean) * scale_V + lean * a_V**2)
        p_V = _probabilities(math.sqrt(rho) * a_V, noise_V, D / states.anisotropy)
        p_V = (1 - lost) * p_V / p_V.sum() + lost / V
        fractions.append(generator.multinomial(num_inputs, p_V / p_V.sum()).max() / num_inputs)
    return np.array(fractions)


def _probabilities(mean_V: np.ndarray, noise_V: np.ndarray, dimensions: float) -> np.ndarray:
    """Of each token to have the largest logit, ∫ φ_v Π_{u≠v} Φ_u; logits independent given the table.

    An input's own part has a fixed length, so that its projection on a row has lighter tails than a normal one: of
    a sphere in n dimensions, e is as far out as a normal z = e (1 + (e² − 3)/4n), to first order in 1/n.
    """
    # The largest logit lies where the expected number above falls from 40 to 1e-9; the noise's reach bounds it.
    high = float((mean_V + 7 * noise_V).max())
    low = float((mean_V - noise_V).max())
    for _ in range(40):  # bisection: Σ_u P(logit_u > x) = 40 or, of few tokens, their number
        middle = (low + high) / 2
        above = special.ndtr((mean_V - middle) / noise_V).sum()
        low, high = (middle, high) if above > min(40.0, 0.9 * len(mean_V)) else (low, middle)
    start, end = low, float((mean_V + 7 * noise_V).max())
    x_X = np.linspace(start - 0.5 * float(noise_V.max()), end, NODES)
    e_VX = (x_X - mean_V[:, None]) / noise_V[:, None]
    z_VX = e_VX * (1 + (np.clip(e_VX**2, 0, dimensions) - 3) / (4 * dimensions))
    log_below_VX = special.log_ndtr(z_VX)
    density_VX = np.exp(-(z_VX**2) / 2 - log_below_VX) / (_ROOT_2PI * noise_V[:, None])
    return np.asarray(density_VX @ np.exp(log_below_VX.sum(axis=0)) * (x_X[1] - x_X[0]))
