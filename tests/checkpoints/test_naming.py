"""Roles by names: every tensor that transformers writes has a role, and its axes are symmetries of the model."""

import json
import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from bornbiased_jax.checkpoints import conventions, open_checkpoint
from bornbiased_jax.checkpoints import names as name_parser
from bornbiased_jax.checkpoints.by_role import read_by_names, read_by_role
from bornbiased_jax.checkpoints.naming import NamedRoles
from bornbiased_jax.checkpoints.native_roles import NativeRoles
from bornbiased_jax.checkpoints.tensors import NamedTensors, Tensor
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.fingerprint_pass import weights_digests
from tests.checkpoints.architectures import (
    ENCODERS,
    FURTHER,
    MODELS,
    auto_class,
    named_as_internlm2,
    transformers_config,
)
from tests.checkpoints.published_names import PUBLISHED, llama_tensors, published_tensors
from tests.tiers import nightly_except

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


HF = Path(__file__).resolve().parent.parent / "fixtures" / "hf"


@pytest.fixture
def rng():
    return np.random.default_rng(0)


# The position of a head is in ALiBi's slope, or a norm of its own has its number: heads are not exchangeable.
FIXED_HEADS = {"mpt", "bloom", "stablelm, norms of heads"}


def _write_model(name, folder):
    """Write a random model in which no vector is constant; return its tensors and its configuration."""
    torch.manual_seed(1)
    model = auto_class(name).from_config(transformers_config(name))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    return tensors, json.loads((folder / "config.json").read_text())


def _source(tensors, config, **options):
    named = {name: Tensor("F32", array.shape, partial(tensors.__getitem__, name)) for name, array in tensors.items()}
    return NamedRoles(NamedTensors("here", named), config, **options)


def _logits(name, folder):
    model = auto_class(name).from_pretrained(folder).eval()
    with torch.no_grad():
        logits = model(torch.arange(10, 34).reshape(2, 12)).logits.numpy()
    assert np.all(np.isfinite(logits))
    return logits


class _Symmetry:
    """A permutation of every axis, applied to the tensors of the files by the roles that they have."""

    def __init__(self, tensors, config, name, fixed=()):
        # Tensors of their own entries' numbers show where in the files an entry of a role lies.
        numbers = {key: np.arange(array.size, dtype=np.float64).reshape(array.shape) for key, array in tensors.items()}
        self.source = _source(tensors, config)
        self.places = _source(numbers, {**config, "tie_word_embeddings": False})
        self.tensors = tensors
        self.rng = np.random.default_rng(3)
        shape = self.source.shape("language")
        self.heads, num_groups = shape.num_heads or 1, shape.num_kv_heads or 1
        width = self.source.array_shape(next(role for role in self.source.roles if role.group == "embedding"))[-1]
        groups = self.rng.permutation(num_groups)
        per_group = self.heads // num_groups
        order = np.concatenate([group * per_group + self.rng.permutation(per_group) for group in groups])
        if name in FIXED_HEADS:
            groups, order = np.arange(num_groups), np.arange(self.heads)
        num_experts = max((role.expert or 0 for role in self.source.roles), default=0)
        self.experts = self.rng.permutation(num_experts)
        self.hidden = {}
        self.orders = {
            ("residual",): self.rng.permutation(width),
            ("head",): order,
            ("kv_head",): groups,
            ("expert",): self.experts,
        }
        self.orders |= {(axis,): np.arange(len(self.orders[axis,])) for axis in fixed}

    def _order(self, role, names, size):
        if names == ("hidden",):
            neurons = role.component, role.block, role.expert, role.is_shared
            return self.hidden.setdefault(neurons, self.rng.permutation(size))
        if names[:1] not in self.orders or (names == ("residual",) and role.component == "vision"):
            return np.arange(size)
        if names[0] in ("head", "kv_head") and role.component == "vision":
            return np.arange(size)
        order = self.orders[names[:1]]
        width = size // len(order)
        return (order[:, None] * width + np.arange(width)).reshape(-1)

    def _place(self, role):
        is_offset = role.group == "norm" and self.places.read(role).reshape(-1)[0] == 1.0
        return self.places.read(role).astype(np.int64) - is_offset

    def places_of(self, role):
        """Where in the stored tensor, laid flat, the entries of a role lie."""
        return self._place(role)

    def permuted(self):
        result = {key: array.copy() for key, array in self.tensors.items()}
        by_place = {(*_key(role), role.expert): role for role in self.source.roles}
        for role in self.source.roles:
            if "+" in role.name:
                self._permute_latent(role, result)
                continue
            # What comes here was another expert's, with its neurons in another order.
            other = role if role.expert is None else by_place[*_key(role), int(self.experts[role.expert - 1]) + 1]
            places = self._place(role)
            orders = [self._order(other, names, size) for names, size in zip(role.axes, places.shape, strict=True)]
            moved = self._place(other)[np.ix_(*orders)]
            result[role.name].reshape(-1)[places] = self.tensors[other.name].reshape(-1)[moved]
        return result

    def _permute_latent(self, role, result):
        # Of latent attention the heads and the residual stream: they lie in the second and the first matrix.
        first, *_, second = role.name.split("+")
        result[first][...] = self.tensors[first][:, self.orders["residual",]]
        heads = self.tensors[second].reshape(self.heads, -1, self.tensors[second].shape[-1])
        result[second][...] = heads[self.orders["head",]].reshape(self.tensors[second].shape)


