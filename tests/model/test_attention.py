"""Each variation of attention against float64 NumPy, and its kernels at the ends of their ranges."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit

from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import init_seed
from bornbiased_jax.model import ForwardOptions, apply
from bornbiased_jax.model.attention import KERNELS, SOFTPICK_EPSILON, Attention, row_blocks
from bornbiased_jax.model.interventions import NO_EDITS, Edits
from bornbiased_jax.model.layers import BlockContext
from bornbiased_jax.parameters import flatten, unflatten
from tests.tiers import nightly_except

T, D = 9, 16
CONTEXT = BlockContext(jnp.arange(T))
BASE = dict(num_layers=1, num_heads=4, num_kv_heads=2, head_dim=6, d_model=D, d_ff=8, vocab_size=11, max_seq_len=20)
MITIGATIONS = {
    "baseline": {},
    "no-positions": dict(positions="none"),
    "amplify": dict(positional_scale="amplify"),
    "attenuate": dict(positional_scale="attenuate"),
    "head-norm": dict(head_norm=True),
    "gate-headwise": dict(output_gate="headwise"),
    "gate-elementwise": dict(output_gate="elementwise"),
    "sink-zero": dict(sink_logit="zero"),
    "sink-learned": dict(sink_logit="learned"),
    "gate-value": dict(output_gate="value"),
    "sigmoid": dict(attention_kernel="sigmoid"),
    "softpick": dict(attention_kernel="softpick"),
    "clipped": dict(attention_kernel="clipped"),
    "centred": dict(attention_kernel="centred"),
    "softpick-window": dict(attention_kernel="softpick", window=4, output_gate="value"),
    "centred-window": dict(attention_kernel="centred", window=4, positional_scale="amplify"),
    "window-1": dict(window=1),
    "window-3": dict(window=3),
    "window-beyond": dict(window=50),
    "everything": dict(
        window=4, sink_logit="learned", positional_scale="amplify", head_norm=True, output_gate="elementwise"
    ),
    "sigmoid-window-gate": dict(attention_kernel="sigmoid", window=4, output_gate="headwise", positions="none"),
}
# float32 against float64: fewer than 200 roundings of 2⁻²⁴ stand between an input and an output, all of
# them relative to terms no larger than the largest output times a small factor (4 is generous here).
RELATIVE = 4 * 200 * 2.0**-24


def reference(cfg: ModelConfig, p: dict[str, np.ndarray], x_BTD: np.ndarray, mask_TT: np.ndarray | None = None):
    """Attention written out with loops: returns the update, the aggregated values and the weights."""
    B, T, _ = x_BTD.shape
    H, G, K = cfg.num_heads, cfg.kv_heads, cfg.key_dim

    def heads(name, count):
        return (x_BTD @ p[f"{name}/kernel"]).reshape(B, T, count, K)

    q, k, v = heads("query", H), heads("key", G), heads("value", G)
    if cfg.output_gate == "value":
        v = v * expit(v @ p["value_gate/kernel"] + p["value_gate/bias"])
    if cfg.positions == "rope":
        frequency = cfg.rope_theta ** (-2.0 * np.arange(K // 2) / K)
        turn = np.exp(1j * np.arange(T)[:, None] * frequency)[None, :, None, :]

        def rotate(z):
            complex_z = (z[..., : K // 2] + 1j * z[..., K // 2 :]) * turn
            return np.concatenate([complex_z.real, complex_z.imag], axis=-1)

        q, k = rotate(q), rotate(k)
    weights, o = np.zeros((B, H, T, T)), np.zeros((B, T, H, K))
    for b in range(B):
        for h in range(H):
            g = h // (H // G)
            for i in range(T):
                first = 0 if cfg.window is None else max(0, i - cfg.window + 1)
                observed = [j for j in range(first, i + 1) if mask_TT is None or mask_TT[i, j]]
                logits = np.array([q[b, i, h] @ k[b, j, g] for j in observed]) / np.sqrt(K)
                if cfg.attention_kernel == "sigmoid":
                    row = expit(logits - np.log(cfg.max_seq_len))
                elif cfg.attention_kernel == "softpick":
                    row = np.maximum(np.expm1(logits), 0)
                    row = row / (np.abs(np.expm1(logits)).sum() + 1e-6 * max(1.0, np.exp(logits.max())))
                elif cfg.attention_kernel == "clipped":
                    gamma = -4 / cfg.max_seq_len
                    row = np.clip((1 - gamma) * np.exp(logits) / np.exp(logits).sum() + gamma, 0, 1)
                elif cfg.attention_kernel == "centred":
                    row = np.exp(logits) / np.exp(logits).sum() - 1 / len(observed)
                else:
                    extra = {"none": 0.0, "zero": 1.0}.get(cfg.sink_logit)
                    extra = np.exp(p["sink_logit"][h]) if extra is None else extra
                    row = np.exp(logits) / (np.exp(logits).sum() + extra)
                weights[b, h, i, observed] = row
                o[b, i, h] = row @ v[b, observed, g]
    index = np.arange(1, T + 1)[None, :, None, None]
    if cfg.positional_scale == "amplify":
        o = np.sqrt(index) * o
    if cfg.positional_scale == "attenuate":
        o = np.sqrt(index / cfg.max_seq_len) * o
    if cfg.head_norm:
        o = o / np.sqrt(np.mean(o**2, axis=-1, keepdims=True) + cfg.norm_eps) * p["head_norm/scale"]
    if cfg.output_gate in ("headwise", "elementwise"):
        gate = expit(x_BTD @ p["gate/kernel"])
        o = o * gate.reshape(B, T, H, -1)
    return o.reshape(B, T, H * K) @ p["output/kernel"], o, weights


@pytest.fixture(
    params=nightly_except(
        MITIGATIONS,
        *("baseline", "gate-value", "sink-zero", "sink-learned", "softpick-window", "clipped"),
        *("centred-window", "window-3", "everything", "sigmoid-window-gate"),
    )
)
def case(request):
    cfg = ModelConfig(**BASE, **MITIGATIONS[request.param])
    rng = np.random.default_rng(0)
    x_BTD = rng.standard_normal((2, T, D)).astype(np.float32)
    shapes = jax.eval_shape(Attention(cfg).init, jax.random.key(0), jnp.asarray(x_BTD), CONTEXT)["params"]
    # Weights of order 1/√D give logits of order one: attention far from uniform.
    flat = {
        path: (rng.standard_normal(leaf.shape) / np.sqrt(leaf.shape[0] if len(leaf.shape) > 1 else 1)).astype(
            np.float32
        )
        for path, leaf in flatten(shapes).items()
    }
    return cfg, flat, x_BTD


def ours(cfg, flat, x_BTD, mask_TT=None):
    names = ("attention_output", "attention_weights")
    edits = NO_EDITS if mask_TT is None else Edits(seen=lambda seen_TT: jnp.asarray(mask_TT))
    context = dataclasses.replace(CONTEXT, capture=names, edits=edits)
    return Attention(cfg).apply({"params": unflatten(flat)}, x_BTD, context)[:2]


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=RELATIVE * np.abs(expected).max())


def test_values_equal_the_formulas(case):
    cfg, flat, x_BTD = case
    out, captured = ours(cfg, flat, x_BTD)
    expected, o, weights = reference(cfg, {k: v.astype(np.float64) for k, v in flat.items()}, x_BTD.astype(float))
    close(captured["attention_weights"], weights)
    close(captured["attention_output"], o)
    close(out, expected)


def test_a_mask_restricts_what_each_query_sees(case):
    cfg, flat, x_BTD = case
    mask = np.tril(np.ones((T, T), bool))
    mask[5, :5] = False
    mask[7:, 2] = False
    out, captured = ours(cfg, flat, x_BTD, mask)
    wide = {k: v.astype(np.float64) for k, v in flat.items()}
    expected, _, weights = reference(cfg, wide, x_BTD.astype(float), mask)
    close(captured["attention_weights"], weights)
    close(out, expected)


@pytest.mark.slow
def test_gradients_equal_finite_differences_of_the_formulas(case):
    """Along a random direction of every parameter and of the input; the differences are taken in float64."""
    cfg, flat, x_BTD = case
    rng = np.random.default_rng(1)
    target = rng.standard_normal((2, T, D))

    def loss(flat, x):
        return jnp.sum(ours(cfg, flat, x)[0] * jnp.asarray(target, jnp.float32))

    of_flat, of_x = jax.jit(jax.grad(loss, argnums=(0, 1)))(flat, x_BTD)
    wide = {k: v.astype(np.float64) for k, v in flat.items()}
    wide_x = x_BTD.astype(np.float64)
    step = 1e-5
    for path, gradient in {**of_flat, "x": of_x}.items():
        direction = rng.standard_normal(gradient.shape)
        values = []
        for sign in (1.0, -1.0):
            moved = dict(wide)
            moved_x = wide_x
            if path == "x":
                moved_x = wide_x + sign * step * direction
            else:
                moved[path] = wide[path] + sign * step * direction
            values.append(np.sum(reference(cfg, moved, moved_x)[0] * target))
        slope = (values[0] - values[1]) / (2 * step)
        along = float(np.sum(np.asarray(gradient, np.float64) * direction))
        # Rounding of the gradient's entries, of the larger terms that cancel in them (of the target's norm),
        # and the third-order term of the central difference.
        length = np.linalg.norm(direction)
        rounding = (RELATIVE * np.linalg.norm(gradient) + 2.0**-24 * np.linalg.norm(target)) * length
        assert abs(along - slope) <= rounding + 1e3 * step**2 * (1 + abs(slope)), path
        # A token that sees itself alone weighs 1 whatever its query and key are.
        fixed = cfg.window == 1 and path.startswith(("query", "key"))
        assert (np.linalg.norm(gradient) > 0) != fixed, path


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"window": 5}, {"window": 70}, {"sink_logit": "learned"}])
def test_blocks_of_rows_are_the_whole_attention(changes):
    cfg = preset("llama-tiny", num_layers=2, d_model=32, num_heads=4, num_kv_heads=2, d_ff=48, vocab_size=64, **changes)
    params = init_seed(cfg, 3)
    x = np.random.default_rng(0).integers(0, 64, (2, 150))
    mask_TT = np.ones((150, 150), bool)
    mask_TT[7:, 3] = False
    assert len(row_blocks(150, 150, cfg.window)) > 1
    options = ForwardOptions(edit=Edits(seen=lambda seen_TT, layer: jnp.asarray(mask_TT)))
    blocks = apply(cfg, params, x, options=options)
    # Asking for the weights computes the square in one piece.
    full = apply(cfg, params, x, options=options, capture=("attention_weights",))
    np.testing.assert_allclose(blocks.final_BTD, full.final_BTD, rtol=0, atol=2e-5)


ROWS = 6
SEEN = jnp.tril(jnp.ones((ROWS, ROWS), bool))[None, None]


def weights(name, scores_TS, longest=12):
    return np.asarray(KERNELS[name](jnp.asarray(scores_TS, jnp.float32)[None, None], SEEN, longest))[0, 0]


@pytest.mark.parametrize("name", KERNELS)
def test_masked_keys_have_zero_weight(name):
    scores = np.random.default_rng(0).standard_normal((ROWS, ROWS))
    wild = np.where(np.asarray(SEEN[0, 0]), scores, 500.0)
    np.testing.assert_array_equal(weights(name, wild), weights(name, scores))
    assert np.all(weights(name, wild)[~np.asarray(SEEN[0, 0])] == 0)

    def loss(scores_TS):
        return jnp.sum(KERNELS[name](scores_TS[None, None], SEEN, 12) ** 2)

    assert np.all(np.isfinite(jax.grad(loss)(jnp.asarray(wild, jnp.float32))))


@pytest.mark.parametrize("name", KERNELS)
def test_huge_logits_stay_finite(name):
    scores = np.zeros((ROWS, ROWS))
    scores[:, 1], scores[:, 2] = 3e4, -3e4
    rows = weights(name, scores)
    assert np.all(np.isfinite(rows))
    # The key with the huge logit takes everything that there is to take.
    np.testing.assert_allclose(rows[-1, 1], 1 - 1 / ROWS if name == "centred" else 1.0, rtol=1e-6)


def test_equal_logits():
    """Uniform for the softmax, nothing for the centered and for softpick, nothing beyond a length for clipped."""
    scores = np.zeros((ROWS, ROWS))
    assert np.all(weights("softpick", scores) == 0)
    np.testing.assert_allclose(weights("centred", scores), 0, atol=2.0**-24)
    row = weights("clipped", scores)
    # gamma = -4/12: (1 + 1/3)/i - 1/3 is positive up to i = 3, 0 at 4.
    np.testing.assert_allclose(row[:, 0], np.maximum((4 / 3) / np.arange(1, ROWS + 1) - 1 / 3, 0), atol=2.0**-22)


def test_small_logits_keep_relative_precision_in_softpick():
    scores = np.full((ROWS, ROWS), 1e-7)
    scores[:, 0] = -1e-7
    expected = 1e-7 / (ROWS * 1e-7 + SOFTPICK_EPSILON)
    np.testing.assert_allclose(weights("softpick", scores)[-1, 1:], expected, rtol=1e-5)


@pytest.mark.parametrize("kernel", sorted(set(KERNELS) - {"softmax"}))
def test_an_extra_logit_needs_the_softmax(kernel):
    with pytest.raises(InputError, match="extra logit of a softmax"):
        ModelConfig(attention_kernel=kernel, sink_logit="zero")
