"""``--dry-run``: the operations and the memory of a command, from its arguments alone.

Configurations are read; texts, tokenizers and weights are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from bornbiased_jax import parallel
from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.checkpoints.formats.run import find_steps
from bornbiased_jax.checkpoints.reference import parse_ref
from bornbiased_jax.cli import outputs
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.model.memory import FLOAT, loop_operations, needed_operations, weights_bytes
from bornbiased_jax.probes.batching import batch_size_by_tokens
from bornbiased_jax.probes.inputs.spec import outline_inputs
from bornbiased_jax.probes.measure import check_number
from bornbiased_jax.probes.measure import memory_needed as probe_memory
from bornbiased_jax.results import Listing
from bornbiased_jax.results.probes import Part
from bornbiased_jax.results.wording import size
from bornbiased_jax.text.documents import check_source
from bornbiased_jax.training import PretrainConfig
from bornbiased_jax.training.config import output_folder
from bornbiased_jax.training.initial import check_architecture, initial_references
from bornbiased_jax.training.memory import memory_needed as training_memory
from bornbiased_jax.training.setup import check_folder
from bornbiased_jax.training.throughput import flops_per_token

dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Print the operations and the memory that it needs; run and write nothing."
)


def probe_requirements(
    arguments: dict[str, Any],
    part: Part,
    seeds: Sequence[int],
    lengths: Sequence[int],
    configs: Sequence[ModelConfig],
) -> tuple[float, int, dict[str, float]]:
    """Count the forward passes of all models, seeds and lengths, and the memory of one seed where it is largest.

    Args:
        arguments: of the command.
        part: of the records.
        seeds: of the initial weights.
        lengths: of the sequences.
        configs: of the models; none where a checkpoint is probed.

    Returns:
        Operations, parameters and memory, as :func:`report` takes them.

    Raises:
        InputError: a model or inputs that the probe refuses.
    """
    num_models = len(set(seeds)) if configs else 1
    configs = configs or [architecture(arguments["checkpoint"])]
    # Cosines within sequences need every position of the last block.
    count = loop_operations if part == "contraction" else needed_operations
    operations, needed = 0.0, []
    for cfg in configs:
        for seq_len in lengths:
            sizes = {"num_inputs": arguments["num_inputs"], "seq_len": seq_len}
            inputs = outline_inputs(arguments["input_spec"], **sizes, cfg=cfg)
            check_number(inputs)
            operations += num_models * inputs.num_inputs * count(cfg, seq_len)
            batch_size = batch_size_by_tokens(inputs.seq_len, inputs.num_inputs, arguments["batch_size"])
            needed.append(probe_memory(cfg, batch_size, inputs))
    largest = max(weights_bytes(cfg) // FLOAT for cfg in configs)
    return operations, largest, max(needed, key=sum)._asdict()


def pretrain_requirements(config: PretrainConfig) -> tuple[float, int, dict[str, float]]:
    """Count the forward and backward passes of the steps that are left of all seeds, and a step's memory on one device.

    Returns:
        Operations, parameters and memory, as :func:`report` takes them.

    Raises:
        InputError: an output folder, data or initial weights that the run refuses, or no number of steps.
    """
    if config.init_from is not None:
        for reference in initial_references(config.init_from, config.seeds):
            check_architecture(config, architecture(reference))
    check_folder(config)
    parallel.check_rows(parallel.parse_mesh(config.mesh), config.micro_batch)
    check_source(config.data)
    if config.steps is None:
        raise InputError("--dry-run does not read the data, which say how many steps an epoch has: give --steps")
    # A run resumes after its last checkpoint.
    steps = max(0, config.steps - max(find_steps(output_folder(config)), default=0))
    tokens = steps * config.tokens_per_step * len(config.seeds)
    needed = training_memory(config)
    operations = tokens * flops_per_token(config.model, config.context)
    return operations, weights_bytes(config.model) // FLOAT, {"state": needed.state, "batch": needed.activations}


def architecture(reference: str) -> ModelConfig:
    """Read the architecture of a checkpoint without its weights.

    Raises:
        InputError: nothing is there, it is corrupted, or it lies on the hub.
    """
    parsed = parse_ref(reference)
    if parsed.remote is not None:
        raise InputError(f"{reference} lies on the hub, and --dry-run fetches nothing: name a local checkpoint")
    return parsed.cfg or open_checkpoint(reference).cfg


def report(operations: float, parameters: int, memory: dict[str, float], json_file: str | None) -> None:
    """Print what a command needs, and write it where --json says.

    Args:
        operations: floating-point operations of all passes.
        parameters: of one model.
        memory: bytes by part, as the command checks them before it allocates.
        json_file: what --json says.
    """
    total = sum(memory.values())
    value = {"operations": operations, "bytes": total, "parameters": parameters, "memory": memory}
    outputs.write_result(json_file, value)
    rows = [
        ["floating-point operations", f"{operations:.3g}"],
        ["parameters", f"{parameters:,}"],
        *[[f"memory: {part}", size(number)] for part, number in memory.items()],
        ["memory in all, at least", size(total)],
    ]
    table = Listing("Dry run: nothing was run", ["what", "needed"], rows)
    outputs.print_tables([table], to_stderr=json_file == "-")
