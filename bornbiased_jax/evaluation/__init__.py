"""Measure one checkpoint: perplexity, n-gram baselines, generation, the sink report, parity with transformers.

``parity.parity`` is not imported here: it needs transformers, and its name is its module's.
"""

from bornbiased_jax.evaluation.generation import Sampling, generate, generate_text
from bornbiased_jax.evaluation.ngrams import baselines, bigram_loss, unigram_entropy, unigram_loss
from bornbiased_jax.evaluation.perplexity import evaluate, evaluate_checkpoint
from bornbiased_jax.evaluation.sink_report import ReportOptions, SinkReport, cut_sequences, report_on_ids, sinks_report

__all__ = [
    "ReportOptions",
    "SinkReport",
    "baselines",
    "bigram_loss",
    "cut_sequences",
    "evaluate",
    "evaluate_checkpoint",
    "Sampling",
    "generate",
    "generate_text",
    "report_on_ids",
    "sinks_report",
    "unigram_entropy",
    "unigram_loss",
]
