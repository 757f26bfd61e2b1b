"""Initialization schemes compared: statistics at initialization, gradients, early losses, and traces in the end.

No paper's table. A row is a named scheme (:mod:`bornbiased_jax.schemes`) or GPT-2's scheme with one change: activation,
balanced or mirrored neurons, unit embeddings, zero output projections. Everything but the initialization (and in three
rows the activation) is the same: architecture, optimizer, learning rate, text, order of the data. The head is not tied,
so that its rule acts; muP's attention scale and learning rates by width are not part of its row. No rate is tuned for a
row: what is compared is the initialization at one setting, not the best that each can reach.

Stated before any number was seen:

- **At initialization.** Cosine between sequences after the last block, fraction of inputs that the top-1 token answers
  and entropy of the next-token distribution at the last position, on N sequences of uniform tokens; gradient norm of
  the mean loss by block, on a batch of such sequences. Theory: :func:`bornbiased_jax.prediction.predict` with its 99%
  interval of seeds, the entropy of a softmax over V independent normal logits, and
  :func:`bornbiased_jax.prediction.predict_gradients`, each where it has one. Cells are (row, seed); a share of cosines
  inside their interval well below 97% would refute the theory at this size.
- **Training.** Held-out loss after each of the listed steps. The outcome is that of the last step. Seeds of one number
  have the same key in every row and see the same batches, so that differences to the reference are paired by seed.
  Means have Student's 95% intervals over seeds; p of the last step's differences (paired t) is corrected by Holm over
  all rows but the reference, and balanced ReLU minus ReLU as one test more. Earlier steps are shown without a test.
- **Seeds needed.** The smallest number of pairs with which a two-sided paired t test at 5% finds a true difference of
  0.01 nats with probability 0.8, if the standard deviation of differences is the one measured here.
- **Traces.** z of the initialization in the trained weights (evidence of residual coordinates over the whole model),
  and z of the next seed's initialization as a control, which should stay below 5.
- **What would refute.** "Less bias at initialization trains better": balanced, mirrored or unit-embedding rows whose
  adjusted p is above 0.05 or whose difference is positive. "The initialization decides early training": no row with an
  adjusted p below 0.05. A difference that is not significant is reported with its interval and called undecided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import progress
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.chunk_store import Chunk
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.experiments._shared.training import (
    held_out_rows,
    in_memory,
    loss_of,
    mean_loss,
    train_with_snapshots,
)
from bornbiased_jax.experiments.base import SCALES, Context, Entry, Experiment, chunked
from bornbiased_jax.experiments.birth import settings
from bornbiased_jax.experiments.birth.scheme_tables import claims, headline, tables
from bornbiased_jax.experiments.lineage.sketched import sketch
from bornbiased_jax.init import distribution
from bornbiased_jax.lineage.battery import Options
from bornbiased_jax.lineage.evidence import COORDINATES
from bornbiased_jax.lineage.weights_verdict import single_verdict as verdict
from bornbiased_jax.model.model import apply, head_path
from bornbiased_jax.parameters import Params, flatten, parameter_table
from bornbiased_jax.prediction import predict, predict_gradients
from bornbiased_jax.probes.inputs import random_tokens
from bornbiased_jax.probes.run import probe
from bornbiased_jax.probes.subject import untrained
from bornbiased_jax.schemes import SCHEMES
from bornbiased_jax.theory.softmax_rows import row_entropy
from bornbiased_jax.training.setup import load_data

REFERENCE = "gpt2-scaled"
ROWS: Mapping[str, Mapping[str, str]] = {
    **{name: {"init": name} for name in SCHEMES},
    "gpt2-scaled-balanced": {"init": "gpt2-scaled-balanced"},
    "gpt2-scaled-mirrored": {"init": "gpt2-scaled-mirrored"},
    "embedding std 1": {"init": REFERENCE, "init.embedding": "normal:1.0"},
    "zero output projections": {"init": REFERENCE, "init.output": "zeros", "init.down": "zeros"},
    "tanh": {"init": REFERENCE, "activation": "tanh"},
    "ReLU": {"init": REFERENCE, "activation": "relu"},
    "ReLU balanced": {"init": "gpt2-scaled-balanced", "activation": "relu"},
}
"""Row -> its changes of the model; the place of a row is the seed of its chunk in the store."""
PREDICTED = ("cosine", "cosine_interval", "top1", "top1_interval", "entropy", "gradient_norm_by_block")
"""What theory says of a row."""


def run(context: Context) -> Entry:
    """Measure every row, each a chunk of a store."""
    settings = dict(context.settings)
    names = list(ROWS)
    scheme_names = settings.pop("rows") or names
    chunks = [Chunk(names.index(name), 0, len(settings["seeds"])) for name in scheme_names]
    with progress.bar(len(chunks) * len(settings["seeds"]), "schemes", unit="models", quiet=context.quiet) as advance:
        request = {"settings": settings, "data": context.data}
        rows = context.parts("scheme_matrix/rows", compute, request, chunks, advance=advance)
    return {"reference": REFERENCE, "rows": rows}


@chunked
def compute(request: Entry, _sources: Entry, chunk: Chunk) -> Entry:
    """Measure one row: predictions, statistics at initialization, losses of training and traces of the seeds."""
    settings = request["settings"]
    name = list(ROWS)[chunk.seed]
    cfg = preset(settings["model"], **{**settings["changes"], **ROWS[name]})
    config = in_memory(cfg, request["data"] or settings["data"], settings["schedule"], settings["seeds"])
    data = load_data(config)
    held_NT = held_out_rows(data.validation, settings["held_out"])
    losses: dict[int, list[float]] = {}
    initial: list[Params] = []

    def on_snapshot(step: int, weights: list[Params]) -> None:
        """Keep the initial weights, and measure the loss of every seed where it is due."""
        if step == 0:
            initial.extend(weights)
        if step in (0, *settings["loss_steps"], config.steps):
            losses[step] = [loss_of(cfg, params, held_NT) for params in weights]

    trained, seconds = train_with_snapshots(
        config,
        data.train,
        on_snapshot=on_snapshot,
        interval=math.gcd(*settings["loss_steps"]),
        label=name,
        quiet=True,
    )
    starts = _starts(cfg, initial, settings)
    traces = _traces(cfg, initial, trained, settings["traced"])
    by_seed = [
        {"seed": seed, **starts[index], **traces[index], "loss": [values[index] for values in losses.values()]}
        for index, seed in enumerate(settings["seeds"])
    ]
    return {
        "name": name,
        "changes": ROWS[name],
        "steps": list(losses),
        "seconds_per_step": seconds,
        "predicted": _predicted(cfg, settings),
        "by_seed": by_seed,
    }


def _starts(cfg: ModelConfig, initial: Sequence[Params], settings: Entry) -> list[Entry]:
    """Measure every seed at initialization, on the same tokens; ``top1`` is None where all logits are the same."""
    N, T, B = settings["num_inputs"], settings["schedule"]["context"], settings["gradient_sequences"]
    inputs = random_tokens(N, T, cfg.vocab_size)
    records = probe(untrained(cfg), settings["seeds"], inputs)
    tokens_NT = jnp.asarray(inputs.batch(0, N))
    # Sequences of one token more, for the loss of their next tokens.
    tokens_BT1 = jnp.asarray(random_tokens(B, T + 1, cfg.vocab_size, seed=1).batch(0, B))
    measure = jax.jit(lambda params: (_entropy(cfg, params, tokens_NT), _gradient_norms(cfg, params, tokens_BT1)))
    has_head = distribution(cfg, parameter_table(cfg)[head_path(cfg)]).constant is None
    starts: list[Entry] = []
    for record, params in zip(records, initial, strict=True):
        entropy, norms_L = measure(params)
        starts.append(
            {
                "cosine": record["contraction"]["inter_cosine_by_layer"][-1],
                "top1": record["preference"]["top1_share"] if has_head else None,
                "entropy": float(entropy),
                "gradient_norm_by_block": np.asarray(norms_L, np.float64).tolist(),
            }
        )
    return starts


def _entropy(cfg: ModelConfig, params: Params, tokens_NT: jax.Array) -> jax.Array:
    """Compute the mean entropy of the next-token distribution at the last position, in nats."""
    logits_NTV = apply(cfg, params, tokens_NT).logits_BTV
    assert logits_NTV is not None
    log_p_NV = jax.nn.log_softmax(logits_NTV[:, -1], axis=-1)
    return -jnp.mean(jnp.sum(jnp.exp(log_p_NV) * log_p_NV, axis=-1))


def _gradient_norms(cfg: ModelConfig, params: Params, tokens_BT1: jax.Array) -> jax.Array:
    """Compute the norm of the mean loss's gradient over the parameters of each block [L]."""
    table, gradient = parameter_table(cfg), jax.grad(mean_loss, argnums=1)(cfg, params, tokens_BT1)
    stacked = [leaf for path, leaf in flatten(gradient).items() if table[path].is_stacked]
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf).reshape(cfg.num_layers, -1), axis=1) for leaf in stacked))


