"""A checkpoint once it has been read: digests, how entries are distributed, a fingerprint.

Tensors have the paths of their roles ("language/blocks/1/up/kernel").
"""

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

from bornbiased_jax import io
from bornbiased_jax.checkpoints import Checkpoint, open_checkpoint
from bornbiased_jax.checkpoints.by_role import read_by_names, read_gguf_by_names
from bornbiased_jax.checkpoints.digests import tensor_digest
from bornbiased_jax.checkpoints.formats import gguf
from bornbiased_jax.checkpoints.formats.hf_config import read_config
from bornbiased_jax.checkpoints.formats.huggingface import refused_settings
from bornbiased_jax.checkpoints.formats.orbax_tree import METADATA as TREE
from bornbiased_jax.checkpoints.formats.run import frozen_tree
from bornbiased_jax.checkpoints.formats.torch_distributed import METADATA
from bornbiased_jax.checkpoints.naming import NamedRoles
from bornbiased_jax.checkpoints.native_roles import LANGUAGE
from bornbiased_jax.checkpoints.reference import parse_ref
from bornbiased_jax.checkpoints.roles import Role, RoleSource
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.audit.finding import listed
from bornbiased_jax.lineage.audit.folder import Item
from bornbiased_jax.lineage.audit.tensor_names import StoredNames, joined, stored_names
from bornbiased_jax.lineage.fingerprint_pass import fingerprint
from bornbiased_jax.lineage.fingerprints import Fingerprint, Settings

FORMS = ("exact", "unsigned", "bfloat16", "float16")
"""Digests of a tensor: as it is, without signs of zeros, and rounded to two formats."""
# Checkpoints are compared by coordinates, long after their initialization: in more numbers than what is published has.
_SETTINGS = Settings(dim=64, neurons=8)
_POSITIONS = f"{LANGUAGE}/positions/embedding"


class TensorMoments(NamedTuple):
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
class CheckpointSummary:
    """One checkpoint.

    Attributes:
        item: what it is.
        opened: reads its weights again, by names where its configuration is not run; None where it may not be opened.
        fingerprint: of its weights; None where it may not be opened, or the pass over them fails.
        refusal: why that fails, or "".
        file_digest: SHA-256 of its files; "" of a run.
        forms: digests of the tensors that are evidence, by form and by path.
        moments: of every tensor, by path.
        by_names: why it is read by names: what stands in the way of its configuration, and the tensors that no
            convention understands; else "".
    """

    item: Item
    opened: Checkpoint | NamedRoles | None
    file_digest: str
    forms: dict[str, dict[str, str]]
    moments: dict[str, TensorMoments]
    fingerprint: Fingerprint | None = None
    refusal: str = ""
    by_names: str = ""

    @property
    def name(self) -> str:
        """The checkpoint's name."""
        return self.item.name

    @property
    def config(self) -> ModelConfig | None:
        """Its architecture; None where this package does not run it."""
        return self.opened.cfg if isinstance(self.opened, Checkpoint) else None

    @property
    def source(self) -> RoleSource:
        """Its tensors by role."""
        assert self.opened is not None
        return self.opened if isinstance(self.opened, NamedRoles) else self.opened.by_role()

    def tensor_name(self, path: str) -> str:
        """Name a tensor, or a parameter of all blocks, as its files do; by its path where they have no other name."""
        return joined(self._stored_names.get(path, [path]))

    @cached_property
    def _stored_names(self) -> StoredNames:
        return {} if self.opened is None else stored_names(self.opened)


