"""The adapter from a configuration to the theory, and the JSON it returns."""

import json
import resource
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from bornbiased_jax import given_table, hardware, prediction, trainability
from bornbiased_jax.config import PRESETS, ModelConfig, preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.given_table import top1_given_table
from bornbiased_jax.init import distribution, init_seed
from bornbiased_jax.parameters import parameter_table
from bornbiased_jax.prediction import check_room, predict, predict_gradients, stack_of
from bornbiased_jax.probes.inputs import random_tokens
from bornbiased_jax.probes.run import probe
from bornbiased_jax.probes.subject import untrained
from bornbiased_jax.probes.variance import position_moments
from bornbiased_jax.theory import mean_field
from tests.tiers import NIGHTLY

TINY = preset("gpt2-tiny")
# Of the single token no distribution of top-1 fractions is integrated: most of the time that a prediction takes.
NO_LEADER = {"vocab_size": 1}
ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("name", PRESETS)
def test_stack_has_initial_standard_deviations(name: str) -> None:
    cfg = PRESETS[name]
    if name in ("gemma3-tiny", "mixtral-tiny", "qwen3moe-tiny", "qwen2moe-tiny"):
        for refused in (lambda: predict(cfg, 16), lambda: stack_of(cfg)):
            with pytest.raises(InputError, match="theory does not cover"):
                refused()
        return
    stack, drawn = stack_of(cfg), parameter_table(cfg)
    std = {path: distribution(cfg, row).std for path, row in drawn.items()}
    assert std["embed/embedding"] == stack.embedding_std
    for module in ("attention/query", "attention/key", "attention/value", "attention/output", "mlp/up", "mlp/down"):
        assert std[f"blocks/{module}/kernel"] == stack.std(module.partition("/")[2], 1), module
    assert drawn["blocks/attention/output/kernel"].shape == (cfg.num_layers, stack.query_width, stack.width)
    assert drawn["blocks/attention/value/kernel"].shape == (cfg.num_layers, stack.width, stack.value_width)
    assert drawn["blocks/mlp/down/kernel"].shape == (cfg.num_layers, stack.mlp_width, stack.width)
    assert stack.position_std == std.get("positions/embedding", 0.0)


@pytest.mark.slow
def test_the_record() -> None:
    record = json.loads(json.dumps(predict(TINY, 24, num_inputs=200)))
    L = TINY.num_layers
    for key in ("", "_std", "_low", "_high"):
        assert len(record[f"inter_cosine_by_layer{key}"]) == L
        assert record[f"inter_cosine_final{key}"] == record[f"inter_cosine_by_layer{key}"][-1]
    assert len(record["intra_cosine_by_layer"]) == L
    assert len(record["position_std"]) == 24
    assert np.shape(record["attention_std_by_layer"]) == np.shape(record["residual_std_by_layer"]) == (L, 24)
    assert record["top1_share_p10"] <= record["top1_share_p50"] <= record["top1_share_p90"]
    assert record["log10_p"] <= 0
    low, mean, high = (np.array(record[f"inter_cosine_by_layer{k}"]) for k in ("_low", "", "_high"))
    assert np.all(low < mean) and np.all(mean < high)


@pytest.mark.nightly
def test_more_inputs_narrow_the_interval_to_that_of_seeds_alone() -> None:
    small = TINY.replace(vocab_size=50)
    few, many, endless = (predict(small, 8, num_inputs=n, tokens=False) for n in (20, 2000, None))
    width = [p["inter_cosine_final_high"] - p["inter_cosine_final_low"] for p in (few, many, endless)]
    assert width[0] > width[1] > width[2] > 0
    assert endless["inter_cosine_by_layer_std"] == endless["inter_cosine_seed_std_by_layer"]
    assert endless["log10_p"] is None


@pytest.mark.slow
def test_positional_decay_of_the_first_block() -> None:
    """Figure 9: independent values of standard deviation σ average to σ/√i, logits being small at this width."""
    stds = predict(TINY.replace(**NO_LEADER), 16, tokens=False)["position_std"]
    # The eps of the norm: inputs have variance 4e-4. A logit's variance, (0.02²·128)², is 0.0026.
    normed = 0.0004 / (0.0004 + TINY.norm_eps)
    expected = 0.02 * np.sqrt(128 * normed / np.arange(1, 17))
    np.testing.assert_allclose(stds, expected, rtol=0.0026)


