"""Wrong use of public functions and results in Python: one sentence, no error from inside."""

import dataclasses
import typing

import jax.numpy as jnp
import numpy as np
import pytest

import bornbiased_jax as bf
from bornbiased_jax import results
from bornbiased_jax.errors import InputError
from bornbiased_jax.evaluation import ReportOptions
from bornbiased_jax.evaluation.intervention import InterventionOptions
from bornbiased_jax.lineage.lineage_tests import TESTS
from bornbiased_jax.lineage.trace import SingleTestOptions
from bornbiased_jax.results.attention import InterventionFields, SinkFields
from bornbiased_jax.training import from_schedule

CFG = bf.preset("gpt2-tiny", num_layers=1, d_model=16, num_heads=2, d_ff=32, vocab_size=32)
SMALL = "gpt2-tiny,num_layers=1,d_model=16,num_heads=2,d_ff=32,vocab_size=32"
RUN = dict(model=CFG, data="builtin:prose", out="runs/a")
CALLS = {
    "preset of no name": (lambda: bf.preset(3), "unknown model '3'"),
    "preset field": (lambda: bf.preset("gpt2-tiny", depth=3), "unknown model field 'depth'"),
    "name for cfg": (lambda: bf.contraction("gpt2-tiny"), "give one, as preset"),
    "one seed as a float": (lambda: bf.preference(CFG, seeds=3.0), "give a list, as in seeds=\\[3.0\\]"),
    "one seed of NumPy": (lambda: bf.contraction(CFG, seeds=np.int64(3)), "is one value: give a list"),
    "one seed of JAX": (lambda: bf.preference(CFG, seeds=jnp.asarray(3)), "is one value: give a list"),
    "seeds of JAX below 0": (lambda: bf.preference(CFG, seeds=jnp.asarray([3, -1])), "seed=-1 is not an integer"),
    "no seeds at all": (lambda: bf.preference(CFG, seeds=None), "seeds=None is one value"),
    "one seed": (lambda: bf.preference(CFG, seeds=3), "give a list, as in seeds=\\[3\\]"),
    "seed text": (lambda: bf.init_seed(CFG, "a"), "seed='a' is not an integer"),
    "cfg of init_seed": (lambda: bf.init_seed("gpt2-tiny", 0), "give one, as preset"),
    "cfg of predict": (lambda: bf.predict("gpt2-tiny", 8), "give one, as preset"),
    "length of predict": (lambda: bf.predict(CFG, "8"), "whole number of positions"),
    "list of ids": (lambda: bf.apply(CFG, {}, [[1, 2]]), "x is a list: give an array"),
    "row of ids": (lambda: bf.apply(CFG, {}, bf.init_seed(CFG, 0)["embed"]["embedding"][0]), "of shape \\(16,\\)"),
    "option of sinks": (lambda: bf.sinks(f"seed:1@{SMALL}", "builtin:prose", head=3), "head is no option here"),
    "one length": (
        lambda: bf.sinks(f"seed:1@{SMALL}", "builtin:prose", lengths=8),
        "as in lengths=\\[8\\]",
    ),
    "epsilon": (lambda: bf.sinks(f"seed:1@{SMALL}", "builtin:prose", epsilon="a"), "epsilon='a' is no number"),
    "test": (lambda: bf.compare(f"seed:1@{SMALL}", f"seed:2@{SMALL}", test="t"), "unknown test 't'"),
    "alpha": (lambda: bf.compare(f"seed:1@{SMALL}", f"seed:2@{SMALL}", alpha="a"), "alpha=a is not between 0 and 1"),
    "model to scan": (lambda: bf.scan(3, 4), "is no path"),
    "folder of a run": (lambda: results.training(3), "3 is no path"),
    "field of a run": (lambda: from_schedule("tiny", learning_rat=1.0, **RUN), "did you mean 'learning_rate'"),
    "no model": (lambda: from_schedule("tiny", data="builtin:prose"), "a run needs model and out"),
    "model of a run": (lambda: from_schedule("tiny", **{**RUN, "model": "gpt2-tiny"}), "give one, as preset"),
    "seed of a run": (lambda: from_schedule("tiny", seeds=3, **RUN), "give a list, as in seeds=\\(3,\\)"),
}


@pytest.mark.parametrize("name", CALLS)
def test_wrong_use_is_one_sentence(name):
    call, sentence = CALLS[name]
    with pytest.raises(InputError, match=sentence):
        call()


@pytest.mark.parametrize(("typed", "options"), [(SinkFields, ReportOptions), (InterventionFields, InterventionOptions)])
def test_typed_arguments_are_the_fields_of_the_options(typed, options):
    fields = {field.name: field for field in dataclasses.fields(options)}
    assert set(typed.__annotations__) == set(fields)
    hints, expected = typing.get_type_hints(typed), typing.get_type_hints(options)
    assert hints == {name: expected[name] for name in hints}


def test_typed_arguments_are_the_options_of_the_tests():
    assert set(SingleTestOptions.__annotations__) == {name for test in TESTS.values() for name in test.options}
