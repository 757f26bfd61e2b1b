"""Probes in a store: what one task is about, and its chunks computed in whatever process."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bornbiased_jax import sweep
from bornbiased_jax.checkpoints.elsewhere import open_again
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.probes.inputs import Inputs
from bornbiased_jax.probes.inputs.facts import facts_of, from_facts
from bornbiased_jax.probes.measure import Batches, order_inputs, stream, work_of
from bornbiased_jax.probes.subject import Subject, given, newborn
from bornbiased_jax.store import Chunk
from bornbiased_jax.sweep import Mode, Work

FUNCTION = "bornbiased_jax.probes.chunks:compute"


class Pass(NamedTuple):
    """Everything of one probe but its seeds.

    Attributes:
        subject, inputs, batches: what is probed with what.
        intra, second_moment, dtype: as of :func:`bornbiased_jax.probes.run.probe`.
        mode: "vmap" or "map".
        at_once: seeds in one program on one device.
        shards: parts of a batch of a given model on devices of their own.
    """

    subject: Subject
    inputs: Inputs
    batches: Batches
    intra: bool
    second_moment: bool
    dtype: str | None
    mode: Mode
    at_once: int
    shards: int = 1

    @property
    def whole(self) -> tuple[int, int]:
        """The range of all inputs."""
        return 0, self.inputs.num_inputs

    def work(self, *, partial: bool) -> Work:
        """Return the sweep's functions for each seed."""
        scale = self.inputs.moments(self.subject.embedding_mean, self.subject.embedding_std)
        return work_of(
            self.subject.cfg,
            self.subject.weights is None,
            self.subject.fixed_embedding_seed,
            scale,
            self.intra,
            self.second_moment,
            None if self.dtype is None else jnp.dtype(self.dtype),
            partial,
        )

    def settings(self) -> dict[str, Any]:
        """Return all that the numbers depend on besides seed and range, JSON-ready."""
        return {
            "subject": self.subject.description,
            "inputs": facts_of(self.inputs),
            "batch_size": self.batches.size,
            "intra": self.intra,
            "second_moment": self.second_moment,
            "dtype": self.dtype,
            "mode": self.mode,
            "at_once": self.at_once,
            "shards": self.shards,
        }


def compute(settings: Mapping[str, Any], found_at: Mapping[str, Any], chunks: list[Chunk]) -> Iterator[dict[str, Any]]:
    """Compute the chunks of a job, from JSON alone.

    Raises:
        InputError: the inputs, or the weights, are not those of the settings.
    """
    texts = (json.dumps(part, sort_keys=True) for part in (settings, found_at))
    yield from compute_pass(_pass(*texts), chunks)


@functools.lru_cache(maxsize=2)
def _pass(settings: str, found_at: str) -> Pass:
    content = json.loads(settings)
    about = content["subject"]
    cfg = ModelConfig.from_dict(about["model"])
    if "weights" in about:
        opened = open_again(json.loads(found_at)["checkpoint"], about["weights"])
        subject = given(cfg, opened.params, about["weights"])
    else:
        subject = newborn(cfg, fixed_embedding_seed=about["fixed_embedding_seed"])
    inputs = from_facts(content["inputs"], cfg, json.loads(found_at))
    return Pass(
        subject,
        inputs,
        order_inputs(inputs, content["batch_size"]),
        *(content[name] for name in ("intra", "second_moment", "dtype", "mode", "at_once", "shards")),
    )


def compute_pass(
    probe_pass: Pass,
    chunks: list[Chunk],
    *,
    mesh: jax.sharding.Mesh | None = None,
    advance: Any = None,
) -> Iterator[dict[str, Any]]:
    """Compute the results of some seeds on one range of inputs, in the order of the chunks.

    Args:
        probe_pass: all but the seeds.
        chunks: of one range; of all inputs the results are whole, else they are sums.
        mesh: as of :func:`bornbiased_jax.sweep.sweep`.
        advance: called with the number of seeds after each batch.
    """
    (span,) = {(chunk.start, chunk.stop) for chunk in chunks}
    vmapped, has_weights = probe_pass.mode == "vmap", probe_pass.subject.weights is not None
    rows = sweep.sweep(
        probe_pass.work(partial=span != probe_pass.whole),
        [chunk.seed for chunk in chunks],
        lambda: stream(probe_pass.inputs, probe_pass.batches, *span),
        mode=probe_pass.mode,
        chunk=probe_pass.at_once * (1 if mesh is None or has_weights else mesh.shape["seed"]) if vmapped else None,
        mesh=mesh,
        weights=probe_pass.subject.weights,
        advance=advance,
        steady=True,
    )
    yield from (result for _, result in rows)