@pytest.mark.slow
def test_without_attention_position_std_is_the_stream_s() -> None:
    prediction = predict(TINY.replace(attention=False, **NO_LEADER), 4, tokens=False)
    assert prediction["attention_std_by_layer"] == []
    assert prediction["position_std"] == prediction["residual_std_by_layer"][-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"window": 5, "sink_logit": "zero", "positional_scale": "amplify"},
        {"attention_kernel": "sigmoid", "positions": "learned"},
        {"head_norm": True, "output_gate": "headwise", "sink_logit": "learned"},
        {"output_gate": "elementwise", "positional_scale": "attenuate", "positions": "none"},
        {"qk_norm": True, "qk_norm_scope": "projection"},
        {"norm": "none", "residual": False},
    ],
)
def test_every_field_is_predicted(changes: dict) -> None:
    cfg = ModelConfig(num_layers=2, num_heads=2, d_model=32, d_ff=64, **NO_LEADER, **changes)
    prediction = predict(cfg, 12, num_inputs=50, tokens=False)
    numbers = [value for value in prediction.values() if isinstance(value, (int, float, list))]
    assert all(np.all(np.isfinite(number)) for number in numbers)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"num_layers": 12, "norm": "none", "residual": False, "attention": False}, marks=NIGHTLY),
        {"num_layers": 40, "residual": False},
        pytest.param({"num_layers": 80, "init": "normal-0.02"}, marks=NIGHTLY),
    ],
)
def test_deep_stacks_near_certainty_fit_in_memory(changes: dict) -> None:
    """Cosines up to 1 exactly: the fraction's distribution may not need a lattice as fine as √(1 − ρ)."""
    tracemalloc.start()
    prediction = predict(TINY.replace(activation="relu", **changes), 8, num_inputs=2_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300e6
    assert 0.5 < prediction["inter_cosine_final"] <= 1
    assert (
        prediction["inter_cosine_final_low"]
        <= prediction["inter_cosine_final"]
        <= prediction["inter_cosine_final_high"]
        <= 1
    )
    # A tenth of the seeds may lie below p10, so the mean may too, by a tenth of it.
    assert 0.9 * prediction["top1_share_p10"] <= prediction["top1_share_mean"] <= 1


@pytest.mark.nightly
def test_the_command_takes_less_than_ten_seconds() -> None:
    """At nano size and T = 1,024, start-up included, on a core that imports the libraries in three seconds and a third.

    Other programs on the core's second thread double the processor time of anything: it is compared with the import's,
    taken before and after.
    """

    def seconds(*words: str) -> tuple[float, str]:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        process = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True, cwd=ROOT)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, process.stdout

    libraries = ["-c", "import flax, jax, matplotlib.pyplot, optax, scipy.stats"]
    predicting = ["-m", "bornbiased_jax", "predict", "--model", "gpt2-nano", "--seq-len", "1024", "--json", "-"]
    first, (taken, printed), last = seconds(*libraries)[0], seconds(*predicting), seconds(*libraries)[0]
    assert len(json.loads(printed)["inter_cosine_by_layer"]) == 12
    assert taken < 3 * (first + last) / 2


@pytest.mark.parametrize(
    ("changes", "arguments", "named"),
    [
        ({}, {"seq_len": 0}, "length"),
        ({}, {"seq_len": 8, "num_inputs": 1}, "num_inputs"),
        ({}, {"seq_len": 8, "coverage": 1.5}, "coverage"),
        ({"window": 16}, {"seq_len": 4096}, "window"),
        ({"positions": "learned", "max_seq_len": 8}, {"seq_len": 9}, "max_seq_len"),
        ({"num_layers": 60, "norm": "none", "residual": False}, {"seq_len": 8}, "num_layers"),
        ({"gated_mlp": True, "init.gate": "zeros"}, {"seq_len": 2}, "gate: its weights are zeros"),
    ],
)
def test_bad_input_is_named(changes: dict, arguments: dict, named: str) -> None:
    with pytest.raises(InputError, match=named):
        predict(TINY.replace(**changes), **arguments)


