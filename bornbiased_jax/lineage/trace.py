"""From two references to a verdict: what the command ``bornbiased seedprint`` does, as one function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TypedDict, Unpack

import numpy as np

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import compare as comparing
from bornbiased_jax.lineage import untrained_outputs
from bornbiased_jax.lineage.commitment import check_commitment, read_digest, with_commitment
from bornbiased_jax.lineage.compared_model import ComparedModel, Source
from bornbiased_jax.lineage.fingerprint_file import payload_digest
from bornbiased_jax.lineage.fingerprints import Settings
from bornbiased_jax.lineage.lineage_tests import lineage_test
from bornbiased_jax.lineage.output_fingerprint import OutputFingerprint
from bornbiased_jax.lineage.outputs import OutputOptions
from bornbiased_jax.lineage.permutation import check_alpha, check_permutations
from bornbiased_jax.lineage.population import check_references
from bornbiased_jax.lineage.probe_inputs import ProbeInputs, read_outputs
from bornbiased_jax.lineage.verdict import Verdict, undefined, with_choices
from bornbiased_jax.model.streaming import Overflow

NUM_REFERENCES = 200
"""Fresh seeds by default."""
# Seeds far from those that people choose, so that a reference is never the model itself.
_FIRST_REFERENCE = 3_000_000_000


class SingleTestOptions(TypedDict, total=False):
    """Options of single tests; None counts as not given. :class:`.lineage_tests.LineageTest` names those of each."""

    num_permutations: int | None
    labels: str | None
    sign_key: str | None
    neurons: int | str | None
    signs: str | None


class TraceOptions(SingleTestOptions, total=False):
    """Options of :func:`trace`, with those of single tests."""

    test: str | None
    alpha: float | None
    probe: ProbeInputs | None
    num_references: int | None
    base_digest: str | None
    scratch: Path | None


def trace(
    base: Source | ComparedModel,
    suspect: Source | ComparedModel,
    *,
    test: str | None = None,
    alpha: float | None = None,
    probe: ProbeInputs | None = None,
    num_references: int | None = None,
    base_digest: str | None = None,
    scratch: Path | None = None,
    **test_options: Unpack[SingleTestOptions],
) -> Verdict:
    """Decide whether two models share initial weights, whatever they are given as.

    Args:
        base: the model known to be older or owned: a reference to a checkpoint, a stored fingerprint, either of them
            opened, or a :class:`.ComparedModel`, which says how.
        suspect: the other model.
        test: a name in :data:`.lineage_tests.TESTS`; "auto" by default, "permutation" where one model is a stored
            fingerprint of outputs or an option of that test alone is given.
        alpha: level of the decision; the test's own by default.
        probe: the inputs, for tests of outputs; what a stored fingerprint was made with holds. With any of them chosen
            the permutation test of outputs joins "auto".
        num_references: fresh seeds, for tests that need them; 200 by default.
        base_digest: what the base's weights were published as beforehand (:mod:`.commitment`); without it the verdict
            says that their labeling rests on somebody's word.
        scratch: for tests of outputs: read the models block by block, with hidden states in this folder, rather than
            load them.
        test_options: the test's own (``num_permutations`` …); None counts as not given.

    Raises:
        InputError: a model that cannot be opened, an option that the test does not have or cannot use, or what
            contradicts a stored fingerprint. What cannot reach alpha is said before anything is computed.

    Example:
        >>> from bornbiased_jax import progress
        >>> progress.set_quiet(True)
        >>> small = "llama-tiny,num_layers=1,d_model=32,vocab_size=64"
        >>> probe = ProbeInputs(num_inputs=60, seq_len=8)
        >>> trace(f"seed:1@{small}", f"seed:1@{small}").reason
        'the base is the suspect: both are the initialization of seed 1'
        >>> trace(f"seed:1@{small}", f"seed:2@{small}", test="permutation", probe=probe).verdict
        'unrelated'
    """
    # One model where both are named alike: it is opened once.
    is_one_model = base is suspect or (isinstance(base, str) and base == suspect)
    models = [
        source if isinstance(source, ComparedModel) else ComparedModel(source, scratch) for source in (base, suspect)
    ]
    base_model, suspect_model = models[0], models[0] if is_one_model else models[1]
    # The test, its level and its options.
    test = _default_test(base_model, suspect_model, test_options) if test is None else test
    entry = lineage_test(test)
    alpha = check_alpha(entry.alpha if alpha is None else alpha)
    options: dict[str, object] = {name: value for name, value in test_options.items() if value is not None}
    if num_references is not None and not entry.references:
        options["num_references"] = num_references
    for name in options:
        if name not in entry.options:
            raise InputError(f"--{name.replace('_', '-')} is no option of --test {test}: leave it out")
    # Tests of weights prove a p below what their permutations reach.
    num_permutations = test_options.get("num_permutations")
    if num_permutations is not None and entry.needs == "outputs":
        check_permutations(num_permutations, alpha)
    # Refuse what cannot reach alpha, or another base than the published one, before computing.
    count = NUM_REFERENCES if num_references is None else num_references
    if entry.references:
        check_references(count, alpha)
    committed_as = None
    if base_digest is not None:
        published = read_digest(base_digest)
        payload = partial(_payload_of, base_model)
        committed_as = check_commitment(base_model.name, published, base_model.digest, payload)
    # Run the test on weights or on outputs.
    probe = probe or ProbeInputs()
    if entry.needs == "weights":
        if test == "auto" and probe != ProbeInputs():
            options["outputs"] = lambda: _by_outputs("permutation", base_model, suspect_model, probe, alpha)
        verdict = entry.load()(base_model, suspect_model, alpha=alpha, **options)
    else:
        num_references = count if entry.references else None
        verdict = _by_outputs(
            test, base_model, suspect_model, probe, alpha, num_permutations, test_options.get("signs"), num_references
        )
    # Record choices and commitment with the verdict.
    choices: dict[str, object] = {"alpha": alpha} if alpha != entry.alpha else {}
    if entry.references and count != NUM_REFERENCES:
        choices["num_references"] = count
    choices |= {name: options[name] for name in sorted(options) if name != "outputs"}
    verdict = with_choices(verdict, choices)
    verdict = with_commitment(verdict, base_model.digest, suspect_model.digest, committed_as=committed_as)
    base_model.close()
    suspect_model.close()
    return verdict


def _payload_of(base: ComparedModel) -> str | None:
    """Return the payload digest of a base's fingerprint, which is made with default settings where none is stored."""
    return payload_digest(base.fingerprint(Settings())) if base.stored_outputs is None else None


