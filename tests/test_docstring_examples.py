"""Examples in docstrings run, and the functions that are used most have one."""

import ast
import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("bornbiased_jax", "experiments")

# The functions (and classes) that a reader meets first, room by room. Each has an example.
MOST_USED = """
bornbiased_jax.config.preset
bornbiased_jax.config.ModelConfig.replace
bornbiased_jax.init.init
bornbiased_jax.init.init_seed
bornbiased_jax.model.model.apply
bornbiased_jax.checkpoints.checkpoint.open_checkpoint
bornbiased_jax.checkpoints.reference.parse_ref
bornbiased_jax.checkpoints.digests.digest
bornbiased_jax.checkpoints.export.export_hugging_face
bornbiased_jax.probes.inputs.kinds.random_tokens
bornbiased_jax.probes.inputs.kinds.gaussian
bornbiased_jax.probes.inputs.kinds.from_tokens
bornbiased_jax.probes.inputs.kinds.random_inputs
bornbiased_jax.probes.inputs.spec.parse_inputs
bornbiased_jax.progress.bar
bornbiased_jax.progress.duration
bornbiased_jax.probes.subject.untrained
bornbiased_jax.probes.run.probe
bornbiased_jax.probes.preference.summarize
bornbiased_jax.probes.contraction.summarize
bornbiased_jax.probes.activation.preactivation
bornbiased_jax.probes.outliers.dom_ratio
bornbiased_jax.probes.outliers.effective_rank
bornbiased_jax.probes.outliers.measure_outliers
bornbiased_jax.probes.sinks.measure_sinks
bornbiased_jax.probes.variance.position_moments
bornbiased_jax.probes.variance.discrepancy
bornbiased_jax.evaluation.ngrams.unigram_entropy
bornbiased_jax.evaluation.ngrams.bigram_loss
bornbiased_jax.evaluation.perplexity.evaluate
bornbiased_jax.evaluation.perplexity.cut
bornbiased_jax.evaluation.generation.generate
bornbiased_jax.evaluation.sink_report.cut_sequences
bornbiased_jax.evaluation.sink_report.report_on_ids
bornbiased_jax.evaluation.sink_report.strongest_head
bornbiased_jax.report.numbers.fixed
bornbiased_jax.report.numbers.percent
bornbiased_jax.report.numbers.times
bornbiased_jax.report.numbers.significant
bornbiased_jax.report.tables.Table
bornbiased_jax.report.tables.write
bornbiased_jax.report.page.render
bornbiased_jax.cli.options.parse_seeds
bornbiased_jax.lineage.compare.compare
bornbiased_jax.lineage.compare.match_coordinates
bornbiased_jax.lineage.permutation.permutation_test
bornbiased_jax.lineage.trace.trace
bornbiased_jax.lineage.verdict.Verdict
bornbiased_jax.lineage.same_model.differing_settings
bornbiased_jax.stats.bound.tail_bound
bornbiased_jax.stats.certified.certified_p
bornbiased_jax.stats.intervals.binomial_interval
bornbiased_jax.stats.intervals.disjoint_pairs
bornbiased_jax.stats.intervals.model_interval
bornbiased_jax.stats.intervals.ratio_interval
bornbiased_jax.stats.kendall.tau_b
bornbiased_jax.stats.multiple.holm
bornbiased_jax.stats.multiple.holm_log10
bornbiased_jax.stats.permutations.moments
bornbiased_jax.stats.ranks.rank_correlation
""".split()


def with_examples() -> list[str]:
    """Every function, method or class below the rooms whose docstring has an example, found without importing."""
    names = []
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            text = path.read_text()
            if ">>>" not in text:
                continue
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            if room != "bornbiased_jax":
                module = f"bornbiased_jax.{module}"
            for node in ast.parse(text).body:
                members = node.body if isinstance(node, ast.ClassDef) else []
                for entry, name in [(node, ""), *((member, f"{getattr(node, 'name', '')}.") for member in members)]:
                    if isinstance(entry, ast.FunctionDef | ast.ClassDef) and ">>>" in (ast.get_docstring(entry) or ""):
                        names.append(f"{module}:{name}{entry.name}")
    return names


EXAMPLES = with_examples()


def test_most_used_functions_have_examples():
    missing = set(MOST_USED) - {name.replace(":", ".") for name in EXAMPLES}
    assert not missing, f"no example in the docstring of {', '.join(sorted(missing))}"


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_runs(name):
    module_name, _, path = name.partition(":")
    module = importlib.import_module(module_name)
    thing = module
    for part in path.split("."):
        thing = getattr(thing, part)
    finder = doctest.DocTestFinder(recurse=False)
    (example,) = finder.find(thing, path, module=module, globs=dict(vars(module)))
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    said: list[str] = []
    runner.run(example, out=said.append)
    assert runner.failures == 0 and runner.tries > 0, "".join(said)