@pytest.mark.nightly
def test_wide_models_are_predicted_as_far_as_the_theory_integrates() -> None:
    """With weights of 0.02 the logits' variance is (std² D)²: 171 at D = 32,768, 654 at 65,536 with the norm's ε."""
    wide = dict(num_layers=1, num_heads=1, init="normal-0.02")
    prediction = predict(TINY.replace(**wide, d_model=32_768), 16, tokens=False)
    assert 0 < prediction["intra_cosine_by_layer"][-1] < 1
    for kernel in ("softmax", "sigmoid"):
        changes = dict(wide, d_model=65_536, attention_kernel=kernel)
        with pytest.raises(InputError, match=r"variance: 65\d.*above 200") as caught:
            predict(TINY.replace(**changes), 16)
        assert "\n" not in str(caught.value)
    # Normed queries and keys keep it at 1.
    assert predict(TINY.replace(**wide, d_model=65_536, qk_norm=True), 16, tokens=False)


def test_theory_computes_with_one_thread_of_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that wait for one another on a busy machine made predictions take ten times as long."""
    threads = []

    def look(*_arguments: object, **_options: object) -> None:
        threads.append({library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"})
        raise ValueError("seen")

    monkeypatch.setattr(prediction.whole_model, "predict", look)
    monkeypatch.setattr(mean_field, "profile", look)
    monkeypatch.setattr(given_table, "profile", look)
    with threadpool_limits(2, user_api="blas"):
        trainability.diagram(TINY, 4, 8)
        for predicted in (
            lambda: predict(TINY, 4),
            lambda: predict_gradients(TINY, 4, 8),
            lambda: top1_given_table(TINY, 4, 8, 0),
        ):
            before = len(threads)
            with pytest.raises(InputError, match="seen"):
                predicted()
            assert len(threads) == before + 1
    assert all(seen == {1} for seen in threads)


def test_room_for_all_positions_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a window, for gradients and for a diagram a node is at every position."""
    monkeypatch.setattr(hardware, "device_memory", lambda: None)
    monkeypatch.setattr(hardware, "available_memory", lambda: hardware.GIB)
    for refused in (
        lambda: predict(TINY.replace(window=16), 900),
        lambda: predict_gradients(TINY.replace(num_layers=12), 500, 4),
        lambda: trainability.diagram(TINY, 500, 4),
    ):
        with pytest.raises(InputError, match="positions needs about .* GiB of memory"):
            refused()


def test_asked_room_is_what_theory_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr(hardware, "check_memory", lambda needed, *_, **__: asked.append(needed))
    cfg = TINY.replace(window=4)
    check_room(cfg, 96)
    tracemalloc.start()
    kept = mean_field.profile(stack_of(cfg), 96)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept.layers and 0.8 * taken < asked[0] < taken


