"""The table of what each field means to each reader is complete, and each of its entries is true."""

import functools
import math

import jax
import jax.numpy as jnp
import pytest

from bornbiased_jax import prediction
from bornbiased_jax.checkpoints.export import config_json, family_of
from bornbiased_jax.checkpoints.formats.hf_config import read_config
from bornbiased_jax.config import FIELDS, ModelConfig, preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.fields import TABLE, unread_fields
from bornbiased_jax.init import distribution, init_seed, parameter_shapes
from bornbiased_jax.lineage.same_model import differing_settings
from bornbiased_jax.model import apply, attention
from bornbiased_jax.parameters import parameter_table
from bornbiased_jax.theory import predict as whole_model

SIZES = dict(num_layers=2, num_heads=4, d_model=32, d_ff=40, vocab_size=64, max_seq_len=48)
GPT2, LLAMA = preset("gpt2-tiny", **SIZES), preset("llama-tiny", **SIZES)
LEARNED = GPT2.replace(positions="learned")
LLAMA3 = LLAMA.replace(rope_scaling="llama3", rope_scaling_factor=4.0, rope_original_max_seq_len=16)
BASES = {
    "gpt2": LEARNED,
    "gpt_neox": preset("neox-tiny", **SIZES),
    "llama": LLAMA,
    "llama3": LLAMA3,
    "mistral": LLAMA.replace(window=5),
    "qwen2": preset("qwen-tiny", **SIZES),
    "qwen3": preset("qwen3-tiny", **SIZES),
    "olmo2": preset("olmo2-tiny", **SIZES),
    "qwen2-mixed": preset("qwen-tiny", **SIZES, window=5, attention_pattern="gl"),
    "gemma3_text": preset("gemma3-tiny", **SIZES, embedding_scale=math.sqrt(32), window=5, attention_pattern="lg"),
    "gemma2": preset(
        "gemma3-tiny",
        **SIZES,
        embedding_scale=math.sqrt(32),
        window=5,
        attention_pattern="lg",
        qk_norm=False,
        rope_local_theta=None,
        attention_softcap=20.0,
    ),
    "cohere": LLAMA.replace(norm="layernorm", norm_parameters="scale", parallel_residual=True, shared_norm=True),
    "mixtral": preset("mixtral-tiny", **SIZES),
    "qwen3_moe": preset("qwen3moe-tiny", **SIZES),
    "qwen2_moe": preset("qwen2moe-tiny", **SIZES),
}
# What theory refuses whatever else is changed.
WITHOUT_THEORY = ("qwen2-mixed", "gemma3_text", "gemma2", "mixtral", "qwen3_moe", "qwen2_moe")
# Every field with another value than any base has.
CHANGES = {
    "num_layers": 3,
    "num_heads": 8,
    "num_kv_heads": 1,
    "head_dim": 12,
    "d_model": 64,
    "d_ff": 44,
    "vocab_size": 61,
    "max_seq_len": 40,
    "norm": "none",
    "norm_eps": 1e-3,
    "norm_parameters": "scale",
    "norm_position": "post",
    "activation": "relu",
    "gated_mlp": True,
    "residual": False,
    "residual_scale": 0.5,
    "parallel_residual": True,
    "shared_norm": True,
    "attention": False,
    "mlp": False,
    "bias": True,
    "qkv_bias": True,
    "tie_embeddings": False,
    "embedding_scale": 3.0,
    "logit_scale": 0.25,
    "logit_softcap": 20.0,
    "num_experts": 3,
    "experts_per_token": 1,
    "normalize_expert_weights": False,
    "shared_expert_width": 28,
    "positions": "none",
    "rope_theta": 777.0,
    "rotary_fraction": 0.5,
    "rope_pattern": "rn",
    "rope_scaling": "linear",
    "rope_scaling_factor": 3.0,
    "rope_low_freq_factor": 1.5,
    "rope_high_freq_factor": 5.0,
    "rope_original_max_seq_len": 24,
    "qk_norm": True,
    "qk_norm_scope": "projection",
    "window": 7,
    "attention_scale": 0.3,
    "attention_softcap": 0.7,
    "attention_pattern": "gl",
    "rope_local_theta": 55.0,
    "attention_kernel": "sigmoid",
    "sink_logit": "learned",
    "positional_scale": "amplify",
    "head_norm": True,
    "output_gate": "elementwise",
    "prefix_length": 3,
    "prefix_memory": "elu",
    "init": "normal-0.02",
    "init_groups": "up=normal:0.05",
}


def changed(cfg: ModelConfig, name: str) -> ModelConfig | None:
    """The configuration with one field changed; None where that makes no model."""
    value = CHANGES[name]
    if getattr(cfg, name) == value:
        value = (
            not value
            if isinstance(value, bool)
            else {"post": "pre", "projection": "head", "gl": "lg", "scale": "all"}[value]
        )
    try:
        return cfg.replace(**{name: value})
    except InputError:
        return None


