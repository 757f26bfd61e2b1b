"""Compare two models by their weights, checkpoints or stored fingerprints: a verdict."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable

from bornbiased_jax.checkpoints.roles import LEFT_OUT
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.battery import ALPHA, Options
from bornbiased_jax.lineage.compared_model import ComparedModel
from bornbiased_jax.lineage.evidence import SIGNLESS, TOKEN_HEADS, TOKEN_NEURONS
from bornbiased_jax.lineage.fingerprint_pass import tensors_bar
from bornbiased_jax.lineage.fingerprints import Fingerprint, Settings, read_sign_key
from bornbiased_jax.lineage.same_model import identify, tensor_difference
from bornbiased_jax.lineage.token_numbers import foreign_numbers
from bornbiased_jax.lineage.verdict import Verdict
from bornbiased_jax.lineage.weights_verdict import auto_verdict, single_verdict
from bornbiased_jax.schema import Count, within
from bornbiased_jax.stats.permutations import NUM_PERMUTATIONS

NEURONS = 4096
"""Neurons of each MLP that two checkpoints are compared by, by default: all of small models."""
# Wider MLPs are not matched unless asked for: an assignment takes minutes, and gigabytes.
_WIDEST_MATCHED = 16_384
LABELS = {"coordinates": SIGNLESS, "units": TOKEN_NEURONS, "heads": TOKEN_HEADS}
"""Values of ``--labels``, and the evidence that permutes these labels."""


def auto(
    base: ComparedModel,
    suspect: ComparedModel,
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
    # Sketches of both, with one key; checkpoints only where this package can run them.
    is_stored = any(model.stored is not None for model in (base, suspect))
    # By default tests look at some neurons of wide MLPs, and matching, which needs all, at those of a few blocks.
    has_all = neurons is None and not is_stored and _are_matched_whole(base, suspect)
    sketches = _fingerprint_pair(base, suspect, sign_key, "all" if has_all else neurons)
    checkpoints = base.runnable, suspect.runnable
    has_untrained = any(checkpoint is not None and checkpoint.is_initial for checkpoint in checkpoints)
    limit = NEURONS if has_all else None
    options = Options(alpha, check_count(num_permutations), has_untrained=has_untrained, neurons=limit)
    outputs_verdict = None if outputs is None else outputs()
    # Identity: of tensors where both models are there, of logits where tensors differ.
    difference = None
    if not is_stored and not has_untrained:
        with tensors_bar(base.roles, "comparing the tensors") as advance:
            difference = tensor_difference(base.roles, suspect.roles, advance, _equal_tensors(*sketches))
    identity = identify(*checkpoints, difference, with_logits=True)
    has_further = any(note.startswith(LEFT_OUT) for model in (base, suspect) for note in _said_of(model))
    is_said = difference is not None and difference.alone
    if identity is not None and identity.kind in ("tensors", "rounded") and has_further and not is_said:
        identity = dataclasses.replace(identity, sentence=f"{identity.sentence}, in all tensors that both have")
    near = difference.sentence if difference is not None and identity is None else ""
    verdict = auto_verdict(
        *sketches,
        options,
        identity=identity,
        outputs=outputs_verdict,
        near=near,
        is_stored=is_stored,
        foreign_numbers=str if is_stored else lambda: foreign_numbers(base.roles, suspect.roles),
    )
    return _named(verdict, base, suspect)


def weights(
    base: ComparedModel,
    suspect: ComparedModel,
    *,
    alpha: float = ALPHA,
    labels: str = "coordinates",
    num_permutations: int = NUM_PERMUTATIONS,
    sign_key: str | None = None,
    neurons: int | str | None = None,
) -> Verdict:
    """Permute one kind of :data:`LABELS`, named beforehand; other options are those of :func:`auto`.

    Raises:
        InputError: a bad option, or weights that cannot be read.
    """
    if labels not in LABELS:
        raise InputError(f"unknown labels {labels!r}: choose from {', '.join(LABELS)}")
    sketches = _fingerprint_pair(base, suspect, sign_key, neurons)
    # One test that was named beforehand, then what is identical, as a note.
    verdict = single_verdict(*sketches, LABELS[labels], Options(alpha, check_count(num_permutations)))
    identity = identify(base.runnable, suspect.runnable, with_logits=False)
    if identity is not None:
        sentence = f"{identity.sentence[0].upper()}{identity.sentence[1:]}."
        # Where the test agrees, the identity is what stands; its notes are about chance.
        notes = [] if verdict.verdict == "same-lineage" else verdict.notes
        detail = {"identity": identity.kind, "notes": [sentence, *notes]}
        verdict = dataclasses.replace(verdict, detail={**verdict.detail, **detail})
    return _named(verdict, base, suspect)


def _fingerprint_pair(
    base: ComparedModel, suspect: ComparedModel, sign_key: str | None, neurons: int | str | None
) -> tuple[Fingerprint, Fingerprint]:
    """Make or read the fingerprints of two models, with the same settings.

    Two checkpoints are sketched under a key that their digests decide: whoever made one of them could not know it.
    Compared with a stored fingerprint a checkpoint is sketched as that was.

    Raises:
        InputError: an option that contradicts a stored fingerprint, or weights that cannot be read.
    """
    key = None if sign_key is None else read_sign_key(sign_key)
    # A stored fingerprint decides the settings; otherwise the options do.
    count = NEURONS if neurons is None else None if neurons == "all" else within(Count, neurons, "neurons")
    stored = next((model.stored for model in (base, suspect) if isinstance(model.stored, Fingerprint)), None)
    if stored is not None:
        settings = stored.made_as
        if key not in (None, settings.sign_key):
            raise InputError("a stored fingerprint has its own sign key: leave --sign-key out, or name the checkpoints")
        if neurons is not None and count != settings.neurons:
            raise InputError("a stored fingerprint has its own neurons: leave --neurons out, or name the checkpoints")
    else:
        # A key from both digests, unless one is given.
        if key is None:
            key = hashlib.blake2b(f"{base.digest} {suspect.digest}".encode(), digest_size=16).digest()
        settings = Settings(neurons=count, sign_key=key)
    first = base.fingerprint(settings)
    if base is suspect:
        return first, first
    second = suspect.fingerprint(settings)
    # Where one model comes without a tokenizer, numbers are all that both name their tokens by.
    if stored is None and _token_labels(first) != _token_labels(second):
        by_ids = dataclasses.replace(settings, token_labels="ids")
        return base.fingerprint(by_ids), suspect.fingerprint(by_ids)
    return first, second


def _are_matched_whole(base: ComparedModel, suspect: ComparedModel) -> bool:
    """Tell whether all neurons of two checkpoints are few enough to be matched: experts have many times as many."""
    widths = [
        model.roles.array_shape(role)[-1]
        for model in (base, suspect)
        for role in model.roles.roles
        if role.group == "up"
    ]
    has_experts = any(role.expert is not None for model in (base, suspect) for role in model.roles.roles)
    return not has_experts and max(widths, default=0) <= _WIDEST_MATCHED


def _equal_tensors(base: Fingerprint, suspect: Fingerprint) -> set[str]:
    """Return the paths of tensors that have one digest in two models."""
    digests = {record.path: record.digest for record in suspect.tensors}
    return {record.path for record in base.tensors if digests.get(record.path) == record.digest}


def _token_labels(model: Fingerprint) -> set[str]:
    return {component.token_labels for component in model.components.values() if component.token_labels is not None}


def _said_of(model: ComparedModel) -> tuple[str, ...]:
    return model.roles.notes if model.stored is None else ()


def _named(verdict: Verdict, base: ComparedModel, suspect: ComparedModel) -> Verdict:
    """Add the models' names, and what was said of their files when they were opened."""
    models = ("base", base), ("suspect", suspect)
    notes = [f"The {word}'s files: {note}." for word, model in models for note in _said_of(model)]
    detail = {"base": base.name, "suspect": suspect.name, "notes": [*verdict.notes, *notes]}
    return dataclasses.replace(verdict, detail={**verdict.detail, **detail})


def check_count(num_permutations: int) -> int:
    """Refuse too few permutations for verdicts to rest on them.

    Raises:
        InputError: they are fewer than 99.
    """
    if num_permutations < 99:
        raise InputError(f"{num_permutations} permutations are too few: ask for {NUM_PERMUTATIONS}, or leave them out")
    return num_permutations
