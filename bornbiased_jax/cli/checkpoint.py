"""Commands on one checkpoint: ``bornbiased generate``, ``parity``, ``evaluate`` and ``init-scheme``."""

from __future__ import annotations

from typing import Any

import click

from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.cli import options, outputs
from bornbiased_jax.cli.sections import CHECKPOINT, Command
from bornbiased_jax.errors import InputError
from bornbiased_jax.evaluation.generation import Sampling, generate_text, text_of
from bornbiased_jax.evaluation.generation import generate as continue_ids
from bornbiased_jax.evaluation.parity import parity as compare_logits
from bornbiased_jax.evaluation.perplexity import evaluate_checkpoint
from bornbiased_jax.lineage.audit.scheme import init_scheme as name_scheme
from bornbiased_jax.lineage.audit.scheme import repeats_of
from bornbiased_jax.lineage.audit.summary import moments_of
from bornbiased_jax.lineage.fingerprint_pass import fingerprint
from bornbiased_jax.results.lineage_reports import InitScheme
from bornbiased_jax.results.run_reports import Evaluation, Generation, Parity
from bornbiased_jax.schema import BatchSize, Count, CountOrNone, Seed, SeqLen, Temperature, TopProbability


@click.command("generate", cls=Command)
@click.argument("checkpoint", metavar="C", help=CHECKPOINT)
@click.option("--prompt", type=options.PROMPT, metavar="TEXT", help="Text to continue.")
@click.option("--prompt-ids", metavar="IDS", help="Token ids to continue, as in 5,17,3.")
@click.option("--max-new-tokens", type=options.Ranged(CountOrNone), default=32, help="Tokens to add at most.")
@click.option("--temperature", type=options.Ranged(Temperature), default=0.0, help="0 takes the most probable token.")
@click.option("--top-k", type=options.Ranged(Count), help="Draw among this many of the most probable tokens.")
@click.option(
    "--top-p",
    type=options.Ranged(TopProbability),
    default=1.0,
    help="Draw among the most probable tokens that together have this probability.",
)
@click.option("--seed", type=options.Ranged(Seed), default=0, help="Seed of the draws.")
@outputs.result_options
def generate(
    checkpoint: str,
    prompt: str | None,
    prompt_ids: str | None,
    max_new_tokens: int,
    json_file: str | None,
    **choices: Any,
) -> None:
    """Continue a prompt; greedily unless --temperature is above 0.

    \b
    Example:
      bornbiased generate path/to/model --prompt "Once upon a time" \\
        --max-new-tokens 60
    """
    if (prompt is None) == (prompt_ids is None):
        raise InputError("give either --prompt TEXT or --prompt-ids 5,17,3")
    if options.is_given("seed") and choices["temperature"] == 0:
        raise InputError("--seed is of what is drawn, and nothing is at temperature 0: add --temperature 0.8")
    sampling = Sampling(**choices)
    opened = open_checkpoint(checkpoint)
    if prompt is not None:
        ids, text = generate_text(opened, prompt, max_new_tokens, sampling=sampling)
    else:
        tokenizer, given_ids = opened.tokenizer, options.parse_ids(str(prompt_ids), "--prompt-ids")
        stop_id = None if tokenizer is None else tokenizer.eos_id
        ids = continue_ids(opened, given_ids, max_new_tokens, stop_id=stop_id, sampling=sampling)
        text = text_of(tokenizer, ids) if tokenizer is not None else ""
    # The text alone on standard output: another program may read it.
    line = "" if json_file == "-" else text or " ".join(map(str, ids))
    seed = sampling.seed if sampling.temperature > 0 else None
    outputs.OutputFiles(json_file).show(Generation(ids, text, opened.cfg.to_dict(), seed), line=line, is_piped=True)


@click.command("parity", cls=Command)
@click.argument("directory", metavar="DIR", help="A Hugging Face directory.")
@click.option("--num-sequences", type=options.Ranged(Count), default=4, help="Sequences of random tokens.")
@click.option("--seq-len", type=options.Ranged(SeqLen), default=64, metavar="T", help="Their length.")
@outputs.result_options
def parity(directory: str, num_sequences: int, seq_len: int, json_file: str | None) -> None:
    """Compare the logits of a Hugging Face directory with those of transformers (needs the extra [torch]).

    \b
    Example:
      bornbiased parity path/to/model --json -
    """
    comparison = compare_logits(directory, num_sequences=num_sequences, seq_len=seq_len)
    outputs.OutputFiles(json_file).show(Parity(comparison, open_checkpoint(directory).cfg.to_dict()))


@click.command("evaluate", cls=Command)
@click.argument("checkpoint", metavar="C", help=CHECKPOINT)
@click.option("--text", metavar="FILE", help="A text file.")
@click.option("--data", metavar="DATA", help="A file, a directory, builtin:prose, builtin:code or hf:NAME.")
@click.option(
    "--num-sequences", type=options.Ranged(Count), default=256, help="Largest number of sequences (Table 7: 256)."
)
@click.option(
    "--context",
    type=options.Ranged(SeqLen),
    help="Tokens in a sequence (Table 7: 2,048); by default the run's, else the model's.",
)
@click.option("--tokenizer", metavar="NAME|FILE", help="The checkpoint's own unless given.")
@click.option("--batch-size", type=options.Ranged(BatchSize), default=8, help="Sequences in a batch.")
@options.ignore_option
@options.stream_options
@options.quiet_option
@outputs.result_options
def evaluate(
    checkpoint: str, text: str | None, data: str | None, tokenizer: str | None, json_file: str | None, **choices: Any
) -> None:
    """Measure perplexity per token and bits per byte of a text at a fixed context.

    \b
    Example:
      bornbiased evaluate runs/a@seed=42 --data builtin:prose \\
        --num-sequences 256 --context 512
    """
    options.start(quiet=choices["quiet"])
    if (text is None) == (data is None):
        raise InputError("give either --text FILE or --data …")
    scratch = options.scratch_folder(choices["stream"], choices["scratch"])
    opened = open_checkpoint(checkpoint, scratch=scratch, ignore_fields=choices["ignore_fields"])
    scores = evaluate_checkpoint(
        opened,
        str(data if text is None else text),
        tokenizer=options.chosen_tokenizer(tokenizer, opened),
        **{name: choices[name] for name in ("num_sequences", "context", "batch_size", "quiet")},
    )
    opened.close()
    outputs.OutputFiles(json_file).show(Evaluation(scores, opened.cfg.to_dict()))


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
    reader = open_checkpoint(checkpoint)
    moments = {name: moments_of(reader.read(path, layer)) for name, path, layer in reader.tensors()}
    scheme = name_scheme(reader.cfg, moments)
    repeats = repeats_of(fingerprint(reader.by_role()), reader.cfg)
    outputs.OutputFiles(json_file).show(InitScheme(reader.description, reader.cfg.to_dict(), scheme, repeats))
