"""Open a model wherever it lies, and write it where others can open it."""

from bornbiased_jax.checkpoints.checkpoint import Checkpoint, open_checkpoint
from bornbiased_jax.checkpoints.digests import digest, tensor_digests
from bornbiased_jax.checkpoints.export import export_hugging_face
from bornbiased_jax.checkpoints.reference import Reference, parse_ref
from bornbiased_jax.checkpoints.smollm2 import find_smollm2
from bornbiased_jax.checkpoints.tensors import RunInfo

__all__ = [
    "Checkpoint",
    "Reference",
    "RunInfo",
    "digest",
    "export_hugging_face",
    "find_smollm2",
    "open_checkpoint",
    "parse_ref",
    "tensor_digests",
]
