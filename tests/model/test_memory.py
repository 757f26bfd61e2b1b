"""What is estimated before anything is allocated, against what the compiler plans."""

import functools
import resource

import jax
import jax.numpy as jnp
import pytest

from bornbiased_jax import hardware, parallel
from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.evaluation.generation import generate
from bornbiased_jax.init import parameter_shapes
from bornbiased_jax.model import apply, empty_cache
from bornbiased_jax.model.adapters import lora
from bornbiased_jax.model.loss import loss_sum
from bornbiased_jax.model.memory import (
    cache_bytes,
    check_forward,
    check_weights,
    forward_bytes,
    largest_tensor_bytes,
    loop_operations,
    needed_operations,
    weights_bytes,
)
from bornbiased_jax.training import PretrainConfig
from bornbiased_jax.training.memory import memory_needed
from bornbiased_jax.training.optimizer import make_optimizer
from bornbiased_jax.training.program import abstract_state
from bornbiased_jax.training.throughput import flops_per_token
from tests.fixtures.programs import run_python

SIZES = dict(num_layers=2, vocab_size=512)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes", "batch", "length"),
    [
        ("gpt2-tiny", {}, 2, 512),
        ("llama-tiny", {}, 4, 128),
        ("qwen-tiny", {}, 1, 256),
        ("qwen2moe-tiny", {}, 4, 128),
        # Copies of rows for each expert are most of it.
        ("mixtral-tiny", {"d_ff": 1024, "num_experts": 16}, 4, 64),
    ],
)
def test_a_forward_pass_is_estimated_from_below_and_not_far_below(name, changes, batch, length):
    cfg = preset(name, **SIZES, **changes)
    shapes = parameter_shapes(cfg), jax.ShapeDtypeStruct((batch, length), jnp.int32)
    plan = jax.jit(functools.partial(apply, cfg)).lower(*shapes).compile().memory_analysis()
    planned = plan.temp_size_in_bytes + plan.output_size_in_bytes
    estimate = forward_bytes(cfg, batch, length, logits=length)
    assert estimate < 1.1 * planned and planned < 3 * estimate


def test_a_cache_and_the_largest_tensor_are_counted():
    cfg = preset("qwen-tiny", **SIZES)
    cache = jax.eval_shape(functools.partial(empty_cache, cfg, 3, 7))
    assert cache_bytes(cfg, 3, 7) == 4 * (cache.keys_LBSGK.size + cache.values_LBSGK.size)
    assert largest_tensor_bytes(cfg) == 4 * cfg.vocab_size * cfg.d_model


class DecodingError(Exception):
    """Decoding has begun."""


def test_half_precision_weights_have_half_the_cache(monkeypatch):
    """A cache of 2²² positions, of 2 · 2 · 8 numbers each with its copy."""

    def decode(*_arguments):
        raise DecodingError

    monkeypatch.setattr(hardware, "device_memory", lambda: 400 * 2**20)
    monkeypatch.setattr("bornbiased_jax.evaluation.generation._decode", decode)
    sizes = "num_layers=1,d_model=8,num_heads=1,d_ff=8,vocab_size=16,max_seq_len=5000000"
    for dtype, outcome in ((None, InputError), (jnp.bfloat16, DecodingError)):
        with pytest.raises(outcome):
            generate(open_checkpoint(f"seed:1@gpt2-tiny,{sizes}", dtype=dtype), [1], 2**22 - 1)


@pytest.mark.parametrize("changes", [{}, {"optimizer": "muon"}, {"adapter": lora(2)}], ids=["adamw", "muon", "lora"])
def test_a_training_state_is_counted_as_it_is_held(changes):
    """Muon has one mean of a matrix; an adapter has its base besides."""
    config = PretrainConfig(preset("llama-tiny", **SIZES), "builtin:prose", "run", seeds=(1, 2, 3), **changes)
    mesh = parallel.build_mesh(parallel.parse_mesh(None))
    arrays = abstract_state(config, make_optimizer(config, 1), mesh).arrays
    gradient = parallel.tree_bytes(arrays[0]) // 3
    base = weights_bytes(config.model) if config.adapter else 0
    assert memory_needed(config).state == base + parallel.tree_bytes(arrays) + gradient