def _key(role):
    return role.component, role.block, role.group, role.leaf, role.module, role.is_shared


# A decoder's attention to an encoder has two residual streams.
NOT_READ = re.compile(r"\.encoder_attn")
FAST = ("phi3", "gpt_neox", "gpt_oss", "llava", "olmoe", "opt", "mamba")
# Every row of the table that these read another model reads too: test_every_row_of_the_table_is_read_by_a_test.
REPEATED = """llama qwen2 mistral stablelm granite seed_oss ministral qwen3 hunyuan hunyuan_moe qwen3_moe ernie4_5
smollm3 vaultgemma gemma gemma3 phi phi4_mini phimoe deepseek_v2 deepseek_v3 olmo olmo2 olmo3 exaone4 starcoder2
glm4_moe granitemoe_shared cohere2 arcee gpt_neo nemotron_h mamba2""".split()
# Whose residual stream goes through a norm too.
NORMS_IN_STREAM = {"minimax"}


@pytest.mark.parametrize(
    "name",
    [
        name
        if name in FAST
        else pytest.param(name, marks=[pytest.mark.slow, *([pytest.mark.nightly] if name in REPEATED else [])])
        for name in MODELS | FURTHER
    ],
)
def test_permuted_axes_and_scaled_norms_of_roles_leave_the_logits_of_transformers(tmp_path, name):
    tensors, config = _write_model(name, tmp_path)
    symmetry = _Symmetry(tensors, config, name)
    source = symmetry.source
    # Every tensor has a role, every role a path of its own and the shape that it says.
    unread = {name for name in tensors if NOT_READ.search(name)}
    assert set(source.unread) == unread
    parts = {part for role in source.roles for part in role.name.split("+")}
    assert parts == {name for name in tensors if not conventions.BUFFER.fullmatch(name)} - unread
    assert len({role.path for role in source.roles}) == len(source.roles)
    assert all(source.read(role).shape == source.array_shape(role) for role in source.roles)
    before = _logits(name, tmp_path)
    safetensors.numpy.save_file(symmetry.permuted(), tmp_path / "model.safetensors", {"format": "pt"})
    assert np.abs(_logits(name, tmp_path) - before).max() < 1e-4 * before.std()
    scaled, norms = _scaled_norms(symmetry)
    if norms and name in MODELS and name not in NORMS_IN_STREAM:
        safetensors.numpy.save_file(scaled, tmp_path / "model.safetensors", {"format": "pt"})
        assert np.abs(_logits(name, tmp_path) - before).max() < 1e-4 * before.std(), norms


