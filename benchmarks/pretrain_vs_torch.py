"""Training steps against the loop that a user would write with PyTorch and transformers.

    python -m benchmarks pretrain_vs_torch

Five sizes: the models of the laptop-scale experiments on survival, the preset llama-tiny, twice its width,
llama-tiny with the vocabulary of the paper's LLaMA, and that model itself, llama-nano. The same model from the same
weights (written by our export, opened by transformers), the same batches in the same order, the same AdamW, schedule
and clipping, float32, all cores; both loops read the loss of every step. Taken in turn; the figure is the ratio pair by
pair. The PyTorch loop is tuned: SDPA or eager attention, whichever is faster, and fused AdamW. That both train the
same thing is checked by their losses.

The figure means something on an idle machine alone: PyTorch's threads wait for one another by spinning, so that it
loses more than we do where other programs run. How busy each loop kept the cores is in the record.
"""

from __future__ import annotations

import functools
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.matmul import matmul_rate
from benchmarks.recorded import Findings, command, median_and_range, versions
from benchmarks.tables import BenchmarkRecord, entries
from bornbiased_jax import hardware
from bornbiased_jax.checkpoints import export_hugging_face
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.init import init_seed
from bornbiased_jax.parallel import build_mesh, parse_mesh, place_batch
from bornbiased_jax.report.tables import Table
from bornbiased_jax.training import PretrainConfig
from bornbiased_jax.training.data.windows import batches
from bornbiased_jax.training.optimizer import learning_rate, make_optimizer
from bornbiased_jax.training.program import abstract_state, compile_step, first_state
from bornbiased_jax.training.setup import load_data
from bornbiased_jax.training.throughput import flops_per_token

SEED = 42
_llama = functools.partial(preset, "llama-tiny")
TINY = preset("llama-tiny")
# Name -> model, sequences a step, context, tokenizer, steps of one turn.
SIZES: dict[str, tuple[ModelConfig, int, int, str | None, int]] = {
    "laptop": (_llama(num_layers=4, d_model=96, num_heads=4, d_ff=256, vocab_size=256), 16, 64, "bytes", 24),
    "tiny": (TINY, 16, 128, None, 8),
    "wide": (_llama(d_model=256, d_ff=704), 16, 128, None, 6),
    "vocabulary": (_llama(vocab_size=32_000), 16, 128, "bpe:4096", 4),
    "nano": (preset("llama-nano"), 4, 128, "bpe:4096", 2),
}


class JaxLoop:
    """Our loop: the compiled step of :mod:`bornbiased_jax.training` and its read-behind of losses."""

    def __init__(self, config: PretrainConfig, steps: int) -> None:
        mesh = build_mesh(parse_mesh(None))
        self.mesh, self.rows = mesh, config.micro_batch
        rule = make_optimizer(config, steps)
        abstract = abstract_state(config, rule, mesh)
        self.state = first_state(config, rule, abstract, None)
        self.program, self.mode = compile_step(config, rule, abstract, mesh)

    def train(self, rows: Iterator[np.ndarray], steps: int) -> list[float]:
        """Take so many steps; return their losses (of the first seed)."""
        pending, losses = None, []
        for _ in range(steps):
            sequences = next(rows)
            pieces = sequences.reshape(-1, self.rows, sequences.shape[-1])
            batch = place_batch(pieces, self.mesh, axis=1, rows=self.rows)
            self.state, measured = self.program(self.state, batch, None)
            if pending is not None:
                losses.append(float(jax.device_get(pending["loss"])[0]))
            pending = measured
        assert pending is not None
        return [*losses, float(jax.device_get(pending["loss"])[0])]


