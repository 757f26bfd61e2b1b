"""From two references to a verdict: what the command ``bornbiased seedprint`` does, as one function."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TypedDict, Unpack

import numpy as np

from bornbiased_jax import progress
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.executors import Engine, local
from bornbiased_jax.lineage import compare as comparing
from bornbiased_jax.lineage import output_fingerprint as prints
from bornbiased_jax.lineage import untrained_outputs
from bornbiased_jax.lineage.commitment import check_commitment, read_digest, with_commitment
from bornbiased_jax.lineage.compared_model import ComparedModel, Source
from bornbiased_jax.lineage.fingerprint_file import payload_digest
from bornbiased_jax.lineage.fingerprints import Settings
from bornbiased_jax.lineage.lineage_tests import lineage_test
from bornbiased_jax.lineage.output_fingerprint import InputFacts, OutputFingerprint
from bornbiased_jax.lineage.outputs import OutputOptions
from bornbiased_jax.lineage.permutation import check_alpha, check_permutations
from bornbiased_jax.lineage.population import check_references
from bornbiased_jax.lineage.verdict import Verdict, undefined, with_choices
from bornbiased_jax.model.overflow import Overflow
from bornbiased_jax.probes import inputs as probe_inputs
from bornbiased_jax.probes.inputs import Inputs

NUM_INPUTS, SEQ_LEN, NUM_REFERENCES = 2_000, 64, 200
"""Defaults; the length is less where a model's context is shorter."""
# Seeds far from those that people choose, so that a reference is never the model itself.
_FIRST_REFERENCE = 3_000_000_000


@dataclasses.dataclass(frozen=True)
class Probe:
    """Which inputs both models are read on; None leaves a choice to the models.

    Attributes:
        inputs: "tokens" (by default) or "gaussian".
        num_inputs: N; 2,000 by default.
        seq_len: T; by default the shorter context of the two, 64 at most.
        input_seed: of the inputs; 0 by default.
        vocab_size: ids are drawn below this; the smaller vocabulary by default.
        batch_size: sequences at a time.
    """

    inputs: str | None = None
    num_inputs: int | None = None
    seq_len: int | None = None
    input_seed: int | None = None
    vocab_size: int | None = None
    batch_size: int | None = None

    def settled_by(self, facts: InputFacts, name: str) -> Probe:
        """Return the probe that a stored fingerprint was made with.

        Args:
            facts: what the fingerprint says of its inputs.
            name: of the model, for errors.

        Raises:
            InputError: something else was asked for.
        """
        # Inputs of a stored fingerprint are fixed; an open choice takes them, another one is refused.
        stored = Probe(
            inputs=facts["kind"],
            num_inputs=facts["num_inputs"],
            seq_len=facts["seq_len"],
            input_seed=facts.get("seed"),
            vocab_size=facts.get("vocab_size"),
            batch_size=self.batch_size,
        )
        for field, value in vars(stored).items():
            choice = getattr(self, field)
            if choice is not None and choice != value:
                option = f"--{field.replace('_', '-')}"
                raise InputError(f"{name} was made with {option} {value}, not {choice}: leave {option} out")
        return stored

    def fitted(self, *configs: ModelConfig) -> Probe:
        """Make every open choice so that all these models can take the inputs."""
        kind = self.inputs or "tokens"
        vocab = min((cfg.vocab_size for cfg in configs), default=None) if kind == "tokens" else None
        return Probe(
            inputs=kind,
            num_inputs=NUM_INPUTS if self.num_inputs is None else self.num_inputs,
            seq_len=min((SEQ_LEN, *(cfg.max_seq_len for cfg in configs))) if self.seq_len is None else self.seq_len,
            input_seed=0 if self.input_seed is None else self.input_seed,
            vocab_size=vocab if self.vocab_size is None else self.vocab_size,
            batch_size=self.batch_size,
        )

    def draw(self, cfg: ModelConfig) -> Inputs:
        """Draw the inputs, once every choice is made."""
        assert self.inputs is not None and self.num_inputs is not None and self.seq_len is not None
        vocab_size = self.vocab_size or cfg.vocab_size
        return probe_inputs.random_inputs(
            self.inputs, self.num_inputs, self.seq_len, cfg, vocab_size=vocab_size, seed=self.input_seed or 0
        )


