"""Figure 4: contraction of the MLP-only model, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bornbiased_jax.experiments._shared import ablations, probing
from bornbiased_jax.experiments.base import Experiment, Record
from bornbiased_jax.report import figures
from bornbiased_jax.report.numbers import fixed
from bornbiased_jax.report.tables import Claim, Panel, Table, tabulate


def panels(record: Record) -> Sequence[Panel]:
    """Draw mean and standard deviation over pairs after each block, with theory's interval for the mean."""
    (probed,) = probing.probed_groups(record)
    group, pulled = probed["group"], probed["records"][0]["contraction"]
    mean, std = np.asarray(pulled["inter_cosine_by_layer"]), np.asarray(pulled["inter_cosine_std_by_layer"])
    figure, ax = figures.new()
    figures.line(
        ax, probing.blocks(probed), mean, mean - std, mean + std, name="measured, ± std over pairs", markers=True
    )
    probing.draw_theory(ax, probed, "theory, 99% of seeds")
    figures.label(ax, "after MLP block", "cosine between sequences")
    ax.locator_params(axis="x", integer=True)
    figures.legend(ax)
    caption = (
        f"{probing.name_of(group)}, seed {probed['records'][0]['seed']}, N = {group['num_inputs']:,} Gaussian "
        "inputs. The blue band is the standard deviation from pair to pair of inputs, the dashed line and its band are "
        "what theory says of the mean."
    )
    return [Panel(figure, caption)]


def tables(record: Record) -> Sequence[Table]:
    """Show mean ± standard deviation over pairs, a row a block."""
    (probed,) = probing.probed_groups(record)
    theory = probed["theory"]
    names = [f"seed {initial['seed']}" for initial in probed["records"]][:4]
    rows: list[tuple[Any, ...]] = []
    for layer in range(len(theory["inter_cosine_by_layer"])):
        measured: dict[str, Any] = {}
        for name, initial in zip(names, probed["records"], strict=False):
            mean, std = (initial["contraction"][f"inter_cosine_{prefix}by_layer"][layer] for prefix in ("", "std_"))
            measured[name] = (fixed(3), (mean, std))
        predicted = (theory["inter_cosine_by_layer"][layer], theory["inter_cosine_by_layer_std"][layer])
        rows.append(([layer + 1], {**measured, "any seed": (fixed(3), None)}, {}, {"any seed": predicted}))
    note = (
        "Measured: mean ± standard deviation over pairs of inputs. Theory: mean ± standard deviation over "
        "seeds of that mean. The paper draws Figure 4 and prints no numbers."
    )
    title = "Cosine between sequences after each MLP block"
    return [tabulate(title, ["block"], rows, note, configuration="other")]


def claims(record: Record) -> Sequence[Claim]:
    """Claim a steady rise."""
    (probed,) = probing.probed_groups(record)
    rises = [np.diff(cosines).min() for cosines in probing.values(probed, "contraction", "inter_cosine_by_layer")]
    theory = np.diff(probed["theory"]["inter_cosine_by_layer"]).min()
    return [
        Claim(
            f"Smallest rise of the cosine from one MLP block to the next, any of {len(rises)} seeds",
            float(min(rises)),
            theory=float(theory),
            configuration="ours",
        )
    ]


EXPERIMENT = Experiment(
    name="figure4",
    title="Every MLP block contracts further",
    paper="Figure 4",
    description=(
        "Blocks of LayerNorm, MLP and residual without attention, on Gaussian inputs: the mean cosine "
        "between different inputs rises from block to block, while its standard deviation from pair to pair "
        "hardly does. No length enters, so this is the paper's own configuration at the cost of one position."
    ),
    settings={scale: {**chosen, "groups": chosen["groups"][-1:]} for scale, chosen in ablations.SETTINGS.items()},
    cost={"smoke": "seconds", "laptop": "27 s on two cores; shared with table2", "paper": "the same"},
    run=probing.run_groups,
    tables=tables,
    claims=claims,
    figures=panels,
)
