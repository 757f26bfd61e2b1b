import numpy as np
import pytest

from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.probes import batching
from bornbiased_jax.probes.batching import batch_size_by_tokens, batch_size_for, batches

CFG = preset("gpt2-tiny")


def test_batches_by_tokens_hold_as_many_positions_as_a_cpu_likes():
    assert batch_size_by_tokens(16, 1000, None) == batching.BATCH_TOKENS_CPU // 16 == 128
    assert batch_size_by_tokens(16, 50, None) == 50 and batch_size_by_tokens(4096, 50, None) == 1
    assert batch_size_by_tokens(16, 50, 7) == 7 and batch_size_by_tokens(16, 5, 7) == 5


def test_batches_by_memory_keep_the_largest_array_of_a_layer_small():
    # 64 sequences at most; 4 bytes × 1,024 positions × 4 heads × 1,024 keys of each sequence leave room for 16.
    assert batch_size_for(CFG, 8) == 64
    assert batch_size_for(CFG, 1024) == batching.LAYER_BYTES // (4 * 1024 * 4 * 1024) == 16


def test_a_batch_has_at_least_one_sequence():
    with pytest.raises(InputError, match="batch size 0 is not at least 1"):
        batch_size_by_tokens(8, 10, 0)
    assert [len(part) for part in batches(np.zeros((5, 2)), 2)] == [2, 2, 1]
