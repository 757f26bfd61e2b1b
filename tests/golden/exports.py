"""Golden exports: each family's directory and its way back, a streamed pass, and GGUF files.

Initial weights must come back bit for bit. Hashes are of generated weights: the last bits of drawn ones depend on the
compiler, see ``initialization.py``.
"""

import functools
import json
from pathlib import Path

from safetensors.numpy import load_file

from tests.fixtures.gguf_files import convert
from tests.golden.calls import answer, empty_folder, flat, generated_text, overwrite_weights, sha256
from tests.golden.record import NIGHTLY, Case, Tolerance, Values

# The floats here are losses in nats a token and constants of config.json: float32 sums over 32 numbers in another order
# differ by some 1e-6 of their size.
TOLERANCE = Tolerance(relative=1e-5, absolute=0.0)

SIZES = "num_layers=2,d_model=32,d_ff=64,vocab_size=256,max_seq_len=64"
FAMILIES = {
    "gpt2": f"seed:42@gpt2-tiny,{SIZES},positions=learned,activation=gelu_tanh",
    "llama": f"seed:42@llama-tiny,{SIZES},num_kv_heads=2",
    "mistral": f"seed:42@llama-tiny,{SIZES},window=8",
    "qwen2": f"seed:42@qwen-tiny,{SIZES},head_dim=10",
    "qwen3": f"seed:42@qwen3-tiny,{SIZES},tie_embeddings=true",
    "gpt_neox": f"seed:42@neox-tiny,{SIZES}",
    "olmo2": f"seed:42@olmo2-tiny,{SIZES}",
}
EVALUATE = "--text text.txt --tokenizer bytes --context 16 --num-sequences 4 --quiet"


def _tensors(folder: str) -> Values:
    """Names and shapes of a directory's tensors, and their bytes."""
    tensors = load_file(Path(folder) / "model.safetensors")
    names = sorted(tensors)
    rows = [f"{name} {tensors[name].dtype} {list(tensors[name].shape)}" for name in names]
    return {
        "num_tensors": len(names),
        "names_and_shapes": sha256("\n".join(rows).encode()),
        "bytes": sha256(b"".join(tensors[name].tobytes() for name in names)),
    }


def _config(folder: str) -> Values:
    values = json.loads((Path(folder) / "config.json").read_text())
    return {f"config.{name}": value for name, value in flat(values, without=("transformers_version",)).items()}


def _round_trip(family: str) -> Values:
    with empty_folder() as place:
        (place / "text.txt").write_text(generated_text(40))
        reference = FAMILIES[family]
        written = answer(f"export {reference} exported")
        is_equal = answer(f"digest {reference}")["tensors"] == answer("digest exported")["tensors"]
        answer("export exported changed")
        overwrite_weights("changed")
        answer("export changed again")
        digests = answer("digest again")
        return {
            "family": written["family"],
            "tokenizer": written["tokenizer"],
            "files": sorted(path.name for path in (place / "exported").iterdir()),
            **_config("exported"),
            "is_bitwise_equal_reopened": is_equal,
            "is_digest_of_export": written["digest"] == answer(f"digest {reference}")["digest"],
            **{f"tensors.{name}": value for name, value in _tensors("again").items()},
            "is_bitwise_equal_exported_again": _tensors("again") == _tensors("changed"),
            "digest": digests["digest"],
            "tensor_digests": sha256(json.dumps(digests["tensors"], sort_keys=True).encode()),
            **{f"evaluate.{name}": value for name, value in _evaluated("again").items()},
            **{f"evaluate_streamed.{name}": value for name, value in _streamed("again").items()},
        }


def _evaluated(model: str, options: str = "") -> Values:
    return flat(
        answer(f"evaluate {model} {EVALUATE} {options}"),
        without=("checkpoint", "text", "command", "model", "provenance"),
    )


def _streamed(model: str) -> Values:
    return _evaluated(model, "--stream --scratch scratch")


# What a GGUF file says of the model.
GGUF_FIELDS = ("num_layers", "max_seq_len", "d_model", "d_ff", "num_heads", "num_kv_heads", "head_dim", "norm_eps")
GGUF_FIELDS += ("rope_theta", "vocab_size", "norm", "activation", "gated_mlp", "positions", "tie_embeddings")


def _gguf(storage: str) -> Values:
    with empty_folder() as place:
        (place / "text.txt").write_text(generated_text(40))
        answer(f"export {FAMILIES['llama']} model")
        overwrite_weights("model")
        convert("model.gguf", "model", kind=storage)
        digests = answer("digest model.gguf")
        return {
            "digest": digests["digest"],
            "is_bitwise_equal_to_directory": digests["tensors"] == answer("digest model")["tensors"],
            **{f"config.{name}": digests["config"][name] for name in GGUF_FIELDS},
            **{f"evaluate.{name}": value for name, value in _evaluated("model.gguf").items()},
        }


CASES = {
    **{
        f"round-trip-{family}": Case(
            functools.partial(_round_trip, family), marks=() if family in ("gpt2", "llama", "qwen3") else NIGHTLY
        )
        for family in FAMILIES
    },
    # Rounding to eight bits is arithmetic of numpy, element by element: bitwise on every machine too.
    **{f"gguf-{storage}": Case(functools.partial(_gguf, storage)) for storage in ("F32", "Q8_0")},
}
