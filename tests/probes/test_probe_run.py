"""The probing of untrained models end to end: against counting by hand, and whatever the layout."""

import json

import jax
import numpy as np
import pytest

from bornbiased_jax import keys
from bornbiased_jax import model as models
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.probes.inputs import parse_inputs
from bornbiased_jax.probes.observe import observe
from bornbiased_jax.probes.run import ProbeOptions, probe
from bornbiased_jax.probes.subject import from_weights, untrained
from tests.fixtures.programs import run_python
from tests.tiers import nightly_except

CFG = preset("gpt2-tiny", num_layers=3, d_model=32, num_heads=4, d_ff=128, vocab_size=97)
N, T = 75, 9


@pytest.fixture(scope="module")
def inputs():
    return parse_inputs("tokens", num_inputs=N, seq_len=T, cfg=CFG)


def plain_pass(params, tokens_NT):
    return jax.jit(lambda params: models.apply(CFG, params, tokens_NT, capture=("residual",)))(params)


def by_hand(seed, tokens_NT):
    """Counts, cosines and the direction's token in float64 NumPy, from one plain forward pass."""
    params = models.init_seed(CFG, seed, fixed_key=keys.stream_key(0, "embedding"))
    out = plain_pass(params, tokens_NT)
    states = np.asarray(out.layers["residual"], np.float64)[:, :, -1]
    states = np.concatenate([states, np.asarray(out.final_BTD, np.float64)[None, :, -1]])
    logits = np.asarray(out.logits_BTV, np.float64)[:, -1]
    counts = np.bincount(logits.argmax(-1), minlength=CFG.vocab_size)
    unit = states / np.linalg.norm(states, axis=-1, keepdims=True)
    cosines = np.einsum("LAD,LBD->LAB", unit, unit)
    last = tokens_NT[:, -1]
    pairs = np.triu(last[:, None] != last[None, :], 1)
    values = cosines[:, pairs]
    mean = unit[-1].mean(axis=0)
    head = params["embed"]["embedding"].T if CFG.tie_embeddings else params["head"]["kernel"]
    return {
        "counts": counts,
        "mean": values.mean(axis=1),
        "std": cosines[:, ~np.eye(len(last), dtype=bool)].std(axis=1),  # over all pairs
        "dimension": [np.bincount(at_layer.argmax(-1), minlength=CFG.d_model).argmax() for at_layer in states],
        "direction": int((mean @ np.asarray(head, np.float64)).argmax()),
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", nightly_except([0, 42], 42))
def test_equals_counting_by_hand(seed, inputs):
    (record,) = probe(untrained(CFG, fixed_embedding_seed=0), [seed], inputs)
    expected = by_hand(seed, np.asarray(inputs.batch(0, N)))
    preference, contraction = record["preference"], record["contraction"]
    order = np.argsort(-expected["counts"], kind="stable")
    assert preference["top1_id"] == order[0]
    assert preference["ranked_ids"] == [int(i) for i in order[:30] if expected["counts"][i]]
    assert (
        preference["top1_count"] == expected["counts"].max()
        and preference["top1_share"] == preference["top1_count"] / N
    )
    assert preference["num_distinct_tokens"] == np.count_nonzero(expected["counts"])
    assert preference["top_dimension_by_layer"] == [int(i) for i in expected["dimension"]]
    # float32 states of unit length, cosines of order one.
    np.testing.assert_allclose(contraction["inter_cosine_by_layer"], expected["mean"][:-1], rtol=0, atol=1e-5)
    np.testing.assert_allclose(contraction["inter_cosine_final"], expected["mean"][-1], rtol=0, atol=1e-5)
    np.testing.assert_allclose(contraction["inter_cosine_std_final"], expected["std"][-1], rtol=0, atol=1e-4)
    assert record["direction_token"] == expected["direction"]
    assert record["direction_matches_top1"] == (expected["direction"] == order[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    nightly_except([dict(batch_size=7), dict(mode="vmap", chunk=2), dict(mode="map", chunk=1)], dict(batch_size=7)),
)
def test_layout_changes_nothing(options, inputs):
    subject = untrained(CFG, fixed_embedding_seed=0)
    usual, other = (
        list(probe(subject, [1, 2, 3], inputs)),
        list(probe(subject, [1, 2, 3], inputs, ProbeOptions(**options))),
    )
    for first, two in zip(usual, other, strict=True):
        assert first["seed"] == two["seed"] and first["direction_token"] == two["direction_token"]
        assert first["preference"] == two["preference"]
        for name, value in first["contraction"].items():
            if name.startswith("inter_cosine"):
                np.testing.assert_allclose(two["contraction"][name], value, rtol=0, atol=2e-5)


@pytest.mark.slow
def test_given_weights_are_those_of_their_untrained_model(inputs):
    params = models.init_seed(CFG, 5, fixed_key=keys.stream_key(0, "embedding"))
    (initialization,) = probe(untrained(CFG, fixed_embedding_seed=0), [5], inputs)
    (life,) = probe(from_weights(CFG, params, "the same weights"), [5], inputs)
    assert life["preference"] == initialization["preference"]


MEMORY = """
import json, resource, sys
from bornbiased_jax.config import preset
from bornbiased_jax.probes.inputs import parse_inputs
from bornbiased_jax.probes.run import ProbeOptions, probe
from bornbiased_jax.probes.subject import untrained
cfg = preset("gpt2-tiny", num_layers=2, d_model=64, num_heads=4, d_ff=256, vocab_size=512)
peaks = []
for count, seeds in ((128, 2), (4096, 2), (128, 64)):
    inputs = parse_inputs("tokens", num_inputs=count, seq_len=32, cfg=cfg)
    list(probe(untrained(cfg), range(seeds), inputs, ProbeOptions(batch_size=32, chunk=4)))
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(json.dumps(peaks))
"""


def test_seeds_in_an_array_are_those_of_a_list(inputs):
    first, second = (list(probe(untrained(CFG), seeds, inputs)) for seeds in (np.arange(2), [0, 1]))
    assert first == second


@pytest.mark.nightly
def test_memory_grows_neither_with_inputs_nor_with_seeds():
    first, inputs, seeds = json.loads(run_python(MEMORY, JAX_PLATFORMS="cpu"))
    # In KiB. The states of 4,096 sequences would take 32 MiB a layer in float32 and their N² cosines 64 MiB;
    # sixty more models 35 MiB. What may grow is the interpreter's own: 16 MiB.
    assert inputs - first < 16 * 1024
    assert seeds - inputs < 16 * 1024


@pytest.mark.slow
def test_compiles_once_and_not_per_call(inputs):
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: compiled.append(name) if "backend_compile" in name else None
    )
    subject = untrained(CFG, fixed_embedding_seed=0)
    list(probe(subject, [1], inputs, ProbeOptions(batch_size=11)))
    assert compiled
    compiled.clear()
    list(probe(subject, [2], inputs, ProbeOptions(batch_size=11)))
    assert not compiled


@pytest.mark.slow
def test_the_last_position_is_read_whether_or_not_the_others_are(inputs):
    """The cosines within sequences need every position; what is read of the last one stays."""
    params = models.init_seed(CFG, 3)
    tokens_NT = inputs.batch(0, 6)
    observing = jax.jit(lambda params, intra: observe(CFG, params, tokens_NT, intra=intra), static_argnums=1)
    last, every = observing(params, False), observing(params, True)
    plain = plain_pass(params, tokens_NT)
    expected = [plain.layers["residual"][:, :, -1], plain.final_BTD[:, -1]]
    for observed in (last, every):
        for states, wanted in zip((observed.last_LBD, observed.final_BD), expected, strict=True):
            np.testing.assert_allclose(states, wanted, rtol=0, atol=1e-5)
        np.testing.assert_array_equal(observed.prediction_B, np.argmax(plain.logits_BTV[:, -1], axis=-1))
    assert last.intra_LB is None and every.intra_LB.shape == (CFG.num_layers, 6)


@pytest.mark.slow
def test_states_that_overflow_are_refused_and_prefer_no_token():
    sizes = {"num_layers": 6, "d_model": 8, "num_heads": 1, "d_ff": 8, "vocab_size": 16}
    wild = {f"init.{group}": "normal:900" for group in ("embedding", "up", "down")}
    cfg = preset("gpt2-tiny", **sizes, **wild, norm="none", activation="relu")
    inputs = parse_inputs("tokens", num_inputs=8, seq_len=2, cfg=cfg)
    with pytest.raises(InputError, match="hidden states overflow after block 4 of 6"):
        list(probe(untrained(cfg), [0], inputs))


@pytest.mark.parametrize(("group", "std"), [("head", "1e38"), ("embedding", "1e25")])
def test_infinite_logits_and_norms_that_overflow_prefer_no_token(group, std):
    sizes = {"num_layers": 1, "d_model": 8, "num_heads": 1, "d_ff": 8, "vocab_size": 16}
    cfg = preset("llama-tiny", **sizes, **{f"init.{group}": f"normal:{std}"})
    inputs = parse_inputs("tokens", num_inputs=8, seq_len=2, cfg=cfg)
    with pytest.raises(InputError, match="overflows float32 .*: draw smaller weights"):
        list(probe(untrained(cfg), [0], inputs))


def test_a_single_input_is_refused():
    with pytest.raises(InputError, match="^num_inputs=1 leaves nothing to compare: give at least 2$"):
        list(probe(untrained(CFG), [0], parse_inputs("tokens", num_inputs=1, seq_len=2, cfg=CFG)))
