"""Table 3: what a second MLP₀ and what an Attn₀ does to the contraction of a first MLP₀."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import model as models
from bornbiased_jax import progress
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.experiments.base import Context, Entry, Experiment, Record
from bornbiased_jax.experiments.theory import settings
from bornbiased_jax.model.model import attn0, mlp0_config
from bornbiased_jax.prediction import stack_of
from bornbiased_jax.probes import contraction
from bornbiased_jax.probes.batching import batch_size_by_tokens
from bornbiased_jax.probes.contraction import ContractionState
from bornbiased_jax.probes.inputs import gaussian
from bornbiased_jax.probes.measure import in_sequences, initial_params, order_inputs, stream
from bornbiased_jax.probes.observe import Observation
from bornbiased_jax.report.numbers import fixed, from_log10, mean_std, significant
from bornbiased_jax.report.tables import Cells, Claim, Table, tabulate
from bornbiased_jax.sweep import Probe, SweepOptions, sweep
from bornbiased_jax.theory.attention import prop4
from bornbiased_jax.theory.mean_field import profile
from bornbiased_jax.theory.mlp import mlp0_finite_width
from bornbiased_jax.theory.predict import contraction as predicted_contraction

SETTINGS = ("MLP₀", "MLP₀ ∘ MLP₀", "Attn₀ ∘ MLP₀")
PRINTED = {"MLP₀": 0.31, "MLP₀ ∘ MLP₀": 0.49, "Attn₀ ∘ MLP₀": 0.98}
PAPER_SIZES = {"d_model": 768, "d_ff": 3072, "num_inputs": 2_000, "seq_len": 128}


@functools.lru_cache(maxsize=4)
def _probe(cfg: ModelConfig) -> Probe:
    """Measure the outputs of one MLP₀, and of a second one and of Attn₀ applied to them."""
    block = cfg.replace(num_layers=1)

    def mlp0(params: models.Params, layer: int, x_BTD: jax.Array) -> jax.Array:
        weights = {**params, "blocks": jax.tree.map(lambda w: w[layer : layer + 1], params["blocks"])}
        return models.apply(block, weights, x_BTD, logits=False).final_BTD

    def update(state: ContractionState, params: models.Params, batch: dict[str, jax.Array]) -> ContractionState:
        h_BTD = mlp0(params, 0, batch["x"] * cfg.embedding_std)
        again_BD = mlp0(params, 1, h_BTD[:, -1:])[:, 0]
        averaged_BD = attn0(h_BTD)[:, -1]
        nothing_B = jnp.zeros(len(again_BD), jnp.int32)
        observation = Observation(jnp.stack([h_BTD[:, -1], again_BD]), averaged_BD, nothing_B, None)
        return contraction.update(state, observation, batch["weight"], batch["last"])

    return Probe(
        init=lambda: contraction.init(cfg, second_moment=False),
        update=update,
        finish=lambda state, _params: contraction.reduce(state)._asdict(),
    )


def run(context: Context) -> Entry:
    """Compute cosines of every group's seeds, with theory's."""
    return {"groups": [_run_group(context, group) for group in context.settings["groups"]]}


def _run_group(context: Context, group: Entry) -> Entry:
    cfg = mlp0_config(num_layers=2, d_model=group["d_model"], d_ff=group["d_ff"])
    inputs = gaussian(group["num_inputs"], group["seq_len"], group["d_model"])
    batches = order_inputs(inputs, batch_size_by_tokens(inputs.seq_len, inputs.num_inputs, None))
    records = []
    total = inputs.num_inputs * len(group["seeds"])
    with progress.bar(total, f"table3 T={group['seq_len']}", unit="sequences", quiet=context.quiet) as advance:
        results = sweep(
            _probe(cfg),
            initial_params(cfg, None),
            group["seeds"],
            lambda: stream(inputs, batches),
            SweepOptions(mesh=context.mesh),
            advance=in_sequences(advance),
        )
        for seed, sums in results:
            summary = contraction.summarize(
                contraction.ContractionSums(**sums), d_model=cfg.d_model, intra=False, remove_same_last=False
            )
            cosines = [*summary["inter_cosine_by_layer"], summary["inter_cosine_final"]]
            records.append(
                {"seed": seed, "cosine": cosines, "log10_p": [*summary["log10_p_by_layer"], summary["log10_p"]]}
            )
    mean, std = theory(cfg, group["seq_len"], group["num_inputs"])
    return {"group": group, "records": records, "theory": mean, "theory_std": std}


def mlp0_theory(cfg: ModelConfig, num_inputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Predict mean and standard deviation over seeds of the cosine after each MLP₀ block [L], at finite width."""
    stack = stack_of(cfg, tokens=False)
    mean, _ = mlp0_finite_width(
        stack.activation,
        stack.num_layers,
        stack.width,
        stack.mlp_width,
        input_std=stack.embedding_std,
        up_gain=stack.width * stack.weight_std**2,
        down_gain=stack.mlp_width * stack.output_std**2,
    )
    # The expansion leaves rounding where the mean is 0 (odd activations).
    mean = np.where(np.abs(mean) < 1e-12, 0.0, mean)
    return mean, predicted_contraction(profile(stack, 1), num_inputs).std[1:]


