"""The rolling cache against the definition: decoding token by token, and the last window of the text read anew."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax import model
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.evaluation import rolling_cache
from bornbiased_jax.evaluation.rolling_cache import streaming_losses
from bornbiased_jax.init import init_seed, parameter_shapes
from bornbiased_jax.model import Cache, ForwardOptions, empty_cache
from bornbiased_jax.model.layers import RollingCache, frequencies
from tests.model.forward import apply
from tests.tiers import nightly_except

T, WINDOW = 14, 5
SMALL = dict(num_layers=2, d_model=16, num_heads=4, num_kv_heads=2, d_ff=24, vocab_size=41, max_seq_len=12)
CFG = preset("llama-tiny", **SMALL)
TOKENS = np.random.default_rng(0).integers(0, 41, (2, T))


def weights(cfg, seed=1):
    """Far from initialization, where attention would be uniform; what is zero at initialization is not."""
    initial = init_seed(cfg, seed)
    leaves, tree = jax.tree.flatten(initial)
    draws = np.random.default_rng(seed)
    noisy = [np.asarray(leaf) * 6.0 + 0.3 * draws.standard_normal(leaf.shape) for leaf in leaves]
    return jax.tree.unflatten(tree, [jnp.asarray(leaf, jnp.float32) for leaf in noisy])


def decoded(cfg, params, tokens, keep):
    """A cache of ``keep + WINDOW`` places, in which the latest tokens move down one place as one is dropped."""
    size = keep + WINDOW
    angles_K = np.repeat(frequencies(cfg)[None], 2, 0).ravel() if cfg.positions == "rope" else np.zeros(cfg.key_dim)

    def turned_back(keys):
        """Keys rotated by one position less, in the half-split layout."""
        half = cfg.key_dim // 2
        crossed = np.concatenate([keys[..., half:], -keys[..., :half]], axis=-1)
        return keys * np.cos(angles_K) + crossed * np.sin(angles_K)

    step = jax.jit(lambda token, cache: apply(cfg, params, token, options=ForwardOptions(cache=cache)))
    cache = empty_cache(cfg, len(tokens), size)
    rows = []
    for index in range(tokens.shape[1]):
        if index >= size:
            keys, values = (np.array(part) for part in (cache.keys_LBSGK, cache.values_LBSGK))
            keys[:, :, keep:-1] = turned_back(keys[:, :, keep + 1 :])
            values[:, :, keep:-1] = values[:, :, keep + 1 :]
            cache = Cache(jnp.asarray(keys), jnp.asarray(values), jnp.asarray(size - 1, jnp.int32))
        out = step(tokens[:, index : index + 1], cache)
        cache = out.cache
        rows.append(np.asarray(out.logits_BTV[:, 0]))
    return np.stack(rows, axis=1)


def rolled(cfg, params, tokens, keep, window=WINDOW):
    return np.asarray(_rolled(cfg, params, tokens, RollingCache(keep, window)))


_rolled = jax.jit(
    lambda cfg, *call: apply(cfg, *call[:2], options=ForwardOptions(rolling=call[2])).logits_BTV, static_argnums=0
)


VARIANTS = {
    "llama": {},
    "learned positions": {"positions": "learned"},
    "no positions": {"positions": "none"},
    "amplified": {"positional_scale": "amplify"},
    "softpick": {"attention_kernel": "softpick"},
    "extra logit": {"sink_logit": "learned"},
    "prefix": {"prefix_length": 1},
    "model's own window": {"window": 4},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "keep"),
    nightly_except(
        [("llama", 0), *((name, 2) for name in VARIANTS)],
        *(("llama", 0), ("learned positions", 2), ("extra logit", 2), ("prefix", 2), ("model's own window", 2)),
    ),
)
def test_one_pass_is_decoding_token_by_token(name, keep):
    cfg = preset("llama-tiny", **SMALL, **VARIANTS[name])
    params = weights(cfg)
    expected = decoded(cfg, params, TOKENS, keep)
    # Angles of the text against angles inside the cache: some hundred float32 roundings of the largest logit.
    np.testing.assert_allclose(
        rolled(cfg, params, TOKENS, keep), expected, rtol=0, atol=300 * 2.0**-24 * np.abs(expected).max()
    )


@pytest.mark.slow
@pytest.mark.parametrize("keep", nightly_except([0, 3], 3))
def test_one_block_reads_the_window_as_a_text_of_its_own(keep):
    """Keys and values of a single block know their own token alone, so that the cache can be read anew."""
    cfg = CFG.replace(num_layers=1)
    params = weights(cfg)
    logits_BTV = rolled(cfg, params, TOKENS, keep)
    for index in range(keep + WINDOW, T):
        observed = [*range(keep), *range(index - WINDOW + 1, index + 1)]
        alone = np.asarray(apply(cfg, params, TOKENS[:, observed]).logits_BTV)[:, -1]
        np.testing.assert_allclose(logits_BTV[:, index], alone, rtol=0, atol=300 * 2.0**-24 * np.abs(alone).max())


@pytest.mark.slow
def test_a_window_that_holds_everything_changes_nothing():
    params = weights(CFG)
    plain = np.asarray(apply(CFG, params, TOKENS).logits_BTV)
    for keep in (0, 4):
        np.testing.assert_allclose(rolled(CFG, params, TOKENS, keep, T), plain, atol=1e-5 * np.abs(plain).max())
    assert np.abs(rolled(CFG, params, TOKENS, 0) - rolled(CFG, params, TOKENS, 1)).max() > 0.01 * np.abs(plain).max()


def test_losses_by_position_and_their_mean(monkeypatch):
    params = weights(CFG)
    calls = []
    monkeypatch.setattr(rolling_cache, "batch_size_for", lambda *sizes: 1)
    losses = streaming_losses(CFG, params, TOKENS, window=WINDOW, keep=(0, 2), advance=calls.append)
    assert [(entry["window"], entry["keep_sinks"]) for entry in losses] == [(WINDOW, 0), (WINDOW, 2), (None, 0)]
    assert sum(calls) == 3 * len(TOKENS)
    for entry in losses:
        logits = rolled(CFG, params, TOKENS, entry["keep_sinks"], entry["window"] or T).astype(np.float64)
        log = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        loss_NT = -np.take_along_axis(log[:, :-1], TOKENS[:, 1:, None], axis=-1)[..., 0]
        np.testing.assert_allclose(entry["loss_by_position"], loss_NT.mean(axis=0), rtol=1e-5)
        # Position 8 is the first whose cache of two and five has dropped a token.
        assert entry["from_position"] == 8
        assert entry["loss"] == pytest.approx(loss_NT[:, 7:].mean(), rel=1e-5)
        assert entry["loss_interval"][0] < entry["loss"] < entry["loss_interval"][1]


@pytest.mark.parametrize(
    ("changes", "window", "keep", "words"),
    [
        ({}, 0, [0], "a window of 0 tokens"),
        ({}, 5, [-1], "cannot be kept"),
        ({}, 12, [0, 4], "fill no cache of 16"),
        ({"attention": False}, 5, [0], "has no attention"),
        ({"positions": "learned", "max_seq_len": 8}, 5, [4], "8 learned positions"),
    ],
)
def test_rolling_cache_refuses_unsupported_models(changes, window, keep, words):
    cfg = CFG.replace(**changes)
    with pytest.raises(InputError, match=words):
        streaming_losses(cfg, init_seed(cfg, 0), TOKENS, window=window, keep=keep)


def test_two_caches_exclude_each_other():
    with pytest.raises(InputError, match="exclude each other"):
        apply(
            CFG,
            weights(CFG),
            jnp.asarray(TOKENS),
            options=ForwardOptions(cache=empty_cache(CFG, 2, T), rolling=RollingCache(0, 4)),
        )


@pytest.mark.parametrize(
    ("keep", "window", "words"), [(4, 5, "8 learned positions"), (0, 0, "see 1 or more"), (-1, 5, "keep 0 tokens")]
)
def test_rolling_cache_whose_logits_would_be_nan_is_refused(keep, window, words):
    """Beyond learned positions there is no row to add, and a query that sees no key has no softmax."""
    cfg = CFG.replace(positions="learned", max_seq_len=8)
    params, tokens = parameter_shapes(cfg), jax.ShapeDtypeStruct((2, T), jnp.int32)

    def trace(keep, window):
        options = ForwardOptions(rolling=RollingCache(keep, window))
        return jax.eval_shape(lambda params, tokens: model.apply(cfg, params, tokens, options=options), params, tokens)

    with pytest.raises(InputError, match=words):
        trace(keep, window)
    assert trace(4, 4).logits_BTV.shape == (2, T, cfg.vocab_size)