def read_outputs(
    checkpoint: Checkpoint,
    probe: Probe,
    options: OutputOptions = OutputOptions(),  # noqa: B008
    *,
    resume: Path | None = None,
    engine: Engine = local,
    range_size: int | None = None,
) -> OutputFingerprint:
    """Compute a model's fingerprint on a probe, with a progress display.

    Args:
        checkpoint: the model.
        probe: with every choice made (:meth:`Probe.fitted`); it decides the batch size.
        options: as in :func:`.output_fingerprint.fingerprint_outputs`.
        resume, engine, range_size: as there.
    """
    inputs = probe.draw(checkpoint.config)
    with progress.bar(inputs.num_inputs, f"fingerprint {checkpoint.reference}", unit="sequences") as advance:
        options = dataclasses.replace(options, batch_size=probe.batch_size)
        return prints.fingerprint_outputs(
            checkpoint, inputs, options, resume=resume, engine=engine, range_size=range_size, advance=advance
        )


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
    probe: Probe | None
    num_references: int | None
    base_digest: str | None
    scratch: Path | None


def trace(
    base: Source | ComparedModel,
    suspect: Source | ComparedModel,
    *,
    test: str | None = None,
    alpha: float | None = None,
    probe: Probe | None = None,
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
        >>> progress.set_quiet(True)
        >>> small = "llama-tiny,num_layers=1,d_model=32,vocab_size=64"
        >>> probe = Probe(num_inputs=60, seq_len=8)
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
    probe = probe or Probe()
    if entry.needs == "weights":
        if test == "auto" and probe != Probe():
            options["outputs"] = lambda: _by_outputs("permutation", base_model, suspect_model, probe, alpha)
        verdict = entry.load()(base_model, suspect_model, alpha=alpha, **options)
    else:
        num_references = count if entry.references else None
        verdict = _by_outputs(
            test, base_model, suspect_model, probe, alpha, num_permutations, test_options.get("signs"), num_references
        )
    # Record choices and commitment with the verdict.
    chosen: dict[str, object] = {"alpha": alpha} if alpha != entry.alpha else {}
    chosen |= {name: options[name] for name in sorted(options) if name != "outputs"}
    verdict = with_choices(verdict, chosen)
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
    probe: Probe,
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


def _settled(probe: Probe, base: ComparedModel, suspect: ComparedModel) -> Probe:
    # Of two stored ones that differ in their inputs the comparison tells; here each must be what was asked for.
    settled = [
        probe.settled_by(stored.inputs, model.name)
        for model in (base, suspect)
        if (stored := model.stored_outputs) is not None
    ]
    probe = settled[0] if settled else probe
    return probe.fitted(*(model.checkpoint.config for model in (base, suspect) if model.stored_outputs is None))


def _uncomparable(base: ComparedModel, suspect: ComparedModel, probe: Probe) -> str | None:
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
    base: ComparedModel, suspect: ComparedModel, probe: Probe
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


def _references(base: OutputFingerprint, probe: Probe, count: int) -> Iterator[np.ndarray]:
    """Yield outputs of fresh seeds of the base's architecture, one at a time."""
    if base.layer is not None:
        raise InputError("the population test reads the final norm's output: make fingerprints without --layer")
    cfg = ModelConfig.from_dict(base.config)
    inputs = probe.draw(cfg)
    moments = base.inputs.get("mean", 0.0), base.inputs.get("std", 1.0)
    seeds = range(_FIRST_REFERENCE, _FIRST_REFERENCE + count)
    return (
        outputs_ND
        for chunk_SND in untrained_outputs.final_outputs(cfg, seeds, inputs, moments)
        for outputs_ND in chunk_SND
    )