def _default_test(base: ComparedModel, suspect: ComparedModel, options: Mapping[str, object]) -> str:
    """Choose what settles most about this pair, of the tests that have the options given."""
    # Options that the permutation test has and `auto` lacks ask for outputs.
    names = {name for name, value in options.items() if value is not None}
    outputs_alone = names <= set(lineage_test("permutation").options) and not names <= set(lineage_test("auto").options)
    stored = any(model.stored_outputs is not None for model in (base, suspect))
    return "permutation" if stored or outputs_alone else "auto"


def _by_outputs(
    test: str,
    base: ComparedModel,
    suspect: ComparedModel,
    probe: ProbeInputs,
    alpha: float,
    num_permutations: int | None = None,
    signs: str | None = None,
    num_references: int | None = None,
) -> Verdict:
    """Run a test of outputs, after checking for whatever makes it impossible."""
    # Both models on the same inputs, with every open choice made.
    settled = _settled(probe, base, suspect)
    reason = _uncomparable(base, suspect, settled)
    if reason is not None:
        assert settled.num_inputs is not None
        return undefined(test, reason, num_inputs=settled.num_inputs, alpha=alpha)
    try:
        pair = _fingerprints(base, suspect, settled)
    except Overflow as error:
        return undefined(test, str(error), num_inputs=settled.num_inputs, alpha=alpha)
    # References are of the base's architecture, on the inputs of the base.
    references = None if num_references is None else _references(pair[0], settled, num_references)
    return comparing.compare(
        *pair, test=test, alpha=alpha, num_permutations=num_permutations, signs=signs, references=references
    )


def _settled(probe: ProbeInputs, base: ComparedModel, suspect: ComparedModel) -> ProbeInputs:
    # Of two stored ones that differ in their inputs the comparison tells; here each must be what was asked for.
    settled = [
        probe.settled_by(stored.inputs, model.name)
        for model in (base, suspect)
        if (stored := model.stored_outputs) is not None
    ]
    probe = settled[0] if settled else probe
    return probe.fitted(*(model.checkpoint.config for model in (base, suspect) if model.stored_outputs is None))


def _uncomparable(base: ComparedModel, suspect: ComparedModel, probe: ProbeInputs) -> str | None:
    """Return why no output of one model belongs to one of the other, before anything is computed."""
    vectors = probe.inputs == "gaussian"
    first, second = _width(base), _width(suspect)
    # Two stored ones of tokens have their inputs compared first.
    are_stored = base.stored_outputs is not None and suspect.stored_outputs is not None
    if first == second or (are_stored and not vectors):
        return None
    widths = f"{first} and {second}"
    fed = f"vectors of one width cannot be fed to models of widths {widths}, and "
    return (fed if vectors else f"the widths differ ({widths}): ") + (
        "no coordinate of one model corresponds to one of the other"
    )


def _width(model: ComparedModel) -> int:
    """Return the number of coordinates of a model's outputs."""
    stored = model.stored_outputs
    return model.checkpoint.config.d_model if stored is None else stored.outputs_ND.shape[1]


def _fingerprints(
    base: ComparedModel, suspect: ComparedModel, probe: ProbeInputs
) -> tuple[OutputFingerprint, OutputFingerprint]:
    """Read both models' outputs alike: as the stored one of them was."""
    stored = [model.stored_outputs for model in (base, suspect) if model.stored_outputs is not None]
    # A stored fingerprint fixes the layer, and the moments of vectors, for the other model.
    layers = {outputs.layer for outputs in stored}
    layer = layers.pop() if len(layers) == 1 else None
    moments = next(
        ((outputs.inputs["mean"], outputs.inputs["std"]) for outputs in stored if "mean" in outputs.inputs), None
    )
    first = base.stored_outputs or read_outputs(base.checkpoint, probe, OutputOptions(moments, layer))
    if base is suspect:
        return first, first
    # The suspect is given the base's vectors.
    if moments is None and "mean" in first.inputs:
        moments = (first.inputs["mean"], first.inputs["std"])
    second = suspect.stored_outputs or read_outputs(suspect.checkpoint, probe, OutputOptions(moments, layer))
    return first, second


def _references(base: OutputFingerprint, probe: ProbeInputs, count: int) -> Iterator[np.ndarray]:
    """Yield outputs of fresh seeds of the base's architecture, one at a time."""
    if base.layer is not None:
        raise InputError("the population test reads the final norm's output: make fingerprints without --layer")
    cfg = ModelConfig.from_dict(base.config)
    inputs = probe.draw(cfg)
    moments = base.inputs.get("mean", 0.0), base.inputs.get("std", 1.0)
    seeds = range(_FIRST_REFERENCE, _FIRST_REFERENCE + count)
    return untrained_outputs.final_outputs(cfg, seeds, inputs, moments)
