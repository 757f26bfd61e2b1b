"""Train a descendant: a model in full, or an adapter for it. What comes of it is a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.errors import InputError
from bornbiased_jax.model.adapters import Adapter, Method, adapted
from bornbiased_jax.training import TrainingSummary, from_schedule, open_initial, pretrain


class AdaptSummary(TrainingSummary):
    """The state that the run of a descendant reached."""

    checkpoint: str
    method: Literal["full"] | Method
    adapter: dict[str, object] | None
    """Its settings."""


def adapt(reference: str, adapter: Adapter | None, *, seeds: Sequence[int] = (0,), **changes: object) -> AdaptSummary:
    """Fine-tune a checkpoint; the same call again resumes where it was stopped.

    Args:
        reference: the checkpoint to begin with.
        adapter: the adapter that is trained while the weights stay frozen; None: the weights themselves.
        seeds: of the adapter's initialization, or of the weights.
        changes: fields of :class:`~bornbiased_jax.training.PretrainConfig`, ``data``, ``out`` and ``steps`` among them,
            alongside the schedule "adapt"; ``data_seed`` is that of the order of the data.

    Raises:
        InputError: as :func:`~bornbiased_jax.training.pretrain`, the adapter does not fit the model, or several seeds
            that would stay copies of one another.
    """
    if adapter is not None and adapter.method == "prefix-plus" and len(seeds) > 1:
        raise InputError(
            f"prefix-plus begins at zero whatever the seed, so that {len(seeds)} seeds would stay copies of each "
            "other: give one, and another --data-seed for another order"
        )
    if adapter is None:
        initial, tokenizer = open_initial(reference, list(seeds))
    else:
        opened = open_checkpoint(reference)
        adapted(opened.cfg, adapter)
        initial, tokenizer = [(opened.cfg, opened.params())], opened.tokenizer
    settings = {"model": initial[0][0], "seeds": seeds, "init_from": reference, "adapter": adapter}
    summary = pretrain(from_schedule("adapt", **{**changes, **settings}), initial, tokenizer)
    method = "full" if adapter is None else adapter.method
    return {
        **summary,
        "checkpoint": reference,
        "method": method,
        "adapter": None if adapter is None else adapter.to_dict(),
    }
