"""The preference sweep against the loop that a user would write with PyTorch and transformers.

Same sizes, same machine, one process, taken in turn; the figure is the ratio pair by pair. The loop is
tuned: inference mode, SDPA attention, the fastest of several batch sizes, all cores. Both programs count the
time of making the weights, which the sweep also makes anew for each seed.

The sweep leaves out what the last position does not need of the last block; the loop, as a user writes it, does not.
So the sweep is timed twice in each turn: as it is, and with every block at all positions, which is the loop's own work.

    python -m benchmarks sweep_vs_torch
    python -m benchmarks sweep_vs_torch --model llama-nano --seeds 32 --pairs 2 --batches 32,64,128

The second line is meant for a GPU, which both programs then use, one after the other.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.matmul import matmul_rate
from benchmarks.recorded import Findings, command, median_and_range, timed, versions
from benchmarks.tables import facts
from bornbiased_jax import hardware
from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.model import apply, logits_of
from bornbiased_jax.model.memory import needed_operations
from bornbiased_jax.parameters import Params
from bornbiased_jax.probes import preference
from bornbiased_jax.probes.inputs import Inputs, random_tokens
from bornbiased_jax.probes.measure import initial_params, order_inputs, stream
from bornbiased_jax.probes.observe import observe
from bornbiased_jax.sweep import Probe, SweepOptions, sweep

MODEL = "llama-tiny,d_model=256,d_ff=704,num_layers=4,num_heads=4"
TUNING_SEEDS = 2


def config_of(model: str) -> ModelConfig:
    """Return a preset with changed fields."""
    return open_checkpoint(f"seed:0@{model}").cfg


def preference_probe(cfg: ModelConfig) -> Probe:
    """Count the top-1 tokens, as the loop does."""

    def update(
        state: preference.PreferenceState, params: Params, batch: dict[str, jax.Array]
    ) -> preference.PreferenceState:
        return preference.update(state, observe(cfg, params, batch["x"]), batch["weight"])

    def finish(state: preference.PreferenceState, _params: Params) -> dict[str, jax.Array]:
        return {"counts": state.token_counts_V}

    return Probe(functools.partial(preference.init, cfg), update, finish)


def equal_work_probe(cfg: ModelConfig) -> Probe:
    """Count the top-1 tokens, and compute every position of the last block too, as the loop does."""

    def init() -> jax.Array:
        return jnp.zeros(cfg.vocab_size, jnp.int32)

    def update(counts_V: jax.Array, params: Params, batch: dict[str, jax.Array]) -> jax.Array:
        final_BD = apply(cfg, params, batch["x"], logits=False).final_BTD[:, -1]
        top_B = jnp.argmax(logits_of(cfg, params, final_BD), axis=-1)
        return counts_V.at[top_B].add(batch["weight"].astype(counts_V.dtype))

    def finish(counts_V: jax.Array, _params: Params) -> dict[str, jax.Array]:
        return {"counts": counts_V}

    return Probe(init, update, finish)


def run_jax(cfg: ModelConfig, probe: Probe, inputs: Inputs, batch_size: int, seeds: int, options: SweepOptions) -> None:
    """Run one sweep over the seeds."""
    batches = list(stream(inputs, order_inputs(inputs, batch_size)))
    for _ in sweep(probe, initial_params(cfg, None), range(seeds), lambda: batches, options):
        pass


def torch_device() -> str:
    """Choose where the loop runs: on the kind of device that JAX computes on.

    Raises:
        InputError: PyTorch cannot use it.
    """
    import torch

    if jax.default_backend() == "cpu":
        return "cpu"
    if not torch.cuda.is_available():
        raise InputError("JAX computes on a GPU and PyTorch does not see one: install a PyTorch that does")
    return "cuda"


def run_torch(cfg: ModelConfig, tokens_NT: np.ndarray, batch_size: int, seeds: int, device: str) -> None:
    """Run the user's loop over the seeds."""
    import torch
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        hidden_size=cfg.d_model,
        intermediate_size=cfg.d_ff,
        num_hidden_layers=cfg.num_layers,
        num_attention_heads=cfg.num_heads,
        num_key_value_heads=cfg.kv_heads,
        vocab_size=cfg.vocab_size,
        max_position_embeddings=cfg.max_seq_len,
        attn_implementation="sdpa",
        use_cache=False,
    )
    # Untrained models, one seed after the other.
    place = torch.device(device)
    tokens = torch.from_numpy(tokens_NT.astype(np.int64)).to(place)
    for seed in range(seeds):
        torch.manual_seed(seed)
        # Made where it computes, as a user with a GPU would.
        with place:
            model = LlamaModel(config).eval()
            head = torch.empty(cfg.vocab_size, cfg.d_model).normal_(0, 0.02)
            counts = torch.zeros(cfg.vocab_size, dtype=torch.int64)
        with torch.inference_mode():
            for start in range(0, len(tokens), batch_size):
                last = model(tokens[start : start + batch_size]).last_hidden_state[:, -1]
                counts += torch.bincount((last @ head.T).argmax(-1), minlength=cfg.vocab_size)
        counts.cpu()  # what a GPU was asked for is awaited here