def theory(cfg: ModelConfig, seq_len: int, num_inputs: int) -> tuple[list[float], list[float]]:
    """Predict mean and standard deviation over seeds of the three cosines.

    For Attn₀ ∘ MLP₀ a seed's cosine is Proposition 4's function of that seed's ρ_1, so the standard deviation of
    ρ_1 is carried through its slope.
    """
    mean, std = mlp0_theory(cfg, num_inputs)
    slope = seq_len / (1 + (seq_len - 1) * mean[0]) ** 2
    return [*mean.tolist(), float(prop4(seq_len, mean[0]))], [*std.tolist(), slope * float(std[0])]


def same_configuration(group: Entry, index: int) -> bool:
    """Check whether the paper printed this row; the length matters to Attn₀ alone."""
    sizes = {key: group[key] for key in PAPER_SIZES}
    return sizes == PAPER_SIZES or (index < 2 and {**sizes, "seq_len": 128} == PAPER_SIZES)


def tables(record: Record) -> Sequence[Table]:
    """Show a row per setting of each group; without a second position there is nothing to average."""
    rows = []
    for outcome in record["result"]["groups"]:
        group = outcome["group"]
        cosines = np.asarray([row["cosine"] for row in outcome["records"]])
        worst = np.max([row["log10_p"] for row in outcome["records"]], axis=0)
        for index, name in enumerate(SETTINGS if group["seq_len"] > 1 else SETTINGS[:2]):
            measured = {
                "cosine": (significant(3), mean_std(cosines[:, index])),
                "largest p": (from_log10(3), float(worst[index])),
            }
            is_published = same_configuration(group, index)
            paper: Cells = {"cosine": PRINTED[name], "largest p": "0.00 (underflow)"} if is_published else {}
            predicted: Cells = {"cosine": (outcome["theory"][index], outcome["theory_std"][index])}
            length = f"{group['seq_len']:,}" if index == 2 else "any"
            settings = [name, group["d_model"], group["num_inputs"], length, len(cosines)]
            rows.append((settings, measured, paper, predicted))
    note = (
        "Cosine between the last-token states of different sequences, mean ± standard deviation over seeds; N "
        "sequences of T Gaussian vectors of std 0.02, ReLU MLPs of hidden width 4 D. Largest p: of Rayleigh's test, "
        "over seeds. Theory: Proposition 2 at finite width, and for Attn₀ Proposition 4, Tρ/(1 + (T − 1)ρ), with the "
        "ρ that theory gives for one MLP₀."
    )
    return [tabulate("A second MLP₀ against an Attn₀", ["setting", "D", "N", "T", "seeds"], rows, note)]


def claims(record: Record) -> Sequence[Claim]:
    """Claim that averaging contracts more than a second MLP."""
    outcome = next(outcome for outcome in record["result"]["groups"] if outcome["group"]["seq_len"] > 1)
    group, page_claims = outcome["group"], []
    for index in (1, 2):
        is_published = same_configuration(group, index)
        page_claims.append(
            Claim(
                f"Cosine between sequences after {SETTINGS[index]}, D = {group['d_model']}, T = {group['seq_len']}",
                float(np.mean([row["cosine"][index] for row in outcome["records"]])),
                PRINTED[SETTINGS[index]] if is_published else None,
                outcome["theory"][index],
                format=fixed(3),
            )
        )
    return page_claims


EXPERIMENT = Experiment(
    name="table3",
    title="Averaging amplifies a contraction more than another MLP does",
    paper="Table 3, Proposition 4",
    description=(
        "One ReLU layer without norm and residual makes different inputs alike by 1/π. A second one takes that to "
        "0.494; averaging over T positions takes it to T/(T + π − 1)."
    ),
    settings=settings.TABLE3,
    cost={"laptop": "41 s on two cores", "paper": "an hour and a half on two busy cores"},
    run=run,
    tables=tables,
    claims=claims,
)
