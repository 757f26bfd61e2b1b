"""The tests in the weights as :func:`.trace.trace` calls them: two models become fingerprints, and those a verdict."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.native_roles import NativeRoles
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.battery import ALPHA, SIGNLESS, TOKEN_HEADS, TOKEN_NEURONS, Options
from bornbiased_jax.lineage.fingerprint_pass import fingerprint
from bornbiased_jax.lineage.fingerprints import Fingerprint, Settings
from bornbiased_jax.lineage.same_model import (
    FILES,
    Apart,
    same_files,
    same_source,
    settings_apart,
    tensors_apart,
    vectors_apart,
    with_differences,
)
from bornbiased_jax.lineage.verdict import Verdict
from bornbiased_jax.lineage.weights.logits import same_logits
from bornbiased_jax.lineage.weights_verdict import Identity, auto_verdict, single_verdict
from bornbiased_jax.stats.permutations import NUM_PERMUTATIONS

if TYPE_CHECKING:
    from bornbiased_jax.lineage.trace import Side

NEURONS = 4096
"""Neurons of each MLP that two checkpoints are compared by, unless more or fewer are asked for: all of small models."""
LABELS = {"coordinates": SIGNLESS, "units": TOKEN_NEURONS, "heads": TOKEN_HEADS}
"""What ``--labels`` names, and the evidence that permutes them."""
_LOGITS = "the two models give the same logits on random tokens"
_FUNCTION = f"{_LOGITS}: the same function, written otherwise"


@dataclasses.dataclass(frozen=True)
class Sketching:
    """How two checkpoints become fingerprints.

    Attributes:
        sign_key: of the sign vectors; None for one that the digests of both models decide.
        neurons: how many of each MLP; None for all.
    """

    sign_key: bytes | None = None
    neurons: int | None = NEURONS


def auto(
    base: Side,
    suspect: Side,
    *,
    alpha: float = ALPHA,
    num_permutations: int = NUM_PERMUTATIONS,
    sign_key: str | None = None,
    neurons: int | str | None = None,
    outputs: Callable[[], Verdict] | None = None,
) -> Verdict:
    """Name what is identical, then weigh all evidence: nothing needs to be chosen.

    Args:
        base, suspect: the models; neither is opened whole unless outputs are asked for.
        alpha: level of the decision.
        num_permutations: of the tests over the whole model.
        sign_key: hexadecimal key of the sign vectors; by default one that the digests of both models decide.
        neurons: of each MLP, or "all".
        outputs: runs the permutation test of outputs, where that is to join the family.

    Raises:
        InputError: a bad option, or weights that cannot be read.
    """
    prints = fingerprints(base, suspect, _sketching(sign_key, neurons))
    readers = _reader(base), _reader(suspect)
    untrained = any(reader is not None and reader.is_initial for reader in readers)
    options = Options(check_level(alpha), check_count(num_permutations), has_untrained=untrained)
    by_outputs = None if outputs is None else outputs()
    is_stored = any(side.sketches is not None for side in (base, suspect))
    apart = None if is_stored or untrained else tensors_apart(base.roles, suspect.roles)
    identity = _identity(*readers, apart=apart)
    near = apart.sentence if apart is not None and identity is None else ""
    verdict = auto_verdict(*prints, options, identity=identity, outputs=by_outputs, near=near)
    return _named(verdict, base, suspect)


def weights(
    base: Side,
    suspect: Side,
    *,
    alpha: float = ALPHA,
    labels: str = "coordinates",
    num_permutations: int = NUM_PERMUTATIONS,
    sign_key: str | None = None,
    neurons: int | str | None = None,
) -> Verdict:
    """Permute one kind of labels, named beforehand: coordinates up to sign, neurons or heads in token space.

    Args:
        base, suspect: the models.
        alpha: level of the decision.
        labels: a key of :data:`LABELS`.
        num_permutations: of the test.
        sign_key, neurons: see :func:`auto`.

    Raises:
        InputError: a bad option, or weights that cannot be read.
    """
    if labels not in LABELS:
        raise InputError(f"unknown labels {labels!r}: choose from {', '.join(LABELS)}")
    prints = fingerprints(base, suspect, _sketching(sign_key, neurons))
    options = Options(check_level(alpha), check_count(num_permutations))
    verdict = single_verdict(*prints, LABELS[labels], options)
    readers = _reader(base), _reader(suspect)
    identity = _identity(*readers, with_logits=False)
    if identity is not None:
        notes = [f"{identity.sentence[0].upper()}{identity.sentence[1:]}.", *verdict.detail["notes"]]
        detail = {**verdict.detail, "identity": identity.kind, "notes": notes}
        verdict = dataclasses.replace(verdict, detail=detail)
    return _named(verdict, base, suspect)


def fingerprints(base: Side, suspect: Side, sketching: Sketching) -> tuple[Fingerprint, Fingerprint]:
    """Make or read the fingerprints of two models, alike.

    Two checkpoints are sketched under a key that their digests decide: whoever made one of them could not know it.
    Beside a stored fingerprint a checkpoint is sketched as that was.

    Raises:
        InputError: an option that contradicts a stored fingerprint, or weights that cannot be read.
    """
    stored = next((side.sketches for side in (base, suspect) if side.sketches is not None), None)
    if stored is not None:
        settings = stored.settings
        if sketching.sign_key not in (None, settings.sign_key):
            raise InputError("a stored fingerprint has its own sign key: leave --sign-key out, or name the checkpoints")
    else:
        key = sketching.sign_key
        if key is None:
            key = hashlib.blake2b(f"{base.digest} {suspect.digest}".encode(), digest_size=16).digest()
        settings = Settings(neurons=sketching.neurons, sign_key=key)
    first = _fingerprint(base, settings)
    if base is suspect:
        return first, first
    second = _fingerprint(suspect, settings)
    # Where one model comes without a tokenizer, numbers are all that both name their tokens by.
    if stored is None and _token_labels(first) != _token_labels(second):
        by_ids = dataclasses.replace(settings, token_labels="ids")
        return _fingerprint(base, by_ids), _fingerprint(suspect, by_ids)
    return first, second


def _token_labels(made: Fingerprint) -> set[str]:
    return {component.token_labels for component in made.components.values() if component.token_labels is not None}


def _fingerprint(side: Side, settings: Settings) -> Fingerprint:
    return side.sketches if side.sketches is not None else fingerprint(side.roles, settings)


def _sketching(sign_key: str | None, neurons: int | str | None) -> Sketching:
    count = NEURONS if neurons is None else None if neurons == "all" else int(neurons)
    try:
        return Sketching(None if sign_key is None else bytes.fromhex(sign_key), count)
    except ValueError as error:
        text = f"--sign-key {sign_key} is not hexadecimal: give an even number of digits 0-9, a-f"
        raise InputError(text) from error


def _reader(side: Side) -> Checkpoint | None:
    """Return the weights of a model that this package can run; None of a stored fingerprint and of any other model."""
    return side.checkpoint if side.sketches is None and isinstance(side.roles, NativeRoles) else None


def _identity(
    base: Checkpoint | None, suspect: Checkpoint | None, *, apart: Apart | None = None, with_logits: bool = True
) -> Identity | None:
    """Name in what way two checkpoints are one, from their files, their tensors and their logits."""
    is_rounded = apart is not None and apart.rounding is not None
    if base is None or suspect is None:
        return Identity("rounded", apart.sentence) if apart is not None and is_rounded else None
    source = same_source(base, suspect)
    if source is not None:
        return Identity("files" if same_files(base, suspect) else "tensors", source)
    if same_files(base, suspect):
        return Identity("files", with_differences(FILES, settings_apart(base.cfg, suspect.cfg)))
    differences = settings_apart(base.cfg, suspect.cfg)
    if apart is not None:
        # What is near by its numbers is not called the same by its logits.
        kind = "tensors" if apart.largest == 0.0 else "rounded"
        return (
            Identity(kind, with_differences(apart.sentence, differences))
            if apart.largest == 0.0 or is_rounded
            else None
        )
    if with_logits and same_logits(base, suspect):
        differences += vectors_apart(NativeRoles(base), NativeRoles(suspect))
        return Identity("logits", with_differences(_LOGITS, differences) if differences else _FUNCTION)
    return None


def _named(verdict: Verdict, base: Side, suspect: Side) -> Verdict:
    return dataclasses.replace(verdict, detail={**verdict.detail, "base": base.name, "suspect": suspect.name})


def check_level(alpha: float) -> float:
    """Refuse an alpha that is no level.

    Raises:
        InputError: it is not between 0 and 1.
    """
    if not 0.0 < alpha < 1.0:
        raise InputError(f"alpha={alpha} is not between 0 and 1")
    return alpha


def check_count(num_permutations: int) -> int:
    """Refuse too few permutations for verdicts to rest on them.

    Raises:
        InputError: they are fewer than 99.
    """
    if num_permutations < 99:
        raise InputError(f"{num_permutations} permutations are too few: ask for {NUM_PERMUTATIONS}, or leave them out")
    return num_permutations
