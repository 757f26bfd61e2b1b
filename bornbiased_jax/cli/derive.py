"""``bornbiased derive``."""

from __future__ import annotations

import click

from bornbiased_jax.checkpoints import export_hugging_face, open_checkpoint
from bornbiased_jax.checkpoints.export import check_folder
from bornbiased_jax.cli import options, outputs
from bornbiased_jax.cli.sections import CHECKPOINT, Command
from bornbiased_jax.derive.changes import ChangeContext, parse_change
from bornbiased_jax.derive.derive import derive as change_weights
from bornbiased_jax.derive.text_ids import ids_in_text
from bornbiased_jax.errors import InputError
from bornbiased_jax.keys import check_seed
from bornbiased_jax.results.lineage_reports import Descendant
from bornbiased_jax.schema import Seed
from bornbiased_jax.text.tokenizers import fits_vocabulary


@click.command("derive", cls=Command)
@click.argument("checkpoint", metavar="CHECKPOINT", help=CHECKPOINT)
@click.option(
    "--change",
    "changes",
    multiple=True,
    required=True,
    metavar="KIND:STRENGTH",
    help="A change; repeat for more, which are made in this order.",
)
@click.option("--out", required=True, metavar="DIR", help="A new or empty folder for the Hugging Face model.")
@click.option("--seed", type=options.Ranged(Seed), default=0, help="Seed of the noise.")
@click.option("--text", metavar="TEXT", help="For unused-rows: tokens of this file or builtin:… count as used.")
@click.option("--overwrite", is_flag=True, help="Replace a model in DIR that no export wrote, or that was changed.")
@outputs.result_options
def derive(
    checkpoint: str,
    changes: tuple[str, ...],
    out: str,
    seed: int,
    text: str | None,
    overwrite: bool,
    json_file: str | None,
) -> None:
    """Make a descendant of known origin: change a model's weights, and write a Hugging Face directory.

    \b
    Changes of the function:
      noise:0.1        Gaussian noise of so many standard deviations, on matrices
      prune:0.5        the smallest entries of every matrix, this fraction, zeroed
      round:8          weights rounded to so many bits, output channel by channel
      merge:OTHER:0.5  this fraction of another model, the rest of this one
      slerp:OTHER:0.5  so far on the great circle to another model, by tensor
      lora:DIR         a LoRA adapter of this model, in PEFT's layout, merged in
      drop-layers:2,5  these blocks left out, counted from 1
      repeat-layers:A-B  blocks A to B a second time
    Changes that keep the function, which is checked by logits:
      rotate:SEED      residual stream rotated, norm scales folded, head untied
      renumber:SEED    residual coordinates permuted
      negate:SEED      residual coordinates negated (LayerNorm: negate:all)
      permute:SEED     hidden units permuted
      rescale:SEED     factors moved from down to up (gated MLPs)
      heads:SEED       attention heads permuted
      experts:SEED     experts permuted, the router with them
      insert-layer:SEED  a random block that writes nothing, put first
      resize-vocab:N   vocabulary cut or extended; the other logits stay
      unused-rows:SCALE  embedding rows of unused tokens times SCALE
                       (without --text: the last tenth of the ids)

    \b
    Example:
      bornbiased derive runs/a@seed=42 --change rotate:7 --change noise:0.1 \\
        --out derived/a
      bornbiased seedprint seed:42@llama-tiny derived/a
    """
    parsed = [parse_change(change) for change in changes]
    # No model that is read is to be replaced by what is made of it.
    for source in (checkpoint, *(change.source for change in parsed if change.source is not None)):
        check_folder(out, source, overwrite=overwrite)
    kinds = {change.partition(":")[0] for change in changes}
    if text is not None and "unused-rows" not in kinds:
        raise InputError("--text tells unused-rows which tokens are used: add --change unused-rows:SCALE")
    if options.is_given("seed") and "noise" not in kinds:
        raise InputError("--seed is of the noise alone, and no change here is noise: leave --seed out")
    # Ids that occur in a text, for changes of the vocabulary.
    used_I = None
    if text is not None:
        reader = open_checkpoint(checkpoint)
        used_I = ids_in_text(reader, text)
    context = ChangeContext(check_seed(seed), used_I)
    # Change the weights; a tokenizer that no longer fits is left out.
    derived = change_weights(checkpoint, parsed, context)
    tokenizer = derived.tokenizer
    if tokenizer is not None and not fits_vocabulary(tokenizer, derived.cfg.vocab_size):
        tokenizer = None
    family = export_hugging_face(
        derived.cfg, derived.params, out, tokenizer=tokenizer, context=derived.context, overwrite=overwrite
    )
    descendant = Descendant(
        checkpoint,
        changes,
        out,
        family,
        derived.preserved,
        derived.logit_difference,
        derived.base_digest,
        derived.digest,
        None if tokenizer is None else tokenizer.name,
        derived.cfg.to_dict(),
    )
    outputs.OutputFiles(json_file).show(descendant)
