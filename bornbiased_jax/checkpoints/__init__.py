"""Open a model wherever it lies, and write it where others can open it."""

from bornbiased_jax.checkpoints.blocks import open_streamed
from bornbiased_jax.checkpoints.checkpoint import Checkpoint, open_checkpoint
from bornbiased_jax.checkpoints.digests import digest, tensor_digests, value_digests
from bornbiased_jax.checkpoints.export import export_hugging_face
from bornbiased_jax.checkpoints.reference import Reference, parse_ref
from bornbiased_jax.checkpoints.run import RunInfo
from bornbiased_jax.checkpoints.smollm2 import find_smollm2

__all__ = [
    "Checkpoint",
    "Reference",
    "RunInfo",
    "digest",
    "export_hugging_face",
    "find_smollm2",
    "open_checkpoint",
    "open_streamed",
    "parse_ref",
    "tensor_digests",
    "value_digests",
]