def summarize(item: Item, frozen: re.Pattern[str] | None = None, unchanged: Collection[str] = ()) -> CheckpointSummary:
    """Read a checkpoint once, tensor by tensor.

    Args:
        item: which.
        frozen: paths or names of tensors that are declared frozen or shared: no evidence.
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
        return CheckpointSummary(item, None, digest, {form: {"files": digest} for form in FORMS}, {})
    opened, by_names = _open(item.reference, item.file)
    by_path: dict[str, dict[str, str]] = {}
    moments: dict[str, TensorMoments] = {}
    names = {} if frozen is None else stored_names(opened)

    def observe(role: Role, tensor: np.ndarray) -> None:
        # Norms are read again with each matrix that they stand before.
        if role.path in moments:
            return
        # Digests are evidence only of tensors that are neither constant nor declared frozen.
        measured = moments[role.path] = moments_of(tensor)
        constant = measured.smallest == measured.largest
        declared = frozen is not None and any(map(frozen.search, (role.path, role.name, *names.get(role.path, ()))))
        if not constant and not declared and not (role.path == _POSITIONS and is_sinusoid(tensor)):
            digests = digests_of(tensor)
            if digests["exact"] not in unchanged:
                by_path[role.path] = digests

    # The fingerprint reads every tensor once, and each is measured on the way.
    sketches, refusal = None, ""
    source = opened if isinstance(opened, NamedRoles) else opened.by_role()
    source.observe = observe
    try:
        sketches = fingerprint(source, _SETTINGS)
        # Sketches that no audit compares are dropped: a folder may have hundreds of checkpoints.
        language = {
            name: dataclasses.replace(component, neurons=(), heads=(), routers=(), vectors={})
            for name, component in sketches.components.items()
            if name == LANGUAGE
        }
        sketches = dataclasses.replace(sketches, components=language)
    except InputError as error:
        refusal = str(error)
    # The pass ends early at numbers that are not finite, say: the rest is read by itself.
    for role in source.roles:
        if role.path not in moments:
            source.read(role)
    source.observe = None
    release(source)
    paths = [role.path for role in source.roles]
    return CheckpointSummary(
        item,
        opened,
        digest,
        {form: {path: by_path[path][form] for path in paths if path in by_path} for form in FORMS},
        {path: moments[path] for path in paths},
        sketches,
        refusal,
        by_names,
    )


def _open(reference: str, file: str | None) -> tuple[Checkpoint | NamedRoles, str]:
    """Open a checkpoint, by names where its configuration is refused, with the refusal.

    Weights that contradict a configuration which this package runs are not read by names: an audit should say it.

    Args:
        reference: of the checkpoint; of a file with a name of its own its folder, which may have no configuration.
        file: that name.

    Raises:
        InputError: it is corrupted, contradicts its configuration, or has names that no convention fits.
    """
    folder = Path(reference)
    is_by_names = file is not None or any((folder / name).exists() for name in (METADATA, TREE))
    if is_by_names and (refusal := _configuration_refusal(folder)):
        return _with_refusal(read_by_names(folder, file=file), refusal)
    try:
        return open_checkpoint(reference, file=file), ""
    except InputError as error:
        parsed = parse_ref(reference).fetched()
        if parsed.kind == "gguf" and parsed.path is not None:
            if not gguf.refusal(parsed.path):
                raise
            return _with_refusal(read_gguf_by_names(parsed.path), str(error))
        if parsed.kind != "huggingface" or parsed.path is None or not _configuration_refusal(parsed.path):
            raise
        return _with_refusal(read_by_names(parsed.path, file=file), str(error))


def _with_refusal(named: NamedRoles, refusal: str) -> tuple[NamedRoles, str]:
    unread = f"; not understood and left out: {listed(named.unread)}" if named.unread else ""
    return named, f"{refusal}{unread}"


def _configuration_refusal(folder: Path) -> str:
    """Say why this package does not run the configuration of a folder; "" where it does."""
    if not (folder / "config.json").is_file():
        return "no config.json lies next to it"
    try:
        content = io.read_json(folder / "config.json")
        read_config(content, str(folder))
        return "its weights are quantized" if refused_settings(folder, content) else ""
    except InputError as error:
        return str(error)


def release(source: RoleSource) -> None:
    """Let go of the tensor that was read last, which files that are read by names hold for its other parts."""
    if isinstance(source, NamedRoles):
        source.release()


def frozen_digests(run: Path) -> frozenset[str]:
    """Hash the tensors of the model that a run trained an adapter beside, those of each block and each expert apart.

    Raises:
        InputError: that model is missing or corrupted.
    """
    frozen = frozen_tree(run)
    digests: set[str] = set()
    for path in frozen.shapes:
        tensor = frozen.load(path)
        blocks = tensor if path.startswith("blocks/") else [tensor]
        # A parameter that a block has of each expert has three axes there.
        digests |= {tensor_digest(part) for block in blocks for part in (block if block.ndim > 2 else [block])}
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


def moments_of(tensor: np.ndarray) -> TensorMoments:
    """Compute the moments of one tensor, with sums in float64."""
    flat = tensor.reshape(-1)
    second = float(np.einsum("n,n->", flat, flat, dtype=np.float64)) / flat.size
    fourth = float(np.einsum("n,n,n,n->", flat, flat, flat, flat, dtype=np.float64)) / flat.size
    kurtosis = fourth / second**2 if second > 0 else 0.0
    mean = float(flat.mean(dtype=np.float64))
    return TensorMoments(flat.size, mean, math.sqrt(second), kurtosis, float(flat.min()), float(flat.max()))


def is_sinusoid(table_TD: np.ndarray) -> bool:
    """Tell whether a table of positions is the fixed one of sines and cosines: rows of one norm, √(D/2)."""
    norms_T = np.linalg.norm(table_TD.astype(np.float64), axis=1)
    return bool(np.all(np.abs(norms_T / np.sqrt(table_TD.shape[1] / 2) - 1) < 1e-2))