@pytest.mark.parametrize("kernel", ["softpick", "clipped"])
def test_a_kernel_without_a_theory_is_refused(kernel):
    with pytest.raises(InputError, match=f"softmax, sigmoid and centered attention, not attention_kernel={kernel}"):
        predict(preset("gpt2-tiny", attention_kernel=kernel), 16)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"bias": True, "init.bias": "normal:0.5"}, "init.bias=normal:0.5"),
        ({"init.norm": "normal:0.5"}, "init.norm=normal:0.5"),
        ({"sink_logit": "learned", "init.sink_logit": "ones"}, "init.sink_logit=ones"),
        ({"prefix_memory": "elu", "init.prefix_memory": "normal:0.1"}, "init.prefix_memory=normal:0.1"),
        ({"init.up": "ones"}, "init.up=ones"),
        ({"init.embedding": "ones"}, "init.embedding=ones"),
    ],
)
def test_distributions_that_theory_does_not_follow_are_refused(changes: dict, named: str) -> None:
    """Norms are taken as ones, biases as zeros, and matrices as draws: nothing else is passed over in silence."""
    with pytest.raises(InputError, match=f"{named}: leave"):
        predict(TINY.replace(**changes), 8)
    assert stack_of(TINY.replace(**{"init.up": "zeros"})).std("up", 0) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"init": "modded-nanogpt"}, marks=NIGHTLY),
        {"tie_embeddings": True, "init.embedding": "zeros"},
    ],
)
def test_equal_logits_are_answered_with_the_first_token(changes: dict) -> None:
    cfg = preset("llama-tiny", num_layers=1, d_model=16, num_heads=2, d_ff=32, vocab_size=50, **changes)
    (measured,) = probe(untrained(cfg), [0], random_tokens(40, 6, 50))
    assert (measured["preference"]["top1_id"], measured["preference"]["top1_share"]) == (0, 1.0)
    predicted: dict = {**predict(cfg, 6, num_inputs=40)}
    assert {predicted[f"top1_share_{name}"] for name in ("mean", "p10", "p50", "p90")} == {1.0}
    assert predicted["overlap"] == 1.0
    for name in ("log10_p", "log10_p_p10", "log10_p_p90"):
        assert predicted[name] == pytest.approx(measured["preference"]["log10_p"])
    assert predict(cfg, 6)["log10_p"] is None


@pytest.mark.parametrize("changes", [{"init": "modded-nanogpt"}, {"init": "rezero", "residual": False}])
def test_a_head_or_states_of_zeros_give_equal_logits(changes: dict) -> None:
    cfg = preset("llama-tiny", num_layers=1, d_model=16, num_heads=2, d_ff=32, vocab_size=8, **changes)
    assert top1_given_table(cfg, 2, 10, 0) == (1.0, 1.0, 1.0)
    assert predict(cfg, 2, num_inputs=10)["top1_share_mean"] == 1.0


def test_random_tokens_need_two_to_choose_from() -> None:
    with pytest.raises(InputError, match="vocab_size=1: set it to 2 or more"):
        predict(TINY.replace(vocab_size=1), 8)
    assert predict(TINY.replace(vocab_size=1), 8, tokens=False)["top1_share_mean"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("head_norm", [False, True])
def test_a_gate_of_values_reads_the_values(head_norm: bool) -> None:
    """It halves values before they are aggregated, so that a norm of heads takes that out again."""
    cfg = preset("gpt2-tiny", num_layers=1, d_model=256, num_heads=4, d_ff=64, positions="none", **NO_LEADER)
    cfg = cfg.replace(output_gate="value", head_norm=head_norm, mlp=False, **{"init.value_gate": "normal:0.4"})
    (expected,) = predict(cfg, 8, tokens=False)["attention_std_by_layer"]
    x_NTD = np.random.default_rng(0).normal(0.0, cfg.embedding_std, (100, 8, 256)).astype(np.float32)
    read = ("attention_output",)
    pooled = [
        position_moments(cfg, init_seed(cfg, seed), x_NTD, quantities=read)[read[0]].pooled_LT for seed in range(4)
    ]
    # As a gate that reads the stream, and the norm before it, these were 7% less and a half.
    np.testing.assert_allclose(np.sqrt(np.mean(pooled, axis=0))[0], expected, rtol=0.02)


def test_a_gate_of_values_needs_attention() -> None:
    plain, gated = (stack_of(TINY.replace(attention=False, output_gate=gate)) for gate in ("none", "value"))
    assert plain.group_stds == gated.group_stds


@pytest.mark.slow
@pytest.mark.parametrize("init", ["gpt2-scaled", "lecun"])
def test_the_first_token_of_centered_attention_adds_nothing(init: str) -> None:
    """Its variance is a difference of equal numbers, which rounding may leave below zero."""
    predicted = predict(TINY.replace(attention_kernel="centred", init=init, **NO_LEADER), 4, tokens=False)
    for values in (predicted["position_std"], *predicted["attention_std_by_layer"]):
        assert values[0] == pytest.approx(0.0, abs=1e-6) and min(values[1:]) > 1e-4
