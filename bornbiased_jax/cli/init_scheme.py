"""``bornbiased init-scheme``."""

from __future__ import annotations

import dataclasses

import click

from bornbiased_jax.cli import outputs
from bornbiased_jax.cli.sections import CHECKPOINT, Command


@click.command("init-scheme", cls=Command)
@click.argument("checkpoint", metavar="C", help=CHECKPOINT)
@outputs.result_options
def init_scheme(checkpoint: str, json_file: str | None) -> None:
    """Name the initialization scheme of an untrained model, group by group.

    For every group of weights this lists its standard deviation, mean, kurtosis and truncation, and the named schemes
    that would draw it in this way, by likelihood; then the same for the whole model, and what repeats in it, as when
    every shard of a tensor got the same draw. A trained model matches no scheme: use a checkpoint of step 0.

    \b
    Example:
      bornbiased init-scheme seed:42@gpt2-tiny
      bornbiased init-scheme pythia-160m-step0 --json scheme.json
    """
    from bornbiased_jax.checkpoints import open_checkpoint
    from bornbiased_jax.checkpoints.native_roles import NativeRoles
    from bornbiased_jax.lineage.audit.scheme import init_scheme as name_scheme
    from bornbiased_jax.lineage.audit.scheme import repeats_of
    from bornbiased_jax.lineage.audit.summary import moments_of
    from bornbiased_jax.lineage.fingerprint_pass import fingerprint
    from bornbiased_jax.results.lineage_reports import InitScheme

    outputs.prepare_json(json_file)
    reader = open_checkpoint(checkpoint)
    moments = {name: moments_of(reader.read(path, layer)) for name, path, layer in reader.tensors()}
    found = name_scheme(reader.cfg, moments)
    repeats = repeats_of(fingerprint(NativeRoles(reader)), reader.cfg)
    head = {"checkpoint": reader.description, "model": reader.cfg.to_dict()}
    value = {**head, **dataclasses.asdict(found), "repeats": repeats}
    outputs.print_result(InitScheme(value), json_file)