def test_a_shared_expert_is_counted_for_every_token():
    """Against the same mixture without one: three matrices of its width and a column for its gate in every block."""
    cfg = preset("qwen2moe-tiny", **SIZES, shared_expert_width=1000)
    routed = cfg.replace(shared_expert_width=None)
    numbers = cfg.num_layers * (3 * 1000 + 1) * cfg.d_model
    assert weights_bytes(cfg) - weights_bytes(routed) == 4 * numbers
    assert loop_operations(cfg, 7) - loop_operations(routed, 7) == 2 * 7 * numbers
    assert flops_per_token(cfg, 7) - flops_per_token(routed, 7) == 6 * numbers
    # Of a plain pass the widest of what is alive together; of a backward pass also the products of the other block.
    widest = 4 * 5 * 7 * 3 * (1000 - 2 * cfg.d_ff)
    assert forward_bytes(cfg, 5, 7) - forward_bytes(routed, 5, 7) == widest
    sizes = [forward_bytes(config, 5, 7, keep_activations=True) for config in (cfg, routed)]
    assert sizes[0] - sizes[1] == widest + 4 * 5 * 7 * 2 * 1000


def test_a_value_gate_is_counted_for_each_head_of_values():
    cfg = preset("qwen-tiny", **SIZES)
    gated = cfg.replace(output_gate="value")
    numbers = cfg.num_layers * cfg.kv_heads * cfg.key_dim**2
    for operations in (loop_operations, needed_operations):
        assert operations(gated, 7) - operations(cfg, 7) == 2 * 7 * numbers
    assert flops_per_token(gated, 7) - flops_per_token(cfg, 7) == 6 * numbers


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-tiny", "mixtral-tiny"])
def test_a_block_more_costs_a_backward_pass_what_it_keeps(name):
    """In a loop of blocks; experts' hidden units are computed again."""

    def sizes(num_layers):
        cfg = preset(name, num_layers=num_layers, d_model=32, d_ff=128, vocab_size=64)
        shapes = parameter_shapes(cfg), jax.ShapeDtypeStruct((12, 65), jnp.int32)
        gradient = jax.grad(lambda params, tokens_BT1: loss_sum(cfg, params, tokens_BT1)[0])
        plan = jax.jit(gradient).lower(*shapes).compile().memory_analysis()
        return plan.temp_size_in_bytes, forward_bytes(cfg, 12, 64, keep_activations=True)

    planned, estimated = (deep - shallow for deep, shallow in zip(sizes(12), sizes(9), strict=True))
    assert estimated <= planned < 1.1 * estimated


def test_a_window_and_a_block_of_rows_cost_less():
    cfg = preset("gpt2-tiny", **SIZES)
    content = forward_bytes(cfg, 1, 2048, all_weights=True)
    windowed = cfg.replace(window=64)
    assert forward_bytes(windowed, 1, 2048) < forward_bytes(cfg, 1, 2048) < content
    # Where weights are captured, those of keys before the window are zeros; where layers differ, each takes all keys.
    assert forward_bytes(windowed, 1, 2048, all_weights=True) == content
    for pattern in ("lg", "l"):
        assert forward_bytes(windowed.replace(attention_pattern=pattern), 1, 2048) == forward_bytes(cfg, 1, 2048)


def test_attention_of_global_layers_has_no_window():
    local, mixed, full = (preset("gemma3-tiny", **SIZES, attention_pattern=pattern) for pattern in ("ll", "lg", "gg"))
    counts = [flops_per_token(cfg, 512) for cfg in (local, mixed, full)]
    assert counts[1] - counts[0] == counts[2] - counts[1] > 0
    # Each of 512 queries meets 256.5 keys, and with the window of 32 all but the first 31 meet 32.
    fewer = 256.5 - (512 * 32 - 31 * 32 / 2) / 512
    assert counts[1] - counts[0] == pytest.approx(12 * full.num_heads * full.key_dim * fewer)


@pytest.mark.parametrize("pattern", ["ll", "lg", "gl", "gg"])
def test_operations_of_attention_are_those_of_the_keys_that_each_query_sees(pattern):
    cfg = preset("gemma3-tiny", **SIZES, attention_pattern=pattern, window=5)
    T, query = 12, cfg.num_heads * cfg.key_dim
    seen = [[min(position + 1, 5 if kind == "l" else T) for position in range(T)] for kind in pattern]
    # A score and a share of the aggregate for each, counted against keys that nobody sees.
    without = cfg.replace(attention_pattern="ll", window=1)
    more = 4 * query * (sum(map(sum, seen)) - 2 * T)
    assert loop_operations(cfg, T) - loop_operations(without, T) == more
    more = 4 * query * (sum(seen[0]) + seen[1][-1] - T - 1)
    assert needed_operations(cfg, T) - needed_operations(without, T) == more


