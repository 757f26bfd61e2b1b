"""A model that is compared, given as a checkpoint or as the stored fingerprint of one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import cast

from bornbiased_jax import checkpoints, io
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.by_role import read_by_role
from bornbiased_jax.checkpoints.digests import combine
from bornbiased_jax.checkpoints.roles import RoleSource
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import output_fingerprint as prints
from bornbiased_jax.lineage.fingerprint_file import is_fingerprint, load_fingerprint
from bornbiased_jax.lineage.fingerprint_pass import WeightsDigests, fingerprint, tensors_bar, weights_digests
from bornbiased_jax.lineage.fingerprints import Fingerprint, Settings
from bornbiased_jax.lineage.output_fingerprint import OutputFingerprint

Source = str | Path | Checkpoint | OutputFingerprint | Fingerprint
"""A reference as :func:`.checkpoints.open_checkpoint` takes it, a file of a stored fingerprint, or either opened."""


@dataclasses.dataclass(eq=False)
class ComparedModel:
    """One of the models of a comparison, read no sooner than a test asks for it; what was read is kept.

    Attributes:
        source: where it lies, or what was opened of it.
        scratch: where to keep hidden states of a model that is read block by block; None loads it.
        file: which set of weights, where a folder holds several.
        roles_file: what tensors are that no convention of names knows; for tests of weights.
        ignore_fields: fields of ``config.json`` that are left out.
    """

    source: Source
    scratch: Path | None = None
    file: str | None = None
    roles_file: Path | None = None
    ignore_fields: Sequence[str] = ()
    _first_fingerprint: Fingerprint | None = dataclasses.field(default=None, init=False, repr=False)

    @property
    def name(self) -> str:
        """The name by which a reader knows it."""
        if isinstance(self.source, str | Path):
            return str(self.source)
        if isinstance(self.source, Fingerprint):
            return self.source.source.description
        return self.source.source if isinstance(self.source, OutputFingerprint) else self.source.reference

    # What is stored or was made of it.

    @cached_property
    def stored(self) -> Fingerprint | OutputFingerprint | None:
        """The stored fingerprint, of weights or of outputs, if that is all there is of the model."""
        if not isinstance(self.source, str | Path):
            return self.source if isinstance(self.source, Fingerprint | OutputFingerprint) else None
        path = io.user_path(self.source)
        if is_fingerprint(path):
            return load_fingerprint(path)
        return prints.load_outputs(path) if prints.is_output_fingerprint(path) else None

    @property
    def stored_outputs(self) -> OutputFingerprint | None:
        """The stored fingerprint, if it is of outputs."""
        return self.stored if isinstance(self.stored, OutputFingerprint) else None

    @property
    def sketches(self) -> Fingerprint | None:
        """A fingerprint of its weights: the stored one, or the first that :meth:`fingerprint` made; None before."""
        return self.stored if isinstance(self.stored, Fingerprint) else self._first_fingerprint

    def fingerprint(self, settings: Settings) -> Fingerprint:
        """Return the stored fingerprint of its weights, or make one; digests that are there are not computed again.

        Raises:
            InputError: its weights cannot be read.
        """
        if isinstance(self.stored, Fingerprint):
            return self.stored
        with tensors_bar(self.roles, "fingerprint") as advance:
            latest = fingerprint(self.roles, settings, advance=advance, digests=self.__dict__.get("_digests"))
        self._first_fingerprint = self._first_fingerprint or latest
        return latest

    @cached_property
    def digest(self) -> str:
        """The digest of its weights, as ``bornbiased digest`` prints it."""
        earlier = self.stored or self._first_fingerprint
        return combine(dict(self._digests.parameters)) if earlier is None else earlier.weights_digest

    @cached_property
    def _digests(self) -> WeightsDigests:
        return weights_digests(self.roles)

    # The model itself.

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The model, opened once.

        Raises:
            InputError: it is a stored fingerprint, described by a file of roles, or nothing that can be opened.
        """
        if isinstance(self.source, Checkpoint):
            return self.source
        if self.stored is not None:
            raise self._without_weights()
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
            return self.checkpoint.by_role()
        if not isinstance(self.source, str | Path):
            raise self._without_weights()
        return read_by_role(self.source, file=self.file, roles_file=self.roles_file, ignore_fields=self.ignore_fields)

    @property
    def runnable(self) -> Checkpoint | None:
        """The model, if this package can run it; None of a stored fingerprint and of any other model."""
        return self.checkpoint if self.stored is None and self.roles.config is not None else None

    def _without_weights(self) -> InputError:
        return InputError(f"{self.name} is a stored fingerprint, without weights: name the checkpoint")

    def close(self) -> None:
        """Remove what a pass block by block kept on disk."""
        if "checkpoint" in self.__dict__:
            self.checkpoint.close()
