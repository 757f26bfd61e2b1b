"""A model that is compared, given as a checkpoint or as the stored fingerprint of one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import cast

from bornbiased_jax import checkpoints, io
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.digests import combine
from bornbiased_jax.checkpoints.naming import read_by_role
from bornbiased_jax.checkpoints.native_roles import NativeRoles
from bornbiased_jax.checkpoints.roles import RoleSource
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import output_fingerprint as prints
from bornbiased_jax.lineage.fingerprint_file import is_fingerprint, load_fingerprint
from bornbiased_jax.lineage.fingerprint_pass import WeightsDigests, fingerprint, tensors_bar, weights_digests
from bornbiased_jax.lineage.fingerprints import Fingerprint, Settings, TensorRecord
from bornbiased_jax.lineage.output_fingerprint import OutputFingerprint

Source = str | Path | Checkpoint | OutputFingerprint | Fingerprint


@dataclasses.dataclass(frozen=True, eq=False)
class ComparedModel:
    """One of two models, read no sooner than a test asks for it.

    Attributes:
        source: a reference as :func:`.checkpoints.open_checkpoint` takes it, a file of a stored fingerprint, or
            either of them opened.
        scratch: where to keep hidden states of a model that is read block by block; None loads it.
        file: which set of weights, where a folder holds several.
        roles_file: what tensors are that no convention of names knows; for tests of weights.
        ignore_fields: fields of ``config.json`` that are left out.
        made: fingerprints of its weights that were made of it, the last one last.
    """

    source: Source
    scratch: Path | None = None
    file: str | None = None
    roles_file: Path | None = None
    ignore_fields: Sequence[str] = ()
    made: list[Fingerprint] = dataclasses.field(default_factory=list, init=False, repr=False)

    @property
    def name(self) -> str:
        """What a reader knows it by."""
        if isinstance(self.source, str | Path):
            return str(self.source)
        if isinstance(self.source, Fingerprint):
            return self.source.source.description
        return self.source.source if isinstance(self.source, OutputFingerprint) else self.source.reference

    @cached_property
    def sketches(self) -> Fingerprint | None:
        """The stored fingerprint of its weights, if that is all there is of the model."""
        if isinstance(self.source, str | Path):
            path = io.user_path(self.source)
            return load_fingerprint(path) if is_fingerprint(path) else None
        return self.source if isinstance(self.source, Fingerprint) else None

    @cached_property
    def stored(self) -> OutputFingerprint | None:
        """The stored fingerprint of its outputs, if that is all there is of the model."""
        if isinstance(self.source, str | Path):
            path = io.user_path(self.source)
            return prints.load_outputs(path) if prints.is_output_fingerprint(path) else None
        return self.source if isinstance(self.source, OutputFingerprint) else None

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The model, opened once.

        Raises:
            InputError: it is a stored fingerprint, described by a file of roles, or nothing that can be opened.
        """
        if self.stored is not None or self.sketches is not None:
            raise InputError(f"{self.name} is a stored fingerprint, without weights: name the checkpoint")
        if isinstance(self.source, Checkpoint):
            return self.source
        if self.roles_file is not None:
            raise InputError(f"{self.name} is read by a file of roles, which computes no outputs: leave the option out")
        return checkpoints.open_checkpoint(
            cast(str | Path, self.source), scratch=self.scratch, file=self.file, ignore_fields=self.ignore_fields
        )

    @cached_property
    def roles(self) -> RoleSource:
        """Its tensors by role: by the table of parameters where this package runs the model, else by names.

        Raises:
            InputError: it is a stored fingerprint, or nothing that can be opened.
        """
        if isinstance(self.source, Checkpoint) or "checkpoint" in self.__dict__:
            return NativeRoles(self.checkpoint)
        if not isinstance(self.source, str | Path):
            raise InputError(f"{self.name} is a stored fingerprint, without weights: name the checkpoint")
        return read_by_role(self.source, file=self.file, roles_file=self.roles_file, ignore_fields=self.ignore_fields)

    def close(self) -> None:
        """Remove what a pass block by block kept on disk."""
        if "checkpoint" in self.__dict__:
            self.checkpoint.close()

    @cached_property
    def digest(self) -> str:
        """The digest of its weights, as ``bornbiased digest`` prints it."""
        if self.stored is not None:
            return self.stored.weights_digest
        sketches = self.sketches or next(iter(self.made), None)
        return combine(dict(self.digests.parameters)) if sketches is None else sketches.weights_digest

    @cached_property
    def digests(self) -> WeightsDigests:
        """The digests of all its tensors."""
        return weights_digests(self.roles)

    @property
    def records(self) -> dict[str, TensorRecord]:
        """Digests and statistics of its tensors by path, once a fingerprint was made; nothing before."""
        return {record.path: record for made in self.made[:1] for record in made.tensors}

    def fingerprint(self, settings: Settings) -> Fingerprint:
        """Return the stored fingerprint of its weights, or make one; digests that are there are not computed again.

        Raises:
            InputError: its weights cannot be read.
        """
        if self.sketches is not None:
            return self.sketches
        with tensors_bar(self.roles, "fingerprint") as advance:
            made = fingerprint(self.roles, settings, advance=advance, digests=self.__dict__.get("digests"))
        self.made.append(made)
        return made

    @property
    def cfg(self) -> ModelConfig:
        """Its architecture."""
        return ModelConfig.from_dict(self.stored.config) if self.stored else self.checkpoint.cfg

    @property
    def width(self) -> int:
        """Number of coordinates of its outputs."""
        return self.stored.outputs_ND.shape[1] if self.stored else self.checkpoint.cfg.d_model
