"""``bornbiased models``."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from bornbiased_jax.cli import options
from bornbiased_jax.config import FIELDS, PRESETS


@click.command("models")
@options.result_options
def list_models(json_file: str | None) -> None:
    """List presets, their fields and parameter counts.

    \b
    Example:
      bornbiased models
      bornbiased models --json models.json
    """
    options.prepare_json(json_file)
    from bornbiased_jax.init import parameter_shapes
    from bornbiased_jax.parameters import count_parameters
    from bornbiased_jax.results import Listing, sentences
    from bornbiased_jax.schemes import SCHEMES

    described: dict[str, dict[str, Any]] = {
        name: {"num_parameters": count_parameters(parameter_shapes(cfg)), "fields": dataclasses.asdict(cfg)}
        for name, cfg in PRESETS.items()
    }
    value = {"models": described, "fields": list(FIELDS), "schemes": list(SCHEMES)}
    rows = [
        [
            name,
            f"{described[name]['num_parameters']:,}",
            cfg.num_layers,
            cfg.d_model,
            f"{cfg.num_heads}/{cfg.num_kv_heads}",
            cfg.d_ff,
            cfg.vocab_size,
            cfg.norm,
            f"{cfg.activation}{' gated' if cfg.gated_mlp else ''}",
            cfg.positions,
        ]
        for name, cfg in PRESETS.items()
    ]
    columns = ["preset", "parameters", "layers", "d_model", "heads/kv", "d_ff", "vocab", "norm", "MLP", "positions"]
    options.print_result(value, [Listing("Presets", columns, rows)], sentences.models(value), json_file)
