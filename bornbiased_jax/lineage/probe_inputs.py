"""Inputs that both models of a comparison are read on, and their outputs on them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from bornbiased_jax import progress
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.executors import Engine, local
from bornbiased_jax.lineage import output_fingerprint as prints
from bornbiased_jax.lineage.output_fingerprint import InputFacts, OutputFingerprint
from bornbiased_jax.lineage.outputs import OutputOptions
from bornbiased_jax.probes import inputs as probe_inputs
from bornbiased_jax.probes.inputs import Inputs

NUM_INPUTS, SEQ_LEN = 2_000, 64
"""Defaults; the length is less where a model's context is shorter."""


@dataclasses.dataclass(frozen=True)
class ProbeInputs:
    """The inputs that both models are read on; None leaves a choice to the models.

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

    def settled_by(self, facts: InputFacts, name: str) -> ProbeInputs:
        """Return the inputs that a stored fingerprint was made with.

        Args:
            facts: what the fingerprint says of its inputs.
            name: of the model, for errors.

        Raises:
            InputError: something else was asked for.
        """
        # Inputs of a stored fingerprint are fixed; an open choice takes them, another one is refused.
        stored = ProbeInputs(
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

    def fitted(self, *configs: ModelConfig) -> ProbeInputs:
        """Make every open choice so that all these models can take the inputs."""
        kind = self.inputs or "tokens"
        vocab = min((cfg.vocab_size for cfg in configs), default=None) if kind == "tokens" else None
        return ProbeInputs(
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
        return probe_inputs.random_inputs(
            self.inputs, self.num_inputs, self.seq_len, cfg, vocab_size=self.vocab_size, seed=self.input_seed or 0
        )


def read_outputs(
    checkpoint: Checkpoint,
    probe: ProbeInputs,
    options: OutputOptions = OutputOptions(),
    *,
    resume: Path | None = None,
    engine: Engine = local,
    range_size: int | None = None,
) -> OutputFingerprint:
    """Compute a model's outputs as :func:`.output_fingerprint.fingerprint_outputs` does, with a progress display.

    Of the probe every choice is made (:meth:`ProbeInputs.fitted`); it decides the batch size.
    """
    inputs = probe.draw(checkpoint.config)
    with progress.bar(inputs.num_inputs, f"fingerprint {checkpoint.reference}", unit="sequences") as advance:
        options = dataclasses.replace(options, batch_size=probe.batch_size)
        return prints.fingerprint_outputs(
            checkpoint, inputs, options, resume=resume, engine=engine, range_size=range_size, advance=advance
        )
