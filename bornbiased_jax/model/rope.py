"""Rotary position embeddings in the half-split layout of Hugging Face checkpoints."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.config import ModelConfig


def frequencies(cfg: ModelConfig, *, is_local: bool = False) -> np.ndarray:
    """Return angular frequencies [rotary_dim / 2] in radians per position (Su et al., 2021), scaled as the config says.

    "linear" divides all by the factor. "llama3" leaves wavelengths shorter than
    original/high_freq_factor alone, divides those longer than original/low_freq_factor by the factor,
    and interpolates between (Llama 3.1).
    """
    dim = cfg.rotary_dim
    if is_local and cfg.rope_local_theta is not None:
        return cfg.rope_local_theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    base = cfg.rope_theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    if cfg.rope_scaling == "linear":
        return base / cfg.rope_scaling_factor
    if cfg.rope_scaling == "llama3":
        wavelength = 2 * math.pi / base
        low, high = cfg.rope_low_freq_factor, cfg.rope_high_freq_factor
        smooth = np.clip((cfg.rope_original_max_seq_len / wavelength - low) / (high - low), 0.0, 1.0)
        return base * (smooth + (1 - smooth) / cfg.rope_scaling_factor)
    return base


def rotate(x_BTHK: jax.Array, positions_T: jax.Array, cfg: ModelConfig, is_local: jax.Array | None = None) -> jax.Array:
    """Rotate the first ``rotary_dim`` of each head's K dimensions by position × frequency.

    ``is_local`` says whether this layer is a local one, where layers differ.
    """
    dim = cfg.rotary_dim
    if dim == 0:
        return x_BTHK
    frequency_F = jnp.asarray(frequencies(cfg), jnp.float32)
    if is_local is not None:
        frequency_F = jnp.where(is_local, jnp.asarray(frequencies(cfg, is_local=True), jnp.float32), frequency_F)
    angles_TF = positions_T.astype(jnp.float32)[:, None] * frequency_F[None, :]
    cos_1T1F = jnp.cos(angles_TF)[None, :, None, :]
    sin_1T1F = jnp.sin(angles_TF)[None, :, None, :]
    first, second, rest = jnp.split(x_BTHK.astype(jnp.float32), [dim // 2, dim], axis=-1)
    rotated = [first * cos_1T1F - second * sin_1T1F, second * cos_1T1F + first * sin_1T1F, rest]
    return jnp.concatenate(rotated, axis=-1).astype(x_BTHK.dtype)
