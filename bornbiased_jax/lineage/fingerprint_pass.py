"""Make the fingerprint of a model's weights: one pass over its tensors, each read once, the tables first.

The main thread reads tensors and puts sketches together; threads hash a tensor, take its statistics and multiply it
with signs. Their results are added in canonical order, and each product is one thread's, so that sums do not depend
on the number of cores.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from bornbiased_jax import progress
from bornbiased_jax.checkpoints.buffers import reused_memory
from bornbiased_jax.checkpoints.by_role import read_by_role
from bornbiased_jax.checkpoints.digests import combine
from bornbiased_jax.checkpoints.roles import Role, RoleSource
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import sketches
from bornbiased_jax.lineage.component_sketches import ComponentSketches, TensorMeasurement
from bornbiased_jax.lineage.fingerprint_size import fitted
from bornbiased_jax.lineage.fingerprints import LARGE, Fingerprint, FingerprintSource, Settings, TensorRecord

# Large tensors in memory at once beyond the tables: hashing takes longer than reading.
_TENSORS_AT_ONCE = 3
# Tensors of fewer bytes are small, such as norm scales: they take no place of a large one, which every core waits for.
_SMALL, _SMALL_AT_ONCE = 1 << 22, 64
_LARGEST = float(np.finfo(np.float32).max)
_Result = TypeVar("_Result")


class WeightsDigests(NamedTuple):
    """SHA-256 of every tensor of a model.

    Attributes:
        parameters: by the name under which a tensor enters the digest of all weights; experts that one parameter holds
            together are one tensor.
        tensors: by path, every expert by itself.
    """

    parameters: Mapping[str, str]
    tensors: Mapping[str, str]

    def of(self, name: str, group: Sequence[Role]) -> tuple[str, list[str]]:
        """Return the digest of a parameter, and of each tensor in it."""
        return self.parameters[name], [self.tensors[role.path] for role in group]


def fingerprint(
    checkpoint: str | Path | RoleSource,
    settings: Settings | None = None,
    *,
    max_bytes: int | None = None,
    advance: Callable[[int], None] | None = None,
    digests: WeightsDigests | None = None,
) -> Fingerprint:
    """Make the fingerprint of a model's weights.

    Tensors are read one at a time: memory holds the two tables, then a tensor or two.

    Args:
        checkpoint: what :func:`bornbiased_jax.checkpoints.open_checkpoint` takes, or an opened source of roles.
        settings: dimension, neurons, sign key and labels of tokens; public signs of 16 numbers by default.
        max_bytes: store fewer neurons, so that the file has at most so many bytes.
        advance: called with the number of tensors done since the last call.
        digests: of these weights, where they are known: computing them takes most of the time.

    Raises:
        InputError: the checkpoint cannot be read or holds NaN, or no fingerprint of it is that small.

    Example:
        >>> print_of_seed = fingerprint("seed:42@llama-tiny,num_layers=1")
        >>> print_of_seed.components["language"].neurons[0].token["up"].shape
        (352, 16)
    """
    # Settings and labels of tokens; roles of a source are in canonical order.
    source = read_by_role(checkpoint) if isinstance(checkpoint, (str, Path)) else checkpoint
    settings = settings or Settings()
    if max_bytes is not None:
        settings = fitted(source, settings, max_bytes)
    labels = source.token_labels() if settings.token_labels == "strings" else None
    if not source.roles:
        raise InputError(f"{source.description} has no tensor that any convention of names understands")
    names = dict.fromkeys(role.component for role in source.roles)
    components = {name: ComponentSketches(source, name, settings, labels) for name in names}
    # Slices of one tensor, as of experts, follow each other.
    groups = [(name, list(group)) for name, group in itertools.groupby(source.roles, key=source.digest_name)]

    # Read on this thread, measure on others; the token space is made once the first block is asked for.
    def jobs() -> Iterator[tuple[int, Callable[[], tuple[str, list[str], list[TensorMeasurement]]]]]:
        for name, group in groups:
            tensors = [source.read(role) for role in group]
            measures = [components[role.component].job(role, x) for role, x in zip(group, tensors, strict=True)]
            hashes = partial(_digests, tensors) if digests is None else partial(digests.of, name, group)
            yield _num_bytes(tensors), partial(_measure, hashes, measures)
            del tensors, measures, hashes

    parameters: dict[str, str] = {}
    records: list[TensorRecord] = []
    # Add the results in the order of reading. How many threads share a product would decide how its sums are rounded.
    with threadpool_limits(1, user_api="blas"), reused_memory():
        for (name, _), (digest, slice_digests, measurements) in zip(groups, _in_order(jobs()), strict=True):
            parameters[name] = digest
            for slice_digest, measurement in zip(slice_digests, measurements, strict=True):
                components[measurement.role.component].add(measurement)
                records.append(_record(source, measurement, slice_digest))
                if advance is not None:
                    advance(1)
    return Fingerprint(
        settings=settings,
        components={name: component.finish() for name, component in components.items()},
        tensors=tuple(records),
        repeats=tuple(repeats for component in components.values() for repeats in component.repeats()),
        weights_digest=combine(parameters),
        tokenizer_digest=None if labels is None else _labels_digest(labels),
        source=FingerprintSource(
            description=source.description,
            naming=source.naming,
            storage=dict(sorted(Counter(source.stored_as(role) for role in source.roles).items())),
            unread=tuple(source.unread),
        ),
    )


def weights_digests(source: RoleSource) -> WeightsDigests:
    """Compute SHA-256 of every tensor of a model.

    Raises:
        InputError: the files cannot be read.
    """
    groups = [(name, list(group)) for name, group in itertools.groupby(source.roles, key=source.digest_name)]

    def jobs() -> Iterator[tuple[int, Callable[[], tuple[str, list[str]]]]]:
        for _, group in groups:
            tensors = [source.read(role) for role in group]
            yield _num_bytes(tensors), partial(_digests, tensors)
            del tensors

    parameters: dict[str, str] = {}
    tensors: dict[str, str] = {}
    with tensors_bar(source, "digest") as advance, reused_memory():
        for (name, group), (digest, slice_digests) in zip(groups, _in_order(jobs()), strict=True):
            parameters[name] = digest
            tensors |= {role.path: slice_digest for role, slice_digest in zip(group, slice_digests, strict=True)}
            advance(len(group))
    return WeightsDigests(parameters, tensors)


def tensors_bar(source: RoleSource, label: str) -> AbstractContextManager[progress.Bar]:
    """Show how many tensors of a large model are done; nothing of a model that takes a moment."""
    size = sum(math.prod(source.array_shape(role)) for role in source.roles)
    return progress.bar(len(source.roles), f"{label} of {source.description}", unit="tensors", quiet=size < LARGE)


def _num_bytes(tensors: Sequence[np.ndarray]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _in_order(jobs: Iterable[tuple[int, Callable[[], _Result]]]) -> Iterator[_Result]:
    """Run jobs in threads and yield their results in order; a job is asked for once there is room for its tensor.

    Args:
        jobs: bytes of the tensors of each, and what to run.
    """
    pending: deque[tuple[bool, Future[_Result]]] = deque()
    with ThreadPoolExecutor(_TENSORS_AT_ONCE) as pool:
        # Submit ahead, as far as there is room, and yield in order.
        for num_bytes, job in jobs:
            pending.append((num_bytes >= _SMALL, pool.submit(job)))
            del job
            while sum(is_large for is_large, _ in pending) >= _TENSORS_AT_ONCE or len(pending) >= _SMALL_AT_ONCE:
                yield pending.popleft()[1].result()
        while pending:
            yield pending.popleft()[1].result()


def _measure(
    hashes: Callable[[], tuple[str, list[str]]], measures: Sequence[Callable[[], TensorMeasurement]]
) -> tuple[str, list[str], list[TensorMeasurement]]:
    return *hashes(), [measure() for measure in measures]


def _digests(slices: Sequence[np.ndarray]) -> tuple[str, list[str]]:
    """Return SHA-256 of a tensor from its slices along the first axis, and of each slice; one slice is the tensor."""
    dtype, shape = slices[0].dtype.name, slices[0].shape
    joint = hashlib.sha256(f"{dtype}{[len(slices), *shape]}".encode())
    digests = []
    for tensor in slices:
        # Each slice by itself, and all of them as one tensor.
        hasher = hashlib.sha256(f"{dtype}{list(shape)}".encode())
        for rows in sketches.rows_in_order(tensor):
            hasher.update(rows.view(np.uint8).data)
            if len(slices) > 1:
                joint.update(rows.view(np.uint8).data)
        digests.append(hasher.hexdigest())
    return digests[0] if len(slices) == 1 else joint.hexdigest(), digests


def _record(source: RoleSource, measurement: TensorMeasurement, digest: str) -> TensorRecord:
    moments = measurement.moments
    values = {name: getattr(moments, name) for name in ("mean", "std", "kurtosis", "minimum", "maximum")}
    values["diagonal_z"] = measurement.diagonal_z
    return TensorRecord(
        path=measurement.role.path,
        array_shape=source.array_shape(measurement.role),
        digest=digest,
        is_evidence=not moments.is_two_valued,
        # As the file has them: float32, finite.
        **{name: float(np.float32(np.clip(value, -_LARGEST, _LARGEST))) for name, value in values.items()},
    )


def _labels_digest(labels: Sequence[bytes | None]) -> str:
    hasher = hashlib.sha256()
    for text in labels:
        hasher.update(b"-" if text is None else b"%d:" % len(text) + text)
    return hasher.hexdigest()
