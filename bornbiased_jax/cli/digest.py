"""``bornbiased digest``."""

from __future__ import annotations

from pathlib import Path

import click

from bornbiased_jax.cli import options, outputs
from bornbiased_jax.cli.sections import CHECKPOINT, Command


@click.command("digest", cls=Command)
@click.argument("checkpoint", metavar="C", help=CHECKPOINT)
@options.file_option
@options.roles_option
@options.ignore_option
@outputs.result_options
def digest(
    checkpoint: str, file: str | None, roles: str | None, ignore_fields: tuple[str, ...], json_file: str | None
) -> None:
    """Print the digest of a model's weights: a commitment to them and to the order of their coordinates and units.

    It is the same for the same numbers in the same places, whatever the file format, and changes when one number does
    or when coordinates or hidden units are permuted. Published where dates can be proved, it fixes the base of a
    later `bornbiased seedprint BASE SUSPECT --base-digest HEX`.

    \b
    Example:
      bornbiased digest runs/a@seed=42,step=0
      bornbiased digest seed:42@llama-tiny --json digest.json
    """
    from bornbiased_jax.checkpoints import open_checkpoint
    from bornbiased_jax.checkpoints.digests import combine
    from bornbiased_jax.checkpoints.naming import open_role_source
    from bornbiased_jax.checkpoints.native_roles import NativeRoles
    from bornbiased_jax.lineage.fingerprint_pass import weights_digests
    from bornbiased_jax.results.lineage_reports import Digest

    outputs.prepare_json(json_file)
    roles_file = None if roles is None else Path(roles)
    source = open_role_source(checkpoint, file=file, roles_file=roles_file, ignore_fields=ignore_fields)
    tensors, config = dict(weights_digests(source).parameters), None
    if isinstance(source, NativeRoles):
        config = open_checkpoint(checkpoint, file=file, ignore_fields=ignore_fields).cfg.to_dict()
    combined = combine(tensors)
    value = {"digest": combined, "checkpoint": source.description, "config": config, "tensors": tensors}
    # The digest alone on standard output: --base-digest "$(bornbiased digest C)".
    outputs.print_result(Digest(value), json_file, line=combined, is_piped=True)
