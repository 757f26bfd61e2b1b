"""``bornbiased digest``."""

from __future__ import annotations

import click

from bornbiased_jax.cli import options


@click.command("digest")
@click.argument("checkpoint", metavar="C")
@options.result_options
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
    from bornbiased_jax.checkpoints.digests import combine
    from bornbiased_jax.results import sentences

    options.prepare_json(json_file)
    reader = open_checkpoint(checkpoint)
    tensors = reader.tensor_digests()
    combined = combine(tensors)
    value = {"digest": combined, "checkpoint": reader.description, "config": reader.cfg.to_dict(), "tensors": tensors}
    options.write_result(json_file, value)
    click.echo(combined, err=json_file == "-")
    # The digest alone on standard output: --base-digest "$(bornbiased digest C)".
    options.tell(sentences.digest(value), to_stderr=True)