def test_every_field_has_an_entry_and_a_change():
    assert tuple(TABLE) == FIELDS == tuple(CHANGES), "say in fields.py what a new field means to each reader"
    for name, entry in TABLE.items():
        for policy in entry:
            assert (policy.kind == "untouched") == bool(policy.reason), name


def theory_of(name: str) -> list[tuple[ModelConfig, ModelConfig]]:
    """Pairs of which theory takes the base."""
    left_out = [BASES[base] for base in WITHOUT_THEORY]
    return [(cfg, other) for cfg, other in bases_of(name) if cfg not in left_out]


def bases_of(name: str) -> list[tuple[ModelConfig, ModelConfig]]:
    """Pairs of a base and its change; attention's scope of norms matters only where there are such norms."""
    if name == "qk_norm_scope":
        chosen = [BASES["qwen3"], BASES["olmo2"]]
    elif name == "max_seq_len":
        chosen = [LEARNED.replace(positional_scale="attenuate")]
    else:
        chosen = [GPT2, *BASES.values()]
    return [(cfg, other) for cfg in chosen if (other := changed(cfg, name)) is not None]


def initial(cfg: ModelConfig):
    """Shapes and distributions of all parameters."""
    return {path: (row.shape, distribution(cfg, row)) for path, row in parameter_table(cfg).items()}


@pytest.mark.parametrize("name", FIELDS)
def test_initialization(name):
    policy = TABLE[name].initialization
    differ = [initial(cfg) != initial(other) for cfg, other in bases_of(name)]
    assert differ
    assert any(differ) if policy.kind == "used" else not any(differ)


def asked_of_theory(monkeypatch, cfg: ModelConfig):
    """Return the arguments that ``predict`` hands to the theory."""

    def stop(*args, **kwargs):
        raise ValueError((args, sorted(kwargs.items())))

    monkeypatch.setattr(whole_model, "predict", stop)
    with pytest.raises(InputError) as raised:
        prediction.predict(cfg, 16)
    return raised.value.__cause__.args[0]


@pytest.mark.parametrize("name", FIELDS)
def test_theory(name, monkeypatch):
    policy = TABLE[name].theory
    if policy.kind == "refused":
        for _, other in theory_of(name):
            with pytest.raises(InputError, match=name):
                prediction.predict(other, 16)
        return
    differ = [asked_of_theory(monkeypatch, a) != asked_of_theory(monkeypatch, b) for a, b in theory_of(name)]
    assert any(differ) if policy.kind == "used" else not any(differ)


def meaningless(cfg: ModelConfig) -> set[str]:
    """Fields that change nothing of what this configuration computes, and that files therefore leave out."""
    rope = {field for field in FIELDS if field.startswith(("rope_", "rotary_"))}
    scaling = rope - {"rope_theta", "rotary_fraction", "rope_scaling"}
    used = {"none": set(), "linear": {"rope_scaling_factor"}, "llama3": scaling}[cfg.rope_scaling]
    unread = scaling - used if cfg.positions == "rope" else rope
    unread |= set() if cfg.qk_norm else {"qk_norm_scope"}
    return unread | ({"experts_per_token", "normalize_expert_weights"} if cfg.num_experts is None else set())


@pytest.mark.parametrize("name", FIELDS)
def test_export_writes_or_refuses_every_field(name):
    """Whatever is written reads back as the same model; a field is never lost."""
    policy = TABLE[name].export
    written = told = 0
    for base in BASES.values():
        other = changed(base, name)
        if other is None:
            continue
        try:
            family = family_of(other)
        except InputError as error:
            # A change may leave its family and miss the next one by another field.
            blamed = str(error).removeprefix("transformers has no class for ").split("=")[0]
            assert blamed == name if policy.kind == "refused" else policy.kind == "used" and blamed in FIELDS
            continue
        assert policy.kind != "refused" or getattr(other, name) == policy.unless
        written += name not in meaningless(other)
        text = config_json(other, family, dtype="float32", tokenizer=None)
        back = read_config(text, "config.json").cfg
        # A file may have biases, zero, that the configuration lacks; others are refused with the weights.
        for field in set(FIELDS) - {"init", "init_groups", "bias", "qkv_bias", *meaningless(other)}:
            assert getattr(back, field) == getattr(other, field), (field, family.name)
        told += text != config_json(base, family_of(base), dtype="float32", tokenizer=None)
    if policy.kind == "used":
        assert told or not written
    if policy.kind == "untouched":
        assert written and not told


# Weights that are no softmax, and a softmax with a logit or with keys more than there are positions.
NOT_THE_KERNELS = {
    "attention_kernel",
    "sink_logit",
    "prefix_length",
    "attention_scale",
    "attention_softcap",
    "attention_pattern",
}


def calls_of_kernel(cfg, monkeypatch):
    """What the fused kernel would be asked by a model."""
    calls: list = []
    kernel = lambda q, k, v, window: calls.append((q.shape, k.shape, v.shape, window))  # noqa: E731
    monkeypatch.setattr(attention, "fused_attention", kernel)
    ids = jax.ShapeDtypeStruct((2, 16), jnp.int32)
    jax.eval_shape(functools.partial(apply, cfg), parameter_shapes(cfg), ids)
    return calls


