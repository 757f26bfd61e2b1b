"""Do two models compute the same? Logits on a few probe ids, one model in memory after the other."""

from __future__ import annotations

import functools

import jax
import numpy as np

from bornbiased_jax import hardware
from bornbiased_jax.checkpoints.reader import WeightsReader
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.models import Params, apply, count_parameters, distributions, parameter_shapes, unflatten

# Few ids suffice: logits of unrelated models agree nowhere.
_SEQUENCES, _LENGTH = 4, 8
# Agreement up to this part of the logits' standard deviation: what float32 leaves of a rotated copy.
_SAME = 1e-3
# Logits that vary less than this part of their size do not depend on the ids.
_CONSTANT = 1e-5
# Bytes a parameter takes while a model is put together and run: itself, and at worst a second copy.
_BYTES = 8


def same_logits(base: WeightsReader, suspect: WeightsReader) -> bool | None:
    """Whether two models give the same logits on random ids, up to a constant at each position.

    Returns:
        None where that says nothing: other vocabularies, two births (their seeds tell), logits that do not vary over
        ids (as with a head of zeros), or a model that does not fit in memory.
    """
    if base.cfg.vocab_size != suspect.cfg.vocab_size or (base.is_birth and suspect.is_birth):
        return None
    needed = max(_BYTES * count_parameters(parameter_shapes(reader.cfg)) for reader in (base, suspect))
    free = hardware.available_memory()
    if free is not None and needed > free:
        return None
    length = min(_LENGTH, base.cfg.max_seq_len, suspect.cfg.max_seq_len)
    ids_ST = np.random.default_rng(0).integers(0, base.cfg.vocab_size, (_SEQUENCES, length), dtype=np.int32)
    ours_PV = probe_logits(base, ids_ST)
    if not _vary(ours_PV):
        return None
    theirs_PV = probe_logits(suspect, ids_ST)
    return bool(_vary(theirs_PV) and np.abs(ours_PV - theirs_PV).max() <= _SAME * ours_PV.std())


def probe_logits(reader: WeightsReader, ids_ST: np.ndarray) -> np.ndarray:
    """Logits less their mean over the vocabulary, of every position: [S · T, V]. The model is gone afterwards."""
    logits_STV = np.asarray(_logits(reader.cfg, whole(reader), ids_ST), np.float32)
    logits_PV = logits_STV.reshape(-1, logits_STV.shape[-1])
    return logits_PV - logits_PV.mean(axis=1, keepdims=True)


def whole(reader: WeightsReader) -> Params:
    """All parameters of a model, as :func:`bornbiased_jax.models.init` lays them out."""
    flat = {}
    for path, row in distributions(reader.cfg).items():
        if row.stacked:
            flat[path] = np.stack([reader.read(path, layer) for layer in range(row.shape[0])])
        else:
            flat[path] = reader.read(path)
    return unflatten(flat)


@functools.partial(jax.jit, static_argnums=0)
def _logits(cfg: ModelConfig, params: Params, ids_ST: jax.Array) -> jax.Array | None:
    return apply(cfg, params, ids_ST).logits_BTV


def _vary(logits_PV: np.ndarray) -> bool:
    return bool(logits_PV.std(axis=0).max() > _CONSTANT * max(float(np.abs(logits_PV).max()), 1e-30))