def best_batch(run: Callable[[int], object], sizes: tuple[int, ...], repeats: int) -> int:
    """Return the batch size with the fastest run: the least of several, after one that is not counted."""
    least = {}
    for size in sizes:
        run(size)
        least[size] = min(timed(functools.partial(run, size)).wall_s for _ in range(repeats))
    return min(least, key=least.__getitem__)


def measure(
    model: str = MODEL,
    seeds: int = 8,
    sequences: int = 256,
    length: int = 128,
    batches: tuple[int, ...] = (4, 8, 16, 32),
    pairs: int = 5,
    loop_batches: tuple[int, ...] = (),
    chunk: int | None = None,
) -> Findings:
    """Measure the preference sweep against a PyTorch loop, taken in turn.

    Args:
        model: A preset, with changed fields after commas.
        seeds: Models.
        sequences: For each seed.
        length: Tokens in a sequence.
        batches: Sizes of which each loop takes its fastest, by commas.
        pairs: Turns.
        loop_batches: Sizes for the loop instead, by commas.
        chunk: Seeds in one program, as many as fit unless given: a GPU's compiler tries its kernels at that size.
    """
    import torch

    torch.set_num_threads(hardware.cores())
    device, cfg = torch_device(), config_of(model)
    inputs = random_tokens(sequences, length, cfg.vocab_size)
    tokens_NT = inputs.batch(0, sequences)
    plain, equal = preference_probe(cfg), equal_work_probe(cfg)
    ours = functools.partial(run_jax, cfg, options=SweepOptions(chunk=chunk))
    tuning = min(seeds, TUNING_SEEDS)
    # A GPU takes the seeds together: two of them would tell nothing of all, and nothing else slows a single run.
    jax_tuning, repeats = (tuning, 3) if device == "cpu" else (seeds, 1)
    jax_batch = best_batch(lambda size: ours(plain, inputs, size, jax_tuning), batches, repeats)
    torch_batch = best_batch(
        lambda size: run_torch(cfg, tokens_NT, size, tuning, device), loop_batches or batches, repeats
    )
    ours(plain, inputs, jax_batch, seeds)
    ours(equal, inputs, jax_batch, seeds)
    # Sweep, loop and sweep with equal work take turns, so that other load hits all three.
    jax_s, torch_s, equal_s, rates = [], [], [], []
    for _ in range(pairs):
        jax_s.append(timed(lambda: ours(plain, inputs, jax_batch, seeds)).wall_s)
        # The machine's own rate in the same seconds: it moves with what else the host is doing.
        rates.append(matmul_rate(cfg, jax_batch * length))
        torch_s.append(timed(lambda: run_torch(cfg, tokens_NT, torch_batch, seeds, device)).wall_s)
        equal_s.append(timed(lambda: ours(equal, inputs, jax_batch, seeds)).wall_s)
    operations = seeds * sequences * needed_operations(cfg, length)
    # Ratios within a turn.
    fractions = [operations / time / rate for time, rate in zip(jax_s, rates, strict=True)]
    return {
        "seconds_ours": statistics.median(jax_s),
        "seconds_ours_equal_work": statistics.median(equal_s),
        "seconds_torch": statistics.median(torch_s),
        **median_and_range("speedup", [loop / time for loop, time in zip(torch_s, jax_s, strict=True)]),
        **median_and_range("speedup_equal_work", [loop / time for loop, time in zip(torch_s, equal_s, strict=True)]),
        "seeds": seeds,
        "sequences": sequences,
        "length": length,
        "device_torch": device,
        "batch_ours": jax_batch,
        "chunk_ours": chunk,
        "batch_torch": torch_batch,
        "needed_gflop": operations / 1e9,
        "gflops_ours": operations / statistics.median(jax_s) / 1e9,
        "gflops_matmul": statistics.median(rates) / 1e9,
        "share_of_matmul_rate": statistics.median(fractions),
        "share_range": [min(fractions), max(fractions)],
    }


tables = functools.partial(
    facts,
    title="A sweep over seeds versus a loop with PyTorch",
    rows={
        "sweep, loop": "{seconds_ours:fixed:2} s, {seconds_torch:fixed:2} s",
        "loop over sweep, pair by pair": "{speedup_median:times:2} ({speedup_range:times:2})",
        "the same for equal work": "{speedup_equal_work_median:times:2} ({speedup_equal_work_range:times:2})",
        "needed operations per second": "{gflops_ours:fixed:0} GFLOP/s",
        "products at the model's own shapes, same seconds": "{gflops_matmul:fixed:0} GFLOP/s",
        "fraction of that rate": "{share_of_matmul_rate:percent:0} ({share_range:percent:0})",
    },
    note="Needed are all positions in every block but the last, there keys and values of all positions and one query, "
    "output and MLP row; half of the causal square; the head at one position. The loop computes the last block at "
    "every position; for equal work the sweep does so too.",
)


main = functools.partial(
    command,
    measure,
    about=lambda model, seeds, **_: {"config": config_of(model), "seeds": range(seeds), **versions("torch")},
    precision="float32 highest",
)
