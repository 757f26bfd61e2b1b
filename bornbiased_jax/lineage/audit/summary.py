"""A checkpoint once it has been read: digests, how entries are distributed, a fingerprint."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from bornbiased_jax.checkpoints import Checkpoint, open_checkpoint
from bornbiased_jax.checkpoints.digests import tensor_digest
from bornbiased_jax.checkpoints.formats.run import frozen_tree
from bornbiased_jax.checkpoints.native_roles import LANGUAGE, NativeRoles
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.audit.folder import Item
from bornbiased_jax.lineage.component_pair import MatrixCell
from bornbiased_jax.lineage.fingerprint_pass import fingerprint
from bornbiased_jax.lineage.fingerprints import Fingerprint, Settings

FORMS = ("exact", "unsigned", "bfloat16", "float16")
"""Digests of a tensor: as it is, without signs of zeros, and rounded to two formats."""
# Checkpoints are compared by coordinates, long after their initialization: in more numbers than what is published has.
_SETTINGS = Settings(dim=64, neurons=8)


class Moments(NamedTuple):
    """Number of entries, mean, root mean square, fourth moment over the squared second, smallest, largest."""

    entries: int
    mean: float
    rms: float
    kurtosis: float
    smallest: float
    largest: float

    @property
    def std(self) -> float:
        """Standard deviation."""
        return math.sqrt(max(0.0, self.rms**2 - self.mean**2))


@dataclasses.dataclass(frozen=True, eq=False)
class Summary:
    """One checkpoint.

    Attributes:
        item: what it is.
        reader: reads its weights again; None where it may not be opened.
        fingerprint: of its weights; None where it may not be opened, or the pass over them fails.
        refusal: why that fails, or "".
        file_digest: SHA-256 of its files; "" of a run.
        forms: digests of the tensors that are evidence, by form and by path ("blocks/mlp/up/kernel/0").
        moments: of every tensor, by path.
    """

    item: Item
    reader: Checkpoint | None
    file_digest: str
    forms: dict[str, dict[str, str]]
    moments: dict[str, Moments]
    fingerprint: Fingerprint | None = None
    refusal: str = ""

    @property
    def name(self) -> str:
        """The checkpoint's name."""
        return self.item.name

    @cached_property
    def cells(self) -> dict[str, MatrixCell]:
        """The matrices at the residual stream by path, experts of a block as one."""
        if self.reader is None:
            return {}
        return {role.name: (role.block, role.matrix) for role in NativeRoles(self.reader).roles}


def summarize(item: Item, frozen: re.Pattern[str] | None = None, unchanged: Collection[str] = ()) -> Summary:
    """Read a checkpoint once, tensor by tensor.

    Args:
        item: which.
        frozen: paths of tensors that are declared frozen or shared: no evidence.
        unchanged: digests of such tensors: the model below an adapter.

    Raises:
        InputError: it is corrupted, or of a kind that is not known.
    """
    # One digest of the files, in order.
    hasher = hashlib.sha256()
    for file in item.files:
        with file.open("rb") as stream:
            hasher.update(hashlib.file_digest(stream, "sha256").digest())
    digest = hasher.hexdigest() if item.files else ""
    if item.reference is None:
        return Summary(item, None, digest, {form: {"files": digest} for form in FORMS}, {})
    reader = open_checkpoint(item.reference)
    by_form: dict[str, dict[str, str]] = {}
    moments: dict[str, Moments] = {}

    def observe(name: str, tensor: np.ndarray) -> None:
        # Digests are evidence only of tensors that are neither constant nor declared frozen.
        measured = moments[name] = moments_of(tensor)
        constant = measured.smallest == measured.largest
        declared = frozen is not None and frozen.search(name) is not None
        if not constant and not declared and not (name == "positions/embedding" and is_sinusoid(tensor)):
            digests = digests_of(tensor)
            if digests["exact"] not in unchanged:
                by_form[name] = digests

    # The fingerprint reads every tensor once, and each is measured on the way.
    sketches, refusal = None, ""
    try:
        sketches = fingerprint(NativeRoles(reader, observe), _SETTINGS)
        # Sketches that no audit compares are dropped: a folder may have hundreds of checkpoints.
        language = dataclasses.replace(sketches.components[LANGUAGE], neurons=(), heads=(), routers=(), vectors={})
        sketches = dataclasses.replace(sketches, components={LANGUAGE: language})
    except InputError as error:
        refusal = str(error)
    names = []
    for name, path, layer in reader.tensors():
        names.append(name)
        if name not in moments:  # the pass ended early: at numbers that are not finite, say
            observe(name, reader.read(path, layer))
    forms = {form: {name: by_form[name][form] for name in names if name in by_form} for form in FORMS}
    return Summary(item, reader, digest, forms, {name: moments[name] for name in names}, sketches, refusal)


def frozen_digests(run: Path) -> frozenset[str]:
    """Hash the tensors of the model that a run trained an adapter beside, those of each block apart.

    Raises:
        InputError: that model is missing or corrupted.
    """
    frozen = frozen_tree(run)
    digests: set[str] = set()
    for path in frozen.shapes:
        tensor = frozen.load(path)
        digests |= {tensor_digest(part) for part in (tensor if path.startswith("blocks/") else [tensor])}
    return frozenset(digests)


def digests_of(tensor: np.ndarray) -> dict[str, str]:
    """Return the digests of one tensor by form. Rounding that changes nothing is not hashed again."""
    # As it is, then without the signs of zeros.
    exact = tensor_digest(tensor)
    unsigned = exact
    if np.any(np.signbit(tensor) & (tensor == 0)):
        tensor = tensor + np.float32(0.0)  # −0 + 0 is 0
        unsigned = tensor_digest(tensor)
    digests = {"exact": exact, "unsigned": unsigned}
    # Rounded to each narrower format.
    for form in FORMS[2:]:
        with np.errstate(over="ignore"):
            rounded = tensor.astype(jnp.dtype(form)).astype(np.float32) + np.float32(0.0)
        digests[form] = unsigned if np.array_equal(rounded, tensor) else tensor_digest(rounded)
    return digests


def moments_of(tensor: np.ndarray) -> Moments:
    """Compute the moments of one tensor, with sums in float64."""
    flat = tensor.reshape(-1)
    second = float(np.einsum("n,n->", flat, flat, dtype=np.float64)) / flat.size
    fourth = float(np.einsum("n,n,n,n->", flat, flat, flat, flat, dtype=np.float64)) / flat.size
    kurtosis = fourth / second**2 if second > 0 else 0.0
    mean = float(flat.mean(dtype=np.float64))
    return Moments(flat.size, mean, math.sqrt(second), kurtosis, float(flat.min()), float(flat.max()))


def is_sinusoid(table_TD: np.ndarray) -> bool:
    """Tell whether a table of positions is the fixed one of sines and cosines: rows of one norm, √(D/2)."""
    norms_T = np.linalg.norm(table_TD.astype(np.float64), axis=1)
    return bool(np.all(np.abs(norms_T / np.sqrt(table_TD.shape[1] / 2) - 1) < 1e-2))
