"""``bornbiased digest``."""

from __future__ import annotations

import click

from bornbiased_jax.cli import options


@click.command("digest")
@click.argument("checkpoint", metavar="C")
@options.json_option
def digest(checkpoint: str, json_file: str | None) -> None:
    """Print the digest of a model's weights: a commitment to them and to the order of their coordinates and units.

    It is the same for the same numbers in the same places, whatever the file format, and changes when one number does
    or when coordinates or hidden units are numbered anew. Published where dates can be proved, it fixes the base of a
    later `bornbiased seedprint BASE SUSPECT --base-digest HEX`.

    \b
    Example:
      bornbiased digest runs/a@seed=42,step=0
      bornbiased digest seed:42@llama-tiny --json digest.json
    """
    from bornbiased_jax.checkpoints import open_checkpoint

    options.prepare_json(json_file)
    opened = open_checkpoint(checkpoint)
    found = opened.digest()
    value = {
        "digest": found,
        "checkpoint": opened.description,
        "config": opened.cfg.to_dict(),
        "tensors": opened.tensor_digests(),
    }
    options.write_result(json_file, value)
    click.echo(found, err=json_file == "-")
