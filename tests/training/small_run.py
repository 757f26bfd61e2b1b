"""A small run of two byte models: its settings, the same as a command, and what it left."""

from pathlib import Path

from bornbiased_jax.config import preset
from bornbiased_jax.training import PretrainConfig
from bornbiased_jax.training.metrics import read_metrics

CFG = preset("llama-tiny", num_layers=1, num_heads=2, d_model=16, d_ff=24, vocab_size=256)
SETTINGS = [
    word
    for name in ("num_layers", "num_heads", "num_kv_heads", "head_dim", "d_model", "d_ff", "vocab_size")
    for word in ("--set", f"{name}={getattr(CFG, name)}")
]


def make(place, name, **changes):
    """Six steps in a folder of the fixture ``place``."""
    base = dict(
        model=CFG, data=str(place / "story.txt"), tokenizer="bytes", out=str(place / name), seeds=(42, 7), context=16,
        batch_size=4, steps=6, warmup=2, checkpoint_every=2, token_cache=str(place / "tokens"), tensorboard=False,
        eval_sequences=4, quiet=True,
    )  # fmt: skip
    return PretrainConfig(**{**base, **changes})


def words(place, name, *more):
    """The same run as a command."""
    sizes = "--context 16 --batch-size 4 --steps 6 --warmup 2 --eval-sequences 4 --no-tensorboard --quiet".split()
    data = ["--data", str(place / "story.txt"), "--token-cache", str(place / "tokens"), "--out", str(place / name)]
    return ["pretrain", "--model", "llama-tiny", *SETTINGS, *data, *sizes, *more]


def losses(folder):
    """The losses of all seeds at each logged step."""
    return [(line["step"], line["loss"]) for line in read_metrics(folder)]


def flip(folder):
    """Damage everything of some size in a folder."""
    for file in Path(folder).rglob("*"):
        if file.is_file() and file.stat().st_size > 1000:
            data = bytearray(file.read_bytes())
            data[len(data) // 2] ^= 0xFF
            file.write_bytes(data)
