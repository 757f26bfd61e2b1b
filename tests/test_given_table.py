"""The top-1 fraction over seeds that share their tables: the shared part is kept, the rest is as without it."""

import jax
import numpy as np
import pytest

from bornbiased_jax import given_table, keys
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import init_seed
from bornbiased_jax.parameters import flatten
from bornbiased_jax.prediction import predict
from bornbiased_jax.probes.inputs import random_tokens
from bornbiased_jax.probes.run import probe
from bornbiased_jax.probes.subject import untrained

SMALL = dict(vocab_size=1024, d_model=64, num_heads=2, d_ff=256)


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny"])
def test_tables_equal_initial_embeddings(name):
    cfg = preset(name, num_layers=1, **SMALL)
    initial = flatten(init_seed(cfg, 5, fixed_key=keys.stream_key(3, "embedding")))
    tables = given_table.fixed_tables(cfg, 3)
    assert set(tables) == {path for path in initial if path.split("/")[0] in ("embed", "positions", "head")}
    for path, table in tables.items():
        assert np.array_equal(table, initial[path])


@pytest.mark.slow
def test_the_band_is_that_of_fresh_tables_where_nothing_is_common():
    """Gaussian inputs and rotary positions: seeds share the head alone. Means within 20% of each other."""
    cfg = preset("llama-tiny", num_layers=2, **SMALL | {"d_ff": 192})
    with jax.default_matmul_precision("highest"):
        band = given_table.top1_given_table(cfg, 8, 400, 0, tokens=False)
    fresh = predict(cfg, 8, num_inputs=400, tokens=False)
    assert band.p10 <= band.mean <= band.p90
    assert abs(band.mean / fresh["top1_share_mean"] - 1) < 0.2


@pytest.mark.nightly
@pytest.mark.as_users
@pytest.mark.parametrize(
    "changes", [{"init": "normal-0.02"}, {"norm": "rmsnorm", "positions": "rope", "init": "normal-0.02"}]
)
def test_eight_in_ten_seeds_lie_inside(changes):
    """Four tables of 32 seeds each.

    Seeds of one table are no independent tries: a tenth more or less is allowed, and the band of fresh tables holds
    fewer.
    """
    cfg, inside, fresh_inside = preset("gpt2-tiny", **SMALL, **changes), 0, 0
    fresh = predict(cfg, 16, num_inputs=400)
    for table in range(4):
        low, high = given_table.top1_given_table(cfg, 16, 400, table)[1:]
        inputs = random_tokens(400, 16, cfg.vocab_size, seed=table)
        records = probe(untrained(cfg, fixed_embedding_seed=table), list(range(100, 132)), inputs)
        fractions = np.array([record["preference"]["top1_share"] for record in records])
        inside += int(((fractions >= low) & (fractions <= high)).sum())
        fresh_inside += int(((fractions >= fresh["top1_share_p10"]) & (fractions <= fresh["top1_share_p90"])).sum())
    assert 0.7 <= inside / 128 <= 0.95
    assert inside > fresh_inside


def test_bands_are_fractions_of_all_inputs_though_fewer_are_independent():
    changes = dict(vocab_size=64, d_ff=64, tie_embeddings=False, init="normal-0.02")
    cfg = preset("gpt2-tiny", num_layers=1, **SMALL | changes)
    band = given_table.top1_given_table(cfg, 4, 100, 0)
    assert all(round(100 * fraction) / 100 == fraction for fraction in band[1:])


@pytest.mark.slow
def test_the_scale_of_the_embedding_counts():
    """Tied, and with rows times √D, most inputs are answered with their own last token: no token has a large share."""
    cfg = preset("gpt2-tiny", num_layers=1, **SMALL, embedding_scale=8.0)
    band = given_table.top1_given_table(cfg, 8, 2000, 0)
    records = list(probe(untrained(cfg, fixed_embedding_seed=0), [0], random_tokens(2000, 8, cfg.vocab_size)))
    measured = np.mean([record["preference"]["top1_share"] for record in records])
    assert abs(band.mean / measured - 1) < 0.1
    assert abs(band.mean / predict(cfg, 8, num_inputs=2000)["top1_share_mean"] - 1) < 0.1


def test_sequences_longer_than_the_table_of_positions_are_refused():
    cfg = preset("gpt2-tiny", num_layers=1, **SMALL, positions="learned", max_seq_len=8)
    with pytest.raises(InputError, match="max_seq_len"):
        given_table.top1_given_table(cfg, 9, 10, 0)


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"attention_scale": 1e6}, "variance: .* of the attention's logits"), ({"d_model": 2}, "dimensions: it must be")],
)
def test_what_theory_does_not_integrate_is_refused(changes, named):
    cfg = preset("gpt2-tiny", **{"num_layers": 1, **SMALL, "num_heads": 1, "vocab_size": 8, **changes})
    with pytest.raises(InputError, match=f"theory cannot predict this: {named}"):
        given_table.top1_given_table(cfg, 2, 10, 0)