def test_the_sentence_names_the_sizes_and_the_remedy(monkeypatch):
    monkeypatch.setattr(hardware, "device_memory", lambda: None)
    monkeypatch.setattr(hardware, "available_memory", lambda: 2 * hardware.GIB)
    cfg = preset("gpt2-tiny")
    check_weights(cfg)
    check_forward(cfg, 8, 1024)
    with pytest.raises(InputError, match=r"d_model=65536.* needs about .* GiB of memory, and 2.0 GiB are available"):
        check_weights(cfg.replace(d_model=65536))
    with pytest.raises(InputError, match="8 sequences of 65,536 tokens needs .*: ask for shorter sequences"):
        check_forward(cfg, 8, 65536)
    # What lies on a device is compared with the device.
    monkeypatch.setattr(hardware, "device_memory", lambda: 2**60)
    check_forward(cfg, 8, 65536)


TINY = "num_layers=1,d_model=8,num_heads=1,d_ff=8,vocab_size=300"
SET = " ".join(f"--set {setting}" for setting in TINY.split(","))
HUGE = {
    "predict --model gpt2-tiny --set num_layers=1000000000 --seq-len 8": "num_layers=1000000000 is not an integer",
    "predict --model gpt2-tiny --seq-len 16000000": "theory for 4 layers at 16,000,000 positions",
    "probe preference --model gpt2-tiny --num-inputs 4 --seq-len 16000000": "16,000,000 tokens",
    "probe preference --model gpt2-tiny --num-inputs 9999999999 --seq-len 4": "--num-inputs 9999999999 is not",
    f"probe preference --model gpt2-tiny {SET} --set vocab_size=16000000 --set d_model=100000 --num-inputs 4 "
    "--seq-len 4": "vocab_size=16000000",
    "probe contraction --model gpt2-tiny --set d_model=1000000 --num-inputs 4 --seq-len 4": "d_model=1000000",
    "generate seed:1@gpt2-tiny,max_seq_len=1000000000 --prompt-ids 1 --max-new-tokens 100000000": "GiB",
    f"fingerprint seed:1@gpt2-tiny,{TINY} --outputs --num-inputs 10 --seq-len 16000000 --out x": "16,000,000 tokens",
    f"fingerprint seed:1@gpt2-tiny,{TINY} --outputs --num-inputs 10 --vocab-size 0 --out x": (
        "--vocab-size 0 is not an integer"
    ),
    f"digest seed:1@gpt2-tiny,{TINY},d_ff=16000000,d_model=1000000": "the largest tensor",
    f"sinks seed:1@gpt2-tiny,{TINY} --text builtin:prose --tokenizer bytes --lengths 16000000": "16,000,000 tokens",
    f"intervene seed:1@gpt2-tiny,{TINY} --text builtin:prose --tokenizer bytes --first-token 1 "
    "--length 16000000": "16,000,000 tokens",
    f"evaluate seed:1@gpt2-tiny,{TINY} --text builtin:prose --tokenizer bytes --context 16000000": "16,000,000 tokens",
    f"whichseed seed:1@gpt2-tiny,{TINY} --seeds 0:100000 --entries 9999999": "9,999,999 numbers of each seed",
    "pretrain --model gpt2-tiny --set d_model=1000000 --data builtin:prose --out x": "d_model=1000000",
    "pretrain --model gpt2-tiny --context 16000000 --data builtin:prose --out x": "16,000,000 tokens",
    "pretrain --model gpt2-tiny --steps 99999999999 --data builtin:prose --out x": "--steps 99999999999 is not",
    f"pretrain --model gpt2-tiny {SET} --tokenizer bpe:99999999 --data builtin:prose --out x": "bpe:N",
}


@pytest.mark.parametrize("line", HUGE)
def test_memory_checked_before_allocation(line, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hardware, "available_memory", lambda: 16 * hardware.GIB)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    err = refused(line.split())
    # A note on widths may come before the sentence.
    *notes, sentence = err.splitlines()
    assert sentence.startswith("bornbiased: ") and HUGE[line] in sentence
    assert all(note.startswith("d_ff stays") for note in notes)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB
    assert not list(tmp_path.iterdir())


def test_a_limit_of_the_process_counts():
    code = (
        "import resource; from bornbiased_jax import hardware; free = hardware.available_memory();"
        "size = 2**33; resource.setrlimit(resource.RLIMIT_AS, (size, size));"
        "print(hardware.available_memory() < size)"
    )
    assert run_python(code) == "True\n"