class TorchLoop:
    """The user's loop."""

    def __init__(self, config: PretrainConfig, steps: int, attention: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        cfg = config.model
        with tempfile.TemporaryDirectory() as folder:
            export_hugging_face(cfg, init_seed(cfg, SEED), f"{folder}/model")
            self.model = AutoModelForCausalLM.from_pretrained(f"{folder}/model", attn_implementation=attention)
        self.model.train()
        self.model.config.use_cache = False
        matrices = [p for p in self.model.parameters() if p.ndim >= 2]
        vectors = [p for p in self.model.parameters() if p.ndim < 2]
        groups = [
            {"params": matrices, "weight_decay": config.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            groups, lr=1.0, betas=(config.beta1, config.beta2), eps=config.epsilon, fused=True
        )
        rate = learning_rate(config, steps)
        rates = [float(rate(jnp.asarray(step))) for step in range(steps + 1)]
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: rates[min(step, steps)])
        self.clip = config.clip

    def train(self, rows: Iterator[np.ndarray], steps: int) -> list[float]:
        """Take so many steps; return their losses."""
        import torch

        losses = []
        for _ in range(steps):
            tokens = torch.from_numpy(np.asarray(next(rows), np.int64))
            logits = self.model(tokens[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
        return losses


def measure_size(size: str, *, pairs: int) -> Findings:
    """Pair timings of training steps of one of ``SIZES``."""
    import torch

    cfg, batch_size, context, tokenizer, steps = SIZES[size]
    torch.set_num_threads(hardware.cores())
    total = (2 * pairs + 6) * steps
    with tempfile.TemporaryDirectory() as folder:
        config = PretrainConfig(
            model=cfg, data="builtin:prose", out=f"{folder}/run", seeds=(SEED,), context=context,
            batch_size=batch_size, steps=total, warmup=10, quiet=True, token_cache=f"{folder}/tokens",
            tokenizer=tokenizer,
        )  # fmt: skip
        data = load_data(config)
        # Held in memory, so that neither loop pays for reading.
        source = batches(data.train, batch_size=batch_size, data_seed=0)
        pool = [np.array(next(source), np.int32) for _ in range(total)]
    jax_loop = JaxLoop(config, total)
    torch_loops = {"sdpa": TorchLoop(config, total, "sdpa"), "eager": TorchLoop(config, total, "eager")}
    start = {name: loop.train(iter(pool), steps) for name, loop in {"ours": jax_loop, **torch_loops}.items()}
    # The faster of PyTorch's two attentions.
    timed = {name: seconds(loop, pool[steps:], steps)[0] for name, loop in torch_loops.items()}
    seconds(jax_loop, pool[steps:], steps)
    best = min(timed, key=timed.__getitem__)
    torch_loop = torch_loops[best]
    # Both loops take turns on the same rows of data.
    times, worked, rates, at = [], [], [], 2 * steps
    ours_losses: list[float] = []
    theirs_losses: list[float] = []
    for _ in range(pairs):
        clock = time.process_time()
        jax_seconds, losses = seconds(jax_loop, pool[at:], steps)
        middle = time.process_time()
        ours_losses += losses
        torch_seconds, losses = seconds(torch_loop, pool[at:], steps)
        theirs_losses += losses
        times.append((jax_seconds, torch_seconds))
        worked.append((middle - clock, time.process_time() - middle))
        # The machine's own rate in the same seconds: it moves with what else the host is doing.
        rates.append(matmul_rate(cfg, batch_size * context))
        at += steps
    # Rates, and ratios pair by pair.
    tokens = steps * batch_size * context
    rate = tokens / statistics.median(pair[0] for pair in times)
    needed = flops_per_token(cfg, context)
    return {
        "size": size,
        "model": cfg.to_dict(),
        "batch_size": batch_size,
        "context": context,
        "steps_each": steps,
        "pairs": pairs,
        "tokens_per_second_ours": rate,
        "tokens_per_second_torch": tokens / statistics.median(pair[1] for pair in times),
        **median_and_range("speedup", [torch_seconds / jax_seconds for jax_seconds, torch_seconds in times]),
        "cpu_seconds_ratio_median": statistics.median(
            torch_seconds / jax_seconds for jax_seconds, torch_seconds in worked
        ),
        "cores_busy_ours": sum(pair[0] for pair in worked) / sum(pair[0] for pair in times),
        "cores_busy_torch": sum(pair[1] for pair in worked) / sum(pair[1] for pair in times),
        "load_average": os.getloadavg()[0],
        "attention_torch": best,
        "largest_loss_difference_first": float(np.max(np.abs(np.subtract(start["ours"], start[best])))),
        "largest_loss_difference": float(np.max(np.abs(np.subtract(ours_losses, theirs_losses)))),
        "loss_before_after": [start["ours"][0], ours_losses[-1]],
        "needed_gflops_ours": rate * needed / 1e9,
        "gflops_matmul": statistics.median(rates) / 1e9,
        "share_of_matmul_rate": statistics.median(
            tokens * needed / jax_seconds / peak for (jax_seconds, _), peak in zip(times, rates, strict=True)
        ),
    }


def seconds(loop: JaxLoop | TorchLoop, rows: Sequence[np.ndarray], steps: int) -> tuple[float, list[float]]:
    """Return the wall time of so many steps, and their losses."""
    start = time.perf_counter()
    losses = loop.train(iter(rows), steps)
    return time.perf_counter() - start, losses


def measure(pairs: int = 5, sizes: tuple[str, ...] = tuple(SIZES)) -> Findings:
    """Measure training steps against a PyTorch loop.

    Args:
        pairs: Turns of either loop.
        sizes: Separated by commas.
    """
    return {size: measure_size(size, pairs=pairs) for size in sizes}


def tables(record: BenchmarkRecord) -> list[Table]:
    """Tabulate the compiled training step versus the loop, by model."""
    return entries(
        {"sizes": {size: measured for size, measured in record.items() if size != "provenance"}},
        title="The training step versus a PyTorch loop",
        each="sizes",
        columns={
            "layers × width (LLaMA blocks)": "{model[num_layers]} × {model[d_model]}",
            "V": "{model[vocab_size]}",
            "sequences × tokens": "{batch_size} × {context}",
            "JAX, tokens/s": "{tokens_per_second_ours:integer}",
            "PyTorch, tokens/s": "{tokens_per_second_torch:integer}",
            "ratio, median (pair by pair)": "{speedup_median:times:2} ({speedup_range:times:2})",
            "cores busy, JAX": "{cores_busy_ours:fixed:2}",
            "cores busy, PyTorch": "{cores_busy_torch:fixed:2}",
            "CPU seconds, PyTorch / JAX": "{cpu_seconds_ratio_median:fixed:2}",
        },
    )


main = functools.partial(
    command, measure, about=lambda **_: versions("torch", "transformers"), seeds=[SEED], precision="float32 highest"
)