CALLS_OF_LLAMA = [((2, 16, 4, 8), (2, 16, 4, 8), (2, 16, 4, 8), None)]


@pytest.mark.slow
def test_fused_attention_of_the_model_itself(monkeypatch):
    assert calls_of_kernel(LLAMA, monkeypatch) == CALLS_OF_LLAMA


@pytest.mark.slow
@pytest.mark.parametrize("name", FIELDS)
def test_fused_attention(name, monkeypatch):
    policy = TABLE[name].fused_attention
    other = changed(LLAMA, name)
    if name == "d_model":
        other = LLAMA.replace(d_model=64, head_dim=8)
    if name == "attention_pattern":
        other = LLAMA.replace(window=7, attention_pattern="gl")
    if name == "shared_norm":
        other = LLAMA.replace(parallel_residual=True, shared_norm=True)
    if name == "shared_expert_width":
        other = LLAMA.replace(num_experts=3, shared_expert_width=28)
    if other is None:
        assert name == "rope_local_theta", "a field of patterned layers, which the kernel does not take"
        return
    calls = calls_of_kernel(other, monkeypatch)
    # The module asks the same table, so what the kernel's one formula cannot compute is said here once more.
    assert (policy.kind == "refused") == (name in NOT_THE_KERNELS)
    if policy.kind == "refused":
        assert calls == []
    else:
        assert (calls != CALLS_OF_LLAMA) == (policy.kind == "used")


MIXED = {"rope_scaling": "llama3", "rope_original_max_seq_len": 16, "qk_norm": True, "num_experts": 2, "window": 3}
OTHER_VALUES = {
    "rope_theta": 77.0, "rotary_fraction": 0.5, "rope_scaling_factor": 8.0, "rope_low_freq_factor": 1.5,
    "rope_high_freq_factor": 3.0, "rope_original_max_seq_len": 9, "experts_per_token": 1,
    "normalize_expert_weights": False, "qk_norm_scope": "projection", "norm_eps": 0.1, "norm_position": "post",
    "norm_parameters": "none", "activation": "relu", "gated_mlp": False, "qkv_bias": True, "window": 5,
    "attention_scale": 0.3, "attention_softcap": 9.0, "attention_kernel": "centred", "sink_logit": "zero",
    "positional_scale": "amplify", "head_norm": True, "output_gate": "headwise",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": "linear", "rope_scaling_factor": 2.0},
        {**MIXED, "rope_scaling_factor": 2.0, "attention_pattern": "lg"},
        {"positions": "learned", "norm": "none", "bias": True},
        {"attention": False},
        {"mlp": False, "rope_scaling": "linear", "rope_scaling_factor": 2.0},
    ],
    ids=["linear", "mixed", "learned", "no attention", "no mlp"],
)
def test_a_program_depends_on_the_fields_that_it_reads_and_on_no_others(changes):
    cfg = LLAMA.replace(**changes)

    def program(cfg):
        params, tokens_BT = parameter_shapes(cfg), jax.ShapeDtypeStruct((1, 12), "int32")
        return jax.jit(lambda params, tokens_BT: apply(cfg, params, tokens_BT)).lower(params, tokens_BT).as_text()

    others = OTHER_VALUES | {"rope_scaling": "none" if cfg.rope_scaling == "linear" else "linear"}
    others["qk_norm"] = not cfg.qk_norm
    same = {field for field, value in others.items() if program(cfg.replace(**{field: value})) == program(cfg)}
    # Without a window or rotation there is no pattern, and without that no base of local layers.
    assert same == set(unread_fields(cfg)) - {"rope_local_theta", "attention_pattern", "rope_pattern"}


@pytest.mark.slow
@pytest.mark.parametrize(("pattern", "is_read"), [("gg", False), ("lg", True)])
def test_the_base_of_local_layers_is_read_where_a_layer_is_local(pattern, is_read):
    cfg = LLAMA.replace(attention_pattern=pattern, window=3)
    params, tokens_BT = init_seed(cfg, 0), jnp.arange(12)[None]
    plain, other = (
        apply(changed, params, tokens_BT).logits_BTV for changed in (cfg, cfg.replace(rope_local_theta=77.0))
    )
    assert bool(jnp.any(plain != other)) is is_read is ("rope_local_theta" not in unread_fields(cfg))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [({"attention_pattern": "gg", "window": 3}, "window", 5), ({"rope_pattern": "n"}, "rope_theta", 77.0)],
    ids=["no layer is local", "no layer is rotated"],
)
def test_fields_of_layers_that_a_pattern_leaves_out_are_not_read(changes, field, value):
    cfg = LLAMA.replace(**changes)
    params, tokens_BT = init_seed(cfg, 0), jnp.arange(12)[None]
    plain, other = (apply(changed, params, tokens_BT).logits_BTV for changed in (cfg, cfg.replace(**{field: value})))
    assert bool(jnp.all(plain == other))
    assert field in unread_fields(cfg) and differing_settings(cfg, cfg.replace(**{field: value})) == []
