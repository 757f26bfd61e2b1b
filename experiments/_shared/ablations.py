"""The three architectures of Section 4.1, the full model and each of its modules alone, on Gaussian inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bornbiased_jax.experiments._shared import probing
from bornbiased_jax.experiments.base import Record

VARIANTS: dict[str, dict[str, Any]] = {
    "full model": {},
    "self-attention only": {"mlp": False},
    "MLP only": {"attention": False},
}
"""Name -> fields of ``ModelConfig``."""

HEADS = ["mode", "model", "N", "T", "seed"]
"""Heads of the columns that name one seed of a variant."""

PAPER_MODEL, PAPER_LENGTH, PAPER_INPUTS = "gpt2-nano", 1024, 2_000


def groups(
    model: str, seeds: Sequence[int], seq_len: int, num_inputs: int, mlp_inputs: int | None = None, **changes: object
) -> list[probing.Group]:
    """Build one group of initializations for each variant, in the order of ``VARIANTS``.

    Positions meet nowhere in a model without attention, so there the last position is the whole sequence:
    MLP-only models run at T = 1, which is any T, and can afford more inputs (``mlp_inputs``).
    """
    variant_groups = []
    shared: dict[str, Any] = {"inputs": "gaussian", **changes}
    for fields in VARIANTS.values():
        alone = fields.get("attention") is False
        length, count = (1, mlp_inputs or num_inputs) if alone else (seq_len, num_inputs)
        variant_groups.append(probing.group(model, seeds, length, count, **shared, **fields))
    return variant_groups


def variant(group: probing.Group) -> str:
    """Return the name of a group's variant."""
    return next(
        name
        for name, fields in VARIANTS.items()
        if all(group["changes"].get(key, True) == fields.get(key, True) for key in ("attention", "mlp"))
    )


def by_variant(record: Record) -> dict[str, probing.Probed]:
    """Map each variant to its group of a record."""
    return {variant(probed["group"]): probed for probed in probing.probed_groups(record)}


def labels(group: probing.Group, seed: int) -> list[Any]:
    """Return the cells that name one seed of a variant, under :data:`HEADS`."""
    return [variant(group), probing.name_of(group), group["num_inputs"], length_of(group), seed]


def length_of(group: probing.Group) -> str:
    """Return T, for a table; "any" without attention."""
    return "any" if variant(group) == "MLP only" else f"{group['seq_len']:,}"


def same_configuration(group: probing.Group) -> bool:
    """Check whether Section 4.1 measured just this: 12 layers, 768 wide, 2,000 Gaussian inputs of 1,024 positions."""
    name = variant(group)
    return (
        group["model"] == PAPER_MODEL
        and group["changes"] == VARIANTS[name]
        and group["inputs"] == "gaussian"
        and group["num_inputs"] == PAPER_INPUTS
        and (name == "MLP only" or group["seq_len"] == PAPER_LENGTH)
    )


# Seeds are many and have embeddings of their own, because it costs nothing here and the theory's test of fit
# shares these initializations.
_SMALL: dict[str, Any] = dict(num_layers=2, vocab_size=256, d_ff=512, activation="relu")
SMOKE = groups("gpt2-tiny", range(64), 8, 200, fix_embeddings=False, **_SMALL)
LAPTOP = groups("gpt2-nano", [42, 43], 16, 500, mlp_inputs=PAPER_INPUTS)
PAPER = groups(PAPER_MODEL, [42, 43], PAPER_LENGTH, PAPER_INPUTS)

SETTINGS: dict[str, dict[str, Any]] = {
    "smoke": {"seeds": list(range(64)), "groups": SMOKE},
    "laptop": {"seeds": [42, 43], "groups": LAPTOP},
    "paper": {"seeds": [42, 43], "groups": PAPER},
}
"""Settings of the experiments that look at all three variants; their initializations are computed once."""

COST = {
    "smoke": "seconds",
    "laptop": "1 min 20 s on two cores (3.1 GB); table2 and figures 3, 4 and 7 share it",
    "paper": "1 h 50 min on two cores (3.2 GB); table2 and figures 3, 4 and 7 share it",
}
