"""The configuration refuses what it does not understand, and survives a round trip."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bornbiased_jax.config import FIELDS, PRESETS, TYPES, ModelConfig, check_config, parse_setting, preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import parameter_shapes
from bornbiased_jax.parameters import count_parameters
from bornbiased_jax.schema import Layers, ends, within


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_json(name):
    cfg = PRESETS[name]
    assert ModelConfig.from_dict(json.loads(json.dumps(cfg.to_dict()))) == cfg


def test_llama_nano_is_table_13():
    cfg = PRESETS["llama-nano"]
    assert (cfg.d_model, cfg.d_ff, cfg.num_layers, cfg.num_heads) == (768, 2048, 12, 12)
    assert (cfg.head_dim, cfg.vocab_size, cfg.max_seq_len) == (64, 32_000, 2048)
    assert (cfg.norm, cfg.activation, cfg.gated_mlp, cfg.positions) == ("rmsnorm", "silu", True, "rope")


def test_gpt2_large_preset_has_its_1_2_billion_block_parameters():
    cfg = PRESETS["gpt2-1.2b"]
    total = count_parameters(parameter_shapes(cfg))
    in_blocks = total - cfg.vocab_size * cfg.d_model
    # 12 D² a block, 9 D + F for its biases and norms, and the final norm.
    assert in_blocks == cfg.num_layers * (12 * 2048**2 + 9 * 2048 + 8192) + 2 * 2048


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"num_heads": 5}, "num_heads"),
        ({"num_kv_heads": 3}, "num_kv_heads"),
        ({"num_layers": 0}, "num_layers"),
        ({"d_model": 12.5}, "d_model"),
        ({"norm": "batchnorm"}, "norm"),
        ({"bias": 1}, "bias"),
        ({"rope_theta": float("nan")}, "rope_theta"),
        ({"rotary_fraction": 1.5}, "rotary_fraction"),
        ({"norm_eps": -1.0}, "norm_eps"),
        ({"attention": False, "mlp": False}, "attention"),
        ({"parallel_residual": True, "residual": False}, "parallel_residual"),
        ({"num_heads": 128}, "RoPE"),
        ({"attention_kernel": "sigmoid", "sink_logit": "zero"}, "sink_logit"),
        ({"widht": 3}, "widht"),
    ],
)
def test_bad_fields_are_refused_by_name(changes, word):
    with pytest.raises(InputError, match=word):
        preset("gpt2-tiny", **changes)


NUMBERS = [name for name, kind in TYPES.items() if "int" in str(kind) or "float" in str(kind)]


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_has_a_range_and_is_refused_beyond_it(name):
    number, low, high = ends(TYPES[name])
    above = high + 1 if number is int else high * 1.01
    for value in (low - 1, above, 10**400, float("nan"), float("inf"), -float("inf"), "1", True, [1]):
        with pytest.raises(InputError, match=f"^{name}=.* is not an? (integer|number) from "):
            preset("gpt2-tiny", **{name: value})


def test_scaling_between_equal_frequencies_is_refused():
    with pytest.raises(InputError, match="rope_low_freq_factor=4 is not below"):
        preset("llama-tiny", rope_scaling="llama3", rope_low_freq_factor=4.0)


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(InputError, match="gpt2-nano"):
        preset("gpt2-nanoo")
    with pytest.raises(InputError, match="d_model"):
        preset("gpt2-tiny", d_modle=3)


def test_derived_sizes_follow_unless_given():
    assert preset("gpt2-tiny", d_model=256).head_dim == 64
    assert preset("gpt2-tiny", num_heads=8).num_kv_heads == 8
    assert preset("gpt2-tiny", num_heads=8).head_dim == 16
    assert preset("gpt2-tiny", d_model=256, head_dim=32).head_dim == 32
    assert preset("qwen-tiny", num_heads=8).num_kv_heads == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("d_model=64", ("d_model", 64)),
        ("bias=true", ("bias", True)),
        ("bias=False", ("bias", False)),
        ("norm_eps=1e-6", ("norm_eps", 1e-6)),
        ("norm=none", ("norm", "none")),
        ("window=null", ("window", None)),
    ],
)
def test_settings_parse(text, expected):
    assert parse_setting(text) == expected


def test_a_setting_without_equals_is_refused():
    with pytest.raises(InputError, match="field=value"):
        parse_setting("d_model")


@pytest.mark.slow
@given(st.sampled_from(FIELDS), st.text(max_size=8))
def test_any_text_as_a_setting_gives_a_config_or_a_sentence(field, text):
    try:
        name, value = parse_setting(f"{field}={text}")
        cfg = preset("gpt2-tiny", **{name: value})
    except InputError as error:
        assert str(error)
    else:
        assert ModelConfig.from_dict(cfg.to_dict()) == cfg


def test_numbers_of_numpy_are_numbers_and_its_flags_are_none():
    assert within(Layers, np.int64(8), "num_layers") == 8 and type(within(Layers, np.int64(8), "num_layers")) is int
    with pytest.raises(InputError, match="num_layers=.*is not an integer from 1 to 10,000"):
        within(Layers, np.bool_(True), "num_layers")


def test_parameters_in_place_of_a_configuration_are_named_by_their_type():
    with pytest.raises(InputError, match=r"^a dict is no ModelConfig: give one"):
        check_config({"embed": list(range(1000))})
