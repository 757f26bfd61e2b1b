"""From a checkpoint and a list of changes to a descendant of known origin."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from bornbiased_jax.checkpoints import Checkpoint, open_checkpoint
from bornbiased_jax.checkpoints.digests import digest
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.derive.changes import Change, ChangeContext
from bornbiased_jax.derive.damage import Model
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.blockwise import probe_outputs
from bornbiased_jax.parameters import Params
from bornbiased_jax.text import Tokenizer

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
        tokenizer: of the parent, None where it has none.
        context: tokens of a sequence in the parent's training, None where it says nothing of that.
    """

    cfg: ModelConfig
    params: Params
    preserved: bool
    logit_difference: float | None
    base_digest: str
    digest: str
    tokenizer: Tokenizer | None = None
    context: int | None = None


def derive(parent: str | Path, changes: Sequence[Change], context: ChangeContext) -> Derived:
    """Apply changes in order, and check by logits that the function stays where each of them says so.

    The model is in memory before and after one change, and no third time: for its logits the parent is read again,
    block by block.

    Args:
        parent: a reference to the model.
        changes: at least one.
        context: seed of what is drawn, token ids in use.

    Raises:
        InputError: no change, one that the model does not allow, weights that are no finite numbers afterwards, or so
            far out of proportion that float32 does not hold the changed function.
    """
    if not changes:
        raise InputError("no change: give at least one, as in --change rotate:7")
    checkpoint = open_checkpoint(parent)
    base_digest, tokenizer, trained_context = checkpoint.digest(), checkpoint.tokenizer, checkpoint.info.get("context")
    model: Model = (checkpoint.cfg, jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), checkpoint.params()))
    del checkpoint
    # The function must stay for the ids that every change preserves.
    is_preserved_V = np.ones(model[0].vocab_size, bool)
    for number, change in enumerate(changes):
        context = dataclasses.replace(context, repeats=sum(other.kind is change.kind for other in changes[:number]))
        shared = min(len(is_preserved_V), model[0].vocab_size)
        if change.kind.preserves:
            # Ids appended by an earlier change are none of the parent's.
            is_preserved_V[:shared] &= change.preserved_ids(model[0], context)[:shared]
            is_preserved_V[shared:] = False
        with np.errstate(over="ignore", invalid="ignore"):
            model = change.apply(model, context)
        # The greatest and the least of numbers with a NaN among them are NaN.
        if not all(np.isfinite([leaf.min(), leaf.max()]).all() for leaf in jax.tree.leaves(model[1])):
            raise InputError(
                f"{change.text} leaves weights that are not finite numbers: lower its strength, or choose a model "
                "without such weights"
            )
    # Compare logits with the parent, which is read again block by block.
    preserved = all(change.kind.preserves for change in changes)
    difference = None
    if preserved and is_preserved_V.any():
        difference = logit_difference(
            open_checkpoint(parent), Checkpoint.from_params(*model), np.flatnonzero(is_preserved_V)
        )
        # A comparison with NaN is false.
        if not difference <= _SAME:
            raise InputError(
                f"{', '.join(change.text for change in changes)} should leave the function alone, and moved logits by "
                f"{difference:.2g} of their standard deviation: the weights are out of float32's proportions; make "
                "fewer changes at once"
            )
    return Derived(*model, preserved, difference, base_digest, digest(model[1]), tokenizer, trained_context)


def logit_difference(first: Checkpoint, second: Checkpoint, ids_I: np.ndarray) -> float:
    """Return the largest difference of two models' logits on random tokens of these ids, over these ids.

    Logits are centered over the ids at each position, and the difference is in standard deviations of the first
    model's. Of a model whose logits do not vary, the difference itself.
    """
    length = min(_LENGTH, first.cfg.max_seq_len, second.cfg.max_seq_len)
    tokens_ST = np.random.default_rng(0).choice(ids_I, (_SEQUENCES, length)).astype(np.int32)
    logits = []
    for reader in (first, second):
        logits_PI = probe_outputs(reader, tokens_ST).logits_PV[:, ids_I]
        logits.append(logits_PI - logits_PI.mean(axis=-1, keepdims=True))
    return float(np.abs(logits[0] - logits[1]).max() / (logits[0].std() or 1.0))