@pytest.mark.parametrize(
    "name",
    nightly_except([name for name in MODELS | FURTHER if name not in ("llava", "qwen2_vl")], "nemotron_h", "cohere"),
)
def test_norms_take_out_the_mean_where_those_of_transformers_do(tmp_path, name):
    """Moved inputs tell, as the names of fields do not: NemotronH's RMSNorm has ``layer_norm_epsilon``."""
    model = auto_class(name).from_config(transformers_config(name))
    model.save_pretrained(tmp_path)
    x = torch.randn(3, model.get_input_embeddings().weight.shape[-1])
    norms = [
        module
        for place, module in model.named_modules()
        if "Norm" in type(module).__name__ and ".0." in place and not list(module.children())
        if getattr(module, "weight", x[0]).shape == x[0].shape
    ]
    kinds = {bool((norm(x) - norm(x + 5)).abs().max() < 1e-3) for norm in norms}
    assert kinds == {read_by_names(tmp_path).shape("language").is_centered}


def _scaled_norms(symmetry):
    """Multiply every norm's scale, and divide the matrices that read through it; return the tensors and the norms."""
    source, rng = symmetry.source, np.random.default_rng(5)
    result, names = {key: array.copy() for key, array in symmetry.tensors.items()}, []
    norms = {role.path: role for role in source.roles if role.group == "norm" and role.leaf == "scale"}
    for norm in norms.values():
        in_block = [role for role in source.roles if (role.component, role.block) == (norm.component, norm.block)]
        readers = [role for role in in_block if role.group not in ("output", "down", "norm") and role.leaf == "kernel"]
        readers = [role for role in readers if _norm_of(source, role) == norm]
        others = [role for role in in_block if role.group == "other" and role.axes[0] == ("residual",)]
        is_known = all(role in readers for role in others) and not any("+" in role.name for role in readers)
        if norm.component != "language" or not readers or not is_known:
            continue
        scale = rng.uniform(0.5, 2.0, source.array_shape(norm)).astype(np.float32)
        biases = [role for role in in_block if role.group == "bias" and role.module == norm.module]
        for role in (norm, *biases, *readers):
            offset = np.float32(role == norm and source.read(role).reshape(-1)[0] != _stored(symmetry, role)[0])
            places = symmetry.places_of(role)
            numbers = result[role.name].reshape(-1)[places] + offset
            result[role.name].reshape(-1)[places] = (
                numbers / scale[:, None] if role in readers else numbers * scale - offset
            )
        names.append(norm.module)
    return result, set(names)


def _norm_of(source, role):
    scale = source.norm_scale(role)
    same = [norm for norm in source.roles if norm.group == "norm" and norm.leaf == "scale" and norm.block == role.block]
    return next((norm for norm in same if scale is not None and np.array_equal(source.read(norm), scale)), None)


def _stored(symmetry, role):
    return symmetry.tensors[role.name].reshape(-1)


# What stands beside the blocks of an encoder, and what makes its states logits.
BESIDE = {
    "bert": {"bert.embeddings.token_type_embeddings.weight", "cls.predictions.bias"}
    | {f"cls.predictions.transform.{name}.{leaf}" for name in ("dense", "LayerNorm") for leaf in ("weight", "bias")},
    "nomic_bert": {"nomic_bert.embeddings.token_type_embeddings.weight", "cls.predictions.bias"}
    | {f"cls.predictions.transform.{name}.{leaf}" for name in ("dense", "layer_norm") for leaf in ("weight", "bias")},
    "modernbert": {"head.dense.weight", "head.norm.weight", "decoder.bias"},
    "modernbert-decoder": {"lm_head.dense.weight", "lm_head.norm.weight", "decoder.bias"},
}


@pytest.mark.parametrize("name", ENCODERS)
def test_permuting_heads_and_neurons_of_an_encoder_leaves_its_logits(tmp_path, name):
    """The residual stream stays as it is: not all that reads it is understood."""
    tensors, config = _write_model(name, tmp_path)
    symmetry = _Symmetry(tensors, config, name, fixed=("residual",))
    assert set(symmetry.source.unread) == BESIDE[name]
    assert {role.name for role in symmetry.source.roles} == set(tensors) - BESIDE[name]
    assert symmetry.source.shape("language").is_centered
    before = _logits(name, tmp_path)
    permuted = symmetry.permuted()
    assert any(np.any(permuted[key] != tensors[key]) for key in tensors)
    safetensors.numpy.save_file(permuted, tmp_path / "model.safetensors", {"format": "pt"})
    assert np.abs(_logits(name, tmp_path) - before).max() < 1e-4 * before.std()


