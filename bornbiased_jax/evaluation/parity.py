"""Compare our logits with those of ``transformers`` on the same weights and tokens."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NotRequired, TypedDict

import jax
import numpy as np

from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.checkpoints.reference import parse_ref
from bornbiased_jax.errors import InputError
from bornbiased_jax.model import apply
from bornbiased_jax.model.memory import check_forward


class LogitComparison(TypedDict):
    """Logits of this package and of transformers on the same tokens, JSON-ready; None where they are not finite."""

    max_abs_error: float | None
    mean_abs_error: float | None
    logit_std: float | None
    """To compare the errors with."""
    top1_agreement: float | None
    """Fraction of positions with the same top-1 token."""
    num_tokens: int
    seq_len: int
    transformers: str
    """The version, as of torch."""
    torch: str
    verdict: NotRequired[str]
    """"undefined" where logits do not vary or are not finite, with a reason."""
    reason: NotRequired[str]


def parity(folder: str | Path, *, num_sequences: int = 4, seq_len: int = 64, seed: int = 0) -> LogitComparison:
    """Compare two implementations of a Hugging Face directory, in float32 on random tokens.

    Args:
        folder: the directory, or a model of the hub by name.
        num_sequences: how many sequences of uniformly random tokens.
        seq_len: their length; no longer than the model allows.
        seed: of the tokens.

    Raises:
        InputError: not such a directory, or transformers or torch is not installed.
    """
    reference = parse_ref(folder)
    if reference.kind != "huggingface":
        raise InputError(f"{folder} is no Hugging Face directory: parity compares with transformers, so name one")
    checkpoint = open_checkpoint(folder)
    place = reference.fetched().path
    assert place is not None
    cfg = checkpoint.cfg
    length = min(seq_len, cfg.max_seq_len)
    check_forward(cfg, 1, length, logits=length, also=2.0 * 4 * num_sequences * length * cfg.vocab_size)
    tokens_BT = np.random.default_rng(seed).integers(0, cfg.vocab_size, (num_sequences, length), dtype=np.int32)
    # Logits of the reference implementation.
    reference_BTV, versions = transformers_logits(place, tokens_BT)
    forward = jax.jit(functools.partial(apply, cfg))
    # One sequence at a time: vocabularies are large.
    errors, matches = [], []
    for tokens_T, reference_TV in zip(tokens_BT, reference_BTV, strict=True):
        logits_TV = np.asarray(forward(checkpoint.params(), tokens_T[None]).logits_BTV)[0]
        with np.errstate(invalid="ignore"):
            errors.append(np.abs(logits_TV.astype(np.float64) - reference_TV))
        matches.append(np.argmax(logits_TV, -1) == np.argmax(reference_TV, -1))
    # Weights that overflow leave logits that say nothing of the architecture.
    with np.errstate(invalid="ignore", over="ignore"):
        largest, mean, std = float(np.max(errors)), float(np.mean(errors)), float(np.std(reference_BTV))
    reason = ""
    if not np.isfinite([largest, mean, std]).all():
        reason = "logits are not finite: the weights overflow float32"
    elif std == 0.0:
        reason = "all logits of transformers are equal, so that any model would agree: look at the scale of the weights"
    comparison: LogitComparison = {
        "max_abs_error": _finite(largest),
        "mean_abs_error": _finite(mean),
        "logit_std": _finite(std),
        "top1_agreement": None if reason else float(np.mean(matches)),
        "num_tokens": int(tokens_BT.size),
        "seq_len": length,
        "transformers": versions["transformers"],
        "torch": versions["torch"],
    }
    return {**comparison, "verdict": "undefined", "reason": reason} if reason else comparison


def _finite(number: float) -> float | None:
    return number if np.isfinite(number) else None


def transformers_logits(folder: Path, tokens_BT: np.ndarray) -> tuple[np.ndarray, dict[str, str]]:
    """Return logits [B, T, V] of transformers in float32, and the versions of transformers and torch.

    Raises:
        InputError: one of the two is not installed, or transformers cannot open the directory.
    """
    # Pickled files run code where transformers loads them; this package reads them without.
    if any(folder.glob("*.bin")) and not any(folder.glob("*.safetensors")):
        raise InputError(
            f"the weights of {folder} are in pickled files, which transformers is not asked to load: write them as "
            f"safetensors with `bornbiased export {folder} DIRECTORY`, and name that"
        )
    try:
        import torch
        import transformers
    except ImportError as error:
        raise InputError(f"parity needs {error.name}: pip install 'bornbiased-jax[torch]'") from error
    # Nothing here takes long, and standard error is ours.
    transformers.utils.logging.disable_progress_bar()
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", use_safetensors=True, local_files_only=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"transformers cannot open {folder}: {error}") from error
    with torch.no_grad():
        logits = [
            model.eval()(torch.from_numpy(tokens_T[None].astype(np.int64)), use_cache=False).logits[0].numpy()
            for tokens_T in tokens_BT
        ]
    return np.stack(logits), {"transformers": transformers.__version__, "torch": torch.__version__}
