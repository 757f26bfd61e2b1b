"""Probes in a store: the settings of a task, and its chunks computed in any process."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax

from bornbiased_jax.checkpoints.checkpoint import verified_checkpoint
from bornbiased_jax.chunk_store import Chunk, Results, TaskSettings
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.model.layers import HIGHEST, precision_named
from bornbiased_jax.parameters import Params
from bornbiased_jax.probes.inputs import Inputs
from bornbiased_jax.probes.inputs.facts import facts_of, from_facts
from bornbiased_jax.probes.measure import Batches, SequenceBatch, initial_params, last_token_probe, order_inputs, stream
from bornbiased_jax.probes.subject import ProbedModel, from_weights, untrained
from bornbiased_jax.sweep import InitParams, Probe, SweepMode, SweepOptions, sweep

FUNCTION = "bornbiased_jax.probes.chunks:compute"


class Pass(NamedTuple):
    """Everything of one call of :func:`bornbiased_jax.probes.run.probe` but its seeds.

    Attributes:
        subject, inputs, batches: the models and the inputs.
        intra: as of :class:`bornbiased_jax.probes.run.ProbeOptions`.
        mode: "vmap" or "map".
        at_once: seeds in one program on one device.
        shards: devices of a given model along ``data`` and ``fsdp``.
        precision: of float32 products, as of :class:`bornbiased_jax.probes.run.ProbeOptions`.
    """

    subject: ProbedModel
    inputs: Inputs
    batches: Batches
    intra: bool
    mode: SweepMode
    at_once: int
    shards: tuple[int, ...] = (1, 1)
    precision: str = HIGHEST

    @property
    def params(self) -> Params | InitParams:
        """Initial weights as a function of the seed, or the weights of the one model."""
        if self.subject.weights is not None:
            return self.subject.weights
        return initial_params(self.subject.cfg, self.subject.fixed_embedding_seed)

    def probe(self, *, partial: bool = False) -> Probe:
        """Return the probe of one seed, of all inputs or of a range."""
        scale = self.inputs.moments(self.subject.embedding_mean, self.subject.embedding_std)
        products = precision_named(self.precision)
        return last_token_probe(self.subject.cfg, scale, self.intra, partial, precision=products)

    def settings(self) -> Results:
        """Return all that the numbers depend on besides seed and range, JSON-ready."""
        return {
            "subject": self.subject.description,
            "inputs": facts_of(self.inputs),
            "batch_size": self.batches.size,
            "intra": self.intra,
            "mode": self.mode,
            "at_once": self.at_once,
            "shards": self.shards,
            "precision": self.precision,
        }


def compute(settings: TaskSettings, sources: TaskSettings, chunks: list[Chunk]) -> Iterator[Results]:
    """Compute chunks of one range in a worker.

    Raises:
        InputError: the inputs, or the weights, are not those of the settings.
    """
    texts = (json.dumps(part, sort_keys=True) for part in (settings, sources))
    yield from compute_pass(_open_pass(*texts), chunks)


@functools.lru_cache(maxsize=2)
def _open_pass(settings: str, sources: str) -> Pass:
    content = json.loads(settings)
    about = content["subject"]
    cfg = ModelConfig.from_dict(about["model"])
    if "weights" in about:
        opened = verified_checkpoint(json.loads(sources)["checkpoint"], about["weights"])
        subject = from_weights(cfg, opened.params(), about["weights"])
    else:
        subject = untrained(cfg, fixed_embedding_seed=about["fixed_embedding_seed"])
    inputs = from_facts(content["inputs"], cfg, json.loads(sources))
    return Pass(
        subject,
        inputs,
        order_inputs(inputs, content["batch_size"]),
        *(content[name] for name in ("intra", "mode", "at_once", "shards", "precision")),
    )


def compute_pass(
    probe_pass: Pass,
    chunks: Sequence[Chunk],
    *,
    mesh: jax.sharding.Mesh | None = None,
    advance: Callable[[int, SequenceBatch], None] | None = None,
) -> Iterator[Results]:
    """Compute the results of some seeds on one range of inputs, in the order of the chunks.

    Args:
        probe_pass: all but the seeds.
        chunks: of one range; of all inputs the results are final, else they are sums.
        mesh: as of :class:`bornbiased_jax.sweep.SweepOptions`.
        advance: called with the number of seeds and the batch after each batch.
    """
    (span,) = {(chunk.start, chunk.stop) for chunk in chunks}
    devices = 1 if mesh is None or probe_pass.subject.weights is not None else mesh.shape["seed"]
    chunk = probe_pass.at_once * devices if probe_pass.mode == "vmap" else None
    rows = sweep(
        probe_pass.probe(partial=span != (0, probe_pass.inputs.num_inputs)),
        probe_pass.params,
        [chunk.seed for chunk in chunks],
        lambda: stream(probe_pass.inputs, probe_pass.batches, *span),
        SweepOptions(probe_pass.mode, chunk, mesh, steady=True),
        advance=advance,
    )
    yield from (result for _, result in rows)