def _traces(
    cfg: ModelConfig, initial: Sequence[Params], trained: Sequence[Params], count: int
) -> list[dict[str, float | None]]:
    """Compute z of each seed's initialization, and of the next seed's, in its trained weights; of ``count`` seeds."""
    starts = [sketch(Checkpoint.from_params(cfg, params)) for params in initial[:count]]
    ends = [sketch(Checkpoint.from_params(cfg, params)) for params in trained[:count]]
    options = Options(has_untrained=True)
    traces: list[dict[str, float | None]] = [{"z": None, "z_other": None}] * (len(initial) - count)
    z_scores = [
        {
            "z": verdict(starts[index], end, COORDINATES, options).z,
            "z_other": verdict(starts[(index + 1) % count], end, COORDINATES, options).z,
        }
        for index, end in enumerate(ends)
    ]
    return z_scores + traces


def _predicted(cfg: ModelConfig, settings: Entry) -> Entry:
    """Predict the statistics at initialization; None where theory has nothing, for the ``reasons`` given."""
    T = settings["schedule"]["context"]
    predicted: dict[str, Any] = {**dict.fromkeys(PREDICTED), "reasons": []}
    try:
        forward = predict(cfg, T, num_inputs=settings["num_inputs"])
        predicted["cosine"] = forward["inter_cosine_final"]
        predicted["cosine_interval"] = (forward["inter_cosine_final_low"], forward["inter_cosine_final_high"])
        head = distribution(cfg, parameter_table(cfg)[head_path(cfg)])
        if head.constant is None:
            predicted["top1"] = forward["top1_share_mean"]
            predicted["top1_interval"] = (forward["top1_share_p10"], forward["top1_share_p90"])
        # The final norm gives states of mean square v/(v + ε) to a head of independent entries.
        square = forward["residual_std_by_layer"][-1][-1] ** 2
        head_std = 0.0 if head.constant is not None else head.measured_std()
        variance = head_std**2 * cfg.d_model * square / (square + cfg.norm_eps)
        predicted["entropy"] = row_entropy(cfg.vocab_size, variance)
    except (InputError, ValueError) as error:
        predicted["reasons"].append(str(error))
    try:
        backward = predict_gradients(cfg, T, settings["gradient_sequences"])
        predicted["gradient_norm_by_block"] = backward["gradient_norm_by_block"]
    except InputError as error:
        predicted["reasons"].append(str(error))
    return predicted


EXPERIMENT = Experiment(
    name="scheme_matrix",
    title="Initialization schemes, predicted, measured and trained",
    description=(
        "Every named initialization scheme, and GPT-2's with one change each: how alike states are and how often one "
        "token wins before training, gradient norms, and held-out losses of the first steps, paired by seed with "
        "GPT-2's scheme."
    ),
    settings=settings.SCHEME_MATRIX,
    cost={
        "smoke": "about a minute of one core",
        "laptop": "half an hour on two cores; resumes",
        "paper": "not measured",
    },
    run=run,
    takes_data=SCALES,
    tables=tables,
    claims=claims,
    headline=headline,
)
