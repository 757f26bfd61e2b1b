"""Training data: documents encoded once into shards, read back as shuffled windows."""

from bornbiased_jax.training.data.shards import Dataset, Tokens, prepare
from bornbiased_jax.training.data.windows import Windows, batches, held_out, prepend_bos, split

__all__ = ["Dataset", "Tokens", "Windows", "batches", "held_out", "prepare", "prepend_bos", "split"]