def _tiny(rng, prefix=""):
    shapes = {
        "model.embed_tokens.weight": (11, 8),
        "model.layers.0.input_layernorm.weight": (8,),
        "model.layers.0.mlp.up_proj.weight": (12, 8),
        "model.layers.0.mlp.down_proj.weight": (8, 12),
    }
    return {prefix + name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def test_wrapper_prefixes_removed_and_reported(rng):
    source = _source(_tiny(rng, "module._orig_mod."), {})
    assert source.unread == ()
    assert source.notes == ("names bear the prefix _orig_mod. and module., which was taken away",)
    assert source.roles == _source(_tiny(rng, "module._orig_mod."), {}).roles
    assert source.norm_scale(next(role for role in source.roles if role.group == "up")).shape == (8,)


def test_an_empty_epsilon_says_nothing_of_the_kind_of_norm(rng):
    """Cohere 2 with experts has both fields, one of them null."""
    fields = dict.fromkeys(("layer_norm_eps", "rms_norm_eps"))
    for stated, is_centered in (("layer_norm_eps", True), ("rms_norm_eps", False)):
        source = _source(_tiny(rng), {**fields, stated: 1e-5})
        assert source.shape("language").is_centered == is_centered


def test_a_language_model_under_a_prefix_that_no_table_knows(rng):
    tensors = {f"novel.{name.removeprefix('model.')}": array for name, array in _tiny(rng).items()}
    source = _source(tensors, {})
    assert source.unread == ()
    assert [role.path for role in source.roles] == [role.path for role in _source(_tiny(rng), {}).roles]


@pytest.mark.parametrize("part", ["mlp.up_proj", "self_attn.kv_b_proj"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused_where_they_are_read(rng, part, value):
    """A matrix of its own, and one of the two that keys and values of latent attention are products of."""
    kind = next(names.kind for names in PUBLISHED.values() if names.kind.is_latent and not names.kind.has_experts)
    tensors, name = llama_tensors(kind, rng), f"model.layers.0.{part}.weight"
    tensors[name][1, 2] = value
    source = _source(tensors, kind.config)
    role = next(role for role in source.roles if name in role.name)
    with pytest.raises(InputError, match=rf"tensor {re.escape(name)} of here holds NaN or infinite values"):
        source.read(role)


def test_biases_of_latent_attention_are_tensors_of_their_own(rng):
    """Products have the kernels and the norms between them alone."""
    kind = next(names.kind for names in PUBLISHED.values() if names.kind.is_latent and not names.kind.has_experts)
    tensors = llama_tensors(kind, rng)
    plain = _source(tensors, kind.config)
    sizes = {"q_a_proj": "q_a", "kv_a_proj_with_mqa": "kv_a", "q_b_proj": "q_b"}
    for name in sizes:
        size = len(tensors[f"model.layers.0.self_attn.{name}.weight"])
        tensors[f"model.layers.0.self_attn.{name}.bias"] = rng.normal(size=size).astype(np.float32)
    source = _source(tensors, kind.config)
    added = {role.path: role for role in set(source.roles) - set(plain.roles)}
    assert set(added) == {f"language/blocks/1/{module}/bias" for module in sizes.values()}
    assert source.unread == ()
    bias = tensors["model.layers.0.self_attn.q_a_proj.bias"]
    np.testing.assert_array_equal(source.read(added["language/blocks/1/q_a/bias"]), bias)
    # A factor without the other one is said to be unread.
    del tensors["model.layers.0.self_attn.q_b_proj.weight"]
    unread = _source(tensors, kind.config).unread
    assert unread == tuple(f"model.layers.0.self_attn.q_a_{name}.weight" for name in ("layernorm", "proj"))


@pytest.mark.parametrize(
    ("prefix", "component"), [("a/b", "a_b"), ("language/x", "language_x"), ("blocks", "language")]
)
def test_components_are_named_so_that_paths_can_be_read(rng, prefix, component):
    tensors = _tiny(rng)
    of_block = {name: array for name, array in tensors.items() if ".layers." in name}
    tensors |= {name.replace("model.layers.0", f"{prefix}.layers.1"): array for name, array in of_block.items()}
    source = _source(tensors, {})
    assert {role.component for role in source.roles} == {"language", component}
    assert f"{component}/blocks/2/up/kernel" in {role.path for role in source.roles}


@pytest.mark.parametrize("row", [{"component": "a/b"}, {"component": "experts"}, {"module": "a/b"}])
def test_a_file_of_roles_names_no_component_as_parts_of_paths_are(tmp_path, row):
    path = tmp_path / "roles.json"
    path.write_text(json.dumps({"tensors": [{"name": "x", "group": "other", **row}]}))
    with pytest.raises(InputError, match="as parts of paths are called"):
        name_parser.read_roles_file(path)


def test_of_two_tensors_of_one_place_one_is_unread(rng):
    """As of a copy of the blocks under another prefix: neurons of one model would have parts of both."""
    tensors = _tiny(rng)
    plain = _source(tensors, {})
    copies = {name.replace("model.", "lm."): array + 1 for name, array in tensors.items() if ".layers." in name}
    source = _source(tensors | copies, {})
    assert [role.path for role in source.roles] == [role.path for role in plain.roles]
    assert set(source.unread) == {name.replace("lm.", "model.") for name in copies}


def test_an_encoder_beside_a_decoder_is_a_component_of_its_own(rng):
    tensors = {"model.shared.weight": np.ones((11, 8), np.float32)}
    for half in ("encoder", "decoder"):
        blocks = {name: array for name, array in _tiny(rng).items() if "layers" in name}
        tensors |= {name.replace("model.", f"model.{half}.", 1): array for name, array in blocks.items()}
    source = _source(tensors, {"encoder_attention_heads": 2})
    assert source.unread == ()
    assert {role.component for role in source.roles} == {"encoder", "language"}
    assert len({role.path for role in source.roles}) == len(source.roles) == len(tensors)
    assert all(("encoder" in role.name) == (role.component == "encoder") for role in source.roles)


def test_moonvit_counts_its_norms_and_layers_from_0(rng):
    width, hidden = 8, 12
    shapes = {"wqkv": (3 * width, width), "wo": (width, width), "norm0": (width,), "norm1": (width,)}
    shapes |= {"mlp.fc0": (hidden, width), "mlp.fc1": (width, hidden)}
    place = "vision_tower.encoder.blocks.0"
    tensors = {f"{place}.{name}.weight": rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    tensors |= {name: array for name, array in _tiny(rng).items()}
    source = _source(tensors, {"vision_config": {"num_attention_heads": 2}})
    assert source.unread == ()
    arrays = {role.path: source.read(role) for role in source.roles}
    for number, name in enumerate(("query", "key", "value")):
        part_OI = np.split(tensors[f"{place}.wqkv.weight"], 3)[number]
        np.testing.assert_array_equal(arrays[f"vision/blocks/1/{name}/kernel"], part_OI.T)
    np.testing.assert_array_equal(arrays["vision/blocks/1/down/kernel"], tensors[f"{place}.mlp.fc1.weight"].T)
    np.testing.assert_array_equal(arrays["vision/blocks/1/mlp_norm/scale"], tensors[f"{place}.norm1.weight"])
    np.testing.assert_array_equal(arrays["vision/blocks/1/attention_norm/scale"], tensors[f"{place}.norm0.weight"])


def test_tied_table_stored_under_the_name_of_the_head(rng):
    tensors = _tiny(rng)
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    source = _source(tensors, {})
    assert source.shape("language").is_tied
    assert source.notes == ("the embedding is stored once, as lm_head.weight",)
    tables = [role for role in source.roles if role.block is None]
    assert [(role.group, role.name) for role in tables] == [("embedding", "lm_head.weight")]


@pytest.mark.parametrize(
    ("config", "is_tied", "notes"),
    [
        ({"tie_word_embeddings": False}, False, ("no output head is stored, though tie_word_embeddings is false",)),
        ({"tie_word_embeddings": True}, True, ()),
        ({}, True, ()),
        ({"architectures": ["LlamaForCausalLM"]}, True, ()),
        ({"architectures": ["LlamaModel"]}, True, ("no output head is stored, as of a LlamaModel",)),
        ({"architectures": [], "tie_word_embeddings": True}, True, ()),
    ],
)
def test_a_head_that_an_untied_model_lacks_is_noted(rng, config, is_tied, notes):
    source = _source(_tiny(rng), config)
    assert source.shape("language").is_tied == is_tied
    assert source.notes == notes


def test_a_classifier_read_by_names_is_noted_as_no_part_of_a_language_model(rng):
    tensors = {**_tiny(rng), "score.weight": np.ones((1, 8), np.float32)}
    source = _source(tensors, {})
    assert source.notes == ("compared by itself, as no part of a language model: score.weight",)
    assert "score.weight" in [role.name for role in source.roles]


NOTED = {
    "value head": "left out, as no part of a language model: v_head.summary.weight",
    "no prefix": "names lack the prefix model., which was put before them",
    "head's name": "the embedding is stored once, as lm_head.weight",
    "copy": "lm_head.weight is a copy of the embedding",
    "stale index": "model.safetensors.index.json is stale: its shards are not there",
}


@pytest.mark.parametrize("form", NOTED)
def test_what_is_not_plain_in_a_folder_is_noted_and_printed(tmp_path, capsys, form):
    folder = shutil.copytree(HF / "llama", tmp_path / "model")
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    if form == "value head":
        tensors["v_head.summary.weight"] = np.ones((1, 36), np.float32)
    elif form == "no prefix":
        tensors = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    elif form == "stale index":
        index = {"weight_map": dict.fromkeys(tensors, "model-00001-of-00001.safetensors")}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    else:
        table = tensors["model.embed_tokens.weight"] if form == "copy" else tensors.pop("model.embed_tokens.weight")
        tensors["lm_head.weight"] = table
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    source = read_by_role(folder)
    assert (source.naming, source.notes) == ("native", (NOTED[form],))
    assert capsys.readouterr().err == f"{folder}: {NOTED[form]}\n"


def _nano_gpt(rng, width=16, num_blocks=2, vocab_size=11):
    """Tensors under the names of nanoGPT, whose matrices lie as those of linear maps do, unlike GPT-2's."""
    shapes = {"transformer.wte.weight": (vocab_size, width), "transformer.wpe.weight": (32, width)}
    for block in range(num_blocks):
        place = f"transformer.h.{block}"
        shapes |= {f"{place}.ln_{number}.weight": (width,) for number in (1, 2)}
        shapes |= {f"{place}.attn.c_attn.weight": (3 * width, width), f"{place}.attn.c_proj.weight": (width, width)}
        shapes |= {f"{place}.mlp.c_fc.weight": (4 * width, width), f"{place}.mlp.c_proj.weight": (width, 4 * width)}
    shapes["transformer.ln_f.weight"] = (width,)
    tensors = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return {**tensors, "lm_head.weight": tensors["transformer.wte.weight"].copy()}


@pytest.mark.parametrize("form", ["safetensors", "its own file"])
def test_a_checkpoint_of_nano_gpt_opens_as_its_refusal_advises(tmp_path, rng, form):
    tensors = _nano_gpt(rng)
    checkpoint = {
        "model": {f"_orig_mod.{name}": torch.tensor(tensor) for name, tensor in tensors.items()},
        "optimizer": {"state": {0: {"step": torch.tensor(1.0)}}, "param_groups": [{"betas": (0.9, 0.95)}]},
        "model_args": {"n_layer": 2, "bias": False},
        "best_val_loss": torch.tensor(1.5),
    }
    torch.save(checkpoint, tmp_path / "ckpt.pt")
    with pytest.raises(
        InputError, match=r"is a pickle.*DIR/model\.safetensors, put the model's config\.json there too"
    ):
        read_by_role(tmp_path / "ckpt.pt")
    config = {"model_type": "gpt2", "n_head": 4, "n_embd": 16, "n_layer": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="is a pickle.*: name its folder with --file ckpt.pt"):
        read_by_role(tmp_path / "ckpt.pt")
    if form == "safetensors":
        safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
        source = read_by_role(tmp_path)
    else:
        source = read_by_role(tmp_path, file="ckpt.pt")
    assert source.unread == ()
    arrays = {role.path: source.read(role) for role in source.roles}
    query_OI = tensors["transformer.h.1.attn.c_attn.weight"][:16]
    np.testing.assert_array_equal(arrays["language/blocks/2/query/kernel"], query_OI.T)
    np.testing.assert_array_equal(arrays["language/blocks/2/up/kernel"], tensors["transformer.h.1.mlp.c_fc.weight"].T)


def test_nothing_is_noted_of_a_plain_folder(capsys):
    assert read_by_role(HF / "llama").notes == ()
    assert capsys.readouterr().err == ""


def test_names_that_no_convention_fits_are_refused_until_a_file_of_roles_describes_them(tmp_path, rng):
    tensors = {"net.3.alpha": rng.normal(size=(12, 8)).astype(np.float32), "table": np.ones((5, 8), np.float32)}
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="net.3.alpha"):
        read_by_names(tmp_path)
    rows = [{"name": "net.{block}.alpha", "group": "up"}, {"name": "table", "group": "embedding"}]
    (tmp_path / "roles.json").write_text(json.dumps({"tensors": rows}))
    source = read_by_names(tmp_path, roles_file=tmp_path / "roles.json")
    assert [(role.group, role.block) for role in source.roles] == [("embedding", None), ("up", 4)]
    assert np.array_equal(source.read(source.roles[1]), tensors["net.3.alpha"].T)
    rows[0]["group"] = "upp"
    (tmp_path / "roles.json").write_text(json.dumps({"tensors": rows}))
    with pytest.raises(InputError, match="upp"):
        read_by_names(tmp_path, roles_file=tmp_path / "roles.json")


BOTH_WAYS = ["gemma3_text", "gpt2", "gpt_neox", "llama-biases", "mixtral", "olmo2", "qwen3"]
BOTH_WAYS += ["gemma", "gemma2", "granite", "olmo", "phi3", "smollm3", "starcoder2", "qwen2_moe"]
BOTH_WAYS += ["cohere", "cohere-biases", "glm4", "glm4-no-bias"]


@pytest.mark.parametrize("name", BOTH_WAYS)
def test_names_and_the_table_of_parameters_give_the_same_roles(name):
    native, named = NativeRoles(open_checkpoint(HF / name)), read_by_names(HF / name)
    arrays = {role.path: (role.axes, native.read(role), native.norm_scale(role)) for role in native.roles}
    assert named.unread == ()
    assert named.shape("language") == native.shape("language")
    for role in named.roles:
        axes, array, scale = arrays.pop(role.path)
        assert role.axes == axes, role.path
        assert np.array_equal(named.read(role), array), role.path
        assert (scale is None) == (named.norm_scale(role) is None), role.path
        assert scale is None or np.array_equal(scale, named.norm_scale(role)), role.path
    # Biases that a configuration has and a file has not are zeros there.
    assert not any(np.any(array) for _, array, _ in arrays.values())


def test_a_refused_configuration_is_read_by_names(tmp_path):
    _write_model("stablelm", tmp_path)
    source = read_by_role(tmp_path)
    assert source.naming == "names"
    assert read_by_role(HF / "llama").naming == "native"


def test_names_of_internlm2_are_those_of_llama_with_queries_keys_and_values_by_group(tmp_path):
    tensors, config = _write_model("llama", tmp_path)
    renamed = named_as_internlm2(tensors, config)
    source, llama = _source(renamed, {**config, "model_type": "internlm2"}), _source(tensors, config)
    assert source.unread == ()
    assert [role.path for role in source.roles] == [role.path for role in llama.roles]
    for mine, other in zip(source.roles, llama.roles, strict=True):
        np.testing.assert_array_equal(source.read(mine), llama.read(other), err_msg=mine.path)


@pytest.mark.parametrize("convention", PUBLISHED)
def test_names_of_published_code_give_the_roles_of_those_of_transformers(rng, convention):
    names = PUBLISHED[convention]
    tensors = llama_tensors(names.kind, rng)
    published, expected = _source(published_tensors(names, tensors), names.config), _source(tensors, names.kind.config)
    assert published.unread == expected.unread == ()
    assert published.shape("language") == expected.shape("language")
    assert weights_digests(published) == weights_digests(expected)
    for mine, other in zip(published.roles, expected.roles, strict=True):
        assert (mine.path, mine.axes) == (other.path, other.axes)
        np.testing.assert_array_equal(published.read(mine), expected.read(other), err_msg=mine.path)
        scales = [source.norm_scale(role) for source, role in ((published, mine), (expected, other))]
        assert (scales[0] is None) == (scales[1] is None) and (scales[0] is None or np.array_equal(*scales)), mine.path


def test_visual_experts_of_cogvlm_lie_as_linear_maps(rng):
    place, width, hidden = "model.layers.0", 8, 12
    maps = {"self_attn.vision_expert_query_key_value": (3 * width, width), "self_attn.vision_expert_dense": (width, 10)}
    maps |= {f"mlp.vision_mlp.{name}_proj": (hidden, width) for name in ("gate", "up")}
    maps |= {"mlp.vision_mlp.down_proj": (width, hidden)}
    tensors = {f"{place}.{name}.weight": rng.normal(size=shape).astype(np.float32) for name, shape in maps.items()}
    source = _source(tensors | _tiny(rng), {"num_attention_heads": 2})
    assert source.unread == ()
    roles = [role for role in source.roles if "vision" in role.name]
    assert {role.name for role in roles} == tensors.keys()
    for role in roles:
        np.testing.assert_array_equal(source.read(role), tensors[role.name].T)
        writes = "dense" in role.name or "down" in role.name
        assert role.axes == ((("channel",), ("residual",)) if writes else (("residual",), ("channel",)))


def test_experts_of_nomic_lie_one_after_the_other(rng):
    """Along the first axis, the second matrix as [in, out]: nomic-ai/nomic-bert-2048 modeling_hf_nomic_bert.py."""
    experts, width, hidden = 3, 8, 12
    tensors = {
        f"encoder.layers.0.mlp.experts.mlp.{name}": rng.normal(size=(experts * hidden, width)).astype(np.float32)
        for name in ("w1", "w2")
    }
    router = rng.normal(size=(experts, width)).astype(np.float32)
    tensors["encoder.layers.0.mlp.router.layer.weight"] = router
    tensors["embeddings.word_embeddings.weight"] = rng.normal(size=(11, width)).astype(np.float32)
    source = _source(tensors, {"model_type": "nomic_bert", "num_attention_heads": 2})
    assert source.unread == ()
    arrays = {(role.group, role.expert): source.read(role) for role in source.roles}
    for expert in range(experts):
        up_FD, down_FD = (
            tensors[f"encoder.layers.0.mlp.experts.mlp.{name}"].reshape(experts, hidden, width)[expert]
            for name in ("w1", "w2")
        )
        np.testing.assert_array_equal(arrays["up", expert + 1], up_FD.T)
        np.testing.assert_array_equal(arrays["down", expert + 1], down_FD)
    np.testing.assert_array_equal(arrays["router", None], router.T)


# Names that the two tests above and that of classifiers have.
OF_TESTS = {"model.layers.0.self_attn.vision_expert_query_key_value.weight": "cogvlm2"}
OF_TESTS |= {"model.layers.0.self_attn.vision_expert_dense.weight": "cogvlm2"}
OF_TESTS |= {f"model.layers.0.mlp.vision_mlp.{name}_proj.weight": "cogvlm2" for name in ("gate", "down")}
OF_TESTS |= {"encoder.layers.0.mlp.experts.mlp.w1": "nomic_bert", "score.weight": "llama"}


@pytest.mark.slow
def test_every_row_of_the_table_is_read_by_a_test(tmp_path, rng, monkeypatch):
    """By those of architectures of transformers, by those of published code, or by one of its own."""
    rows, look_up = set(), name_parser._look_up

    def observed(*place):
        tensor = look_up(*place)
        rows.update(() if tensor is None else {tensor.row})
        return tensor

    monkeypatch.setattr(name_parser, "_look_up", observed)
    for number, name in enumerate((MODELS | ENCODERS | FURTHER).keys() - set(REPEATED)):
        tensors, config = _write_model(name, tmp_path / str(number))
        name_parser.parse_names({key: array.shape for key, array in tensors.items()}, config["model_type"], ())
    for convention in PUBLISHED.values():
        tensors = published_tensors(convention, llama_tensors(convention.kind, rng))
        family = convention.config.get("model_type", "")
        name_parser.parse_names({key: array.shape for key, array in tensors.items()}, family, ())
    for name, family in OF_TESTS.items():
        name_parser.parse_names({name: (1, 1)}, family, ())
    table = {*conventions.CONVENTIONS, *conventions.TABLES, *conventions.TOWERS}
    assert sorted(table - rows) == []
