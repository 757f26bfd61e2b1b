"""From a checkpoint and a list of changes to a descendant of known origin."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from bornbiased_jax.adapt.changes import Change, Context
from bornbiased_jax.adapt.damage import Model
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.digests import digest
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import apply
from bornbiased_jax.models.parameters import Params

# Sequences of tokens on which the function is compared, and their length at most.
_SEQUENCES, _LENGTH = 4, 16
# Logits of one function agree up to this part of their standard deviation: float32 leaves less.
_SAME = 1e-3


@dataclasses.dataclass(frozen=True, eq=False)
class Derived:
    """A changed model.

    Attributes:
        cfg, params: the model, in NumPy and float32.
        preserved: whether every change leaves the function alone.
        logit_difference: the largest difference of logits from the parent's on random tokens whose logits are to
            stay, in their standard deviations; None where the function changed.
        base_digest, digest: of the weights before and after.
    """

    cfg: ModelConfig
    params: Params
    preserved: bool
    logit_difference: float | None
    base_digest: str
    digest: str


def derive(checkpoint: Checkpoint, changes: Sequence[Change], context: Context) -> Derived:
    """Apply changes in order, and check by logits that the function stays where each of them says so.

    Args:
        checkpoint: the parent.
        changes: at least one.
        context: seed of what is drawn, token ids in use.

    Raises:
        InputError: no change, one that the model does not allow, or weights so far out of proportion that float32
            does not hold the changed function.
    """
    if not changes:
        raise InputError("no change: give at least one, as in --change rotate:7")
    before: Model = (checkpoint.cfg, jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), checkpoint.params))
    model = before
    kept_V = np.ones(checkpoint.cfg.vocab_size, bool)
    for change in changes:
        shared = min(len(kept_V), model[0].vocab_size)
        if change.kind.preserves:
            # Ids appended by an earlier change are none of the parent's.
            kept_V[:shared] &= change.kept(model[0], context)[:shared]
            kept_V[shared:] = False
        model = change.apply(model, context)
    preserved = all(change.kind.preserves for change in changes)
    difference = None
    if preserved and kept_V.any():
        difference = logit_difference(before, model, np.flatnonzero(kept_V))
        if difference > _SAME:
            raise InputError(
                f"{', '.join(change.text for change in changes)} should leave the function alone, and moved logits by "
                f"{difference:.2g} of their standard deviation: the weights are out of float32's proportions; make "
                "fewer changes at once"
            )
    return Derived(*model, preserved, difference, checkpoint.digest(), digest(model[1]))


def logit_difference(ours: Model, theirs: Model, ids_I: np.ndarray) -> float:
    """The largest difference of two models' logits on random tokens of these ids, over these ids.

    Logits are centred over the ids at each position, and the difference is in standard deviations of the first
    model's. Of a model whose logits do not vary, the difference itself.
    """
    length = min(_LENGTH, ours[0].max_seq_len, theirs[0].max_seq_len)
    tokens_ST = np.random.default_rng(0).choice(ids_I, (_SEQUENCES, length)).astype(np.int32)
    logits = []
    for cfg, params in (ours, theirs):
        logits_STI = np.asarray(_logits(cfg, params, tokens_ST))[..., ids_I]
        logits.append(logits_STI - logits_STI.mean(axis=-1, keepdims=True))
    return float(np.abs(logits[0] - logits[1]).max() / (logits[0].std() or 1.0))


def _logits(cfg: ModelConfig, params: Params, tokens_ST: np.ndarray) -> jax.Array:
    run = jax.jit(lambda weights, tokens: apply(cfg, weights, tokens).logits_BTV)
    return run(params, tokens_ST)
