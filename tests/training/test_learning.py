"""A tiny model learns real text: its held-out loss falls below what counting tokens and pairs can reach."""

import pytest

from bornbiased_jax.config import preset
from bornbiased_jax.evaluation.ngrams import baselines
from bornbiased_jax.training import PretrainConfig, pretrain
from bornbiased_jax.training.setup import load_data


@pytest.mark.slow
@pytest.mark.as_users
def test_below_unigram_entropy_and_bigram_loss(tmp_path):
    config = PretrainConfig(
        model=preset("llama-tiny", num_layers=2, num_heads=2, d_model=64, d_ff=128, vocab_size=256),
        data="builtin:prose", tokenizer="bytes", out=str(tmp_path / "run"), context=64, batch_size=16, steps=320,
        learning_rate=4e-3, min_learning_rate=4e-4, warmup=20, eval_sequences=512, tensorboard=False, quiet=True,
        token_cache=str(tmp_path / "tokens"),
    )  # fmt: skip
    data = load_data(config)
    counted = baselines(data.dataset.train, data.dataset.validation, 256)
    (loss,) = pretrain(config)["validation_loss"]
    assert counted["bigram_loss"] < counted["unigram_entropy"] <= counted["unigram_loss"]
    # Some 30,000 held-out bytes whose losses have a standard deviation of about 2 nats: an error of 0.012.
    assert loss < counted["bigram_loss"] - 0.05
    assert loss < counted["unigram_entropy"] - 0.5
