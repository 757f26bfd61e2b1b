import json
import math

import numpy as np

from bornbiased_jax.seedprint.permutation import permutation_test
from bornbiased_jax.seedprint.verdict import SCOPE, decide, undefined


def test_nan_is_undefined_and_never_unrelated():
    verdict = decide("paper", p_value=math.nan, log10_p=math.nan, z=1.0, num_inputs=5, alpha=0.01)
    assert verdict.verdict == "undefined" and verdict.p_value is None


def test_the_level_itself_does_not_reject():
    at = decide("x", p_value=0.01, log10_p=-2.0, z=2.3, num_inputs=5, alpha=0.01)
    below = decide("x", p_value=0.00999, log10_p=-2.0, z=2.3, num_inputs=5, alpha=0.01)
    assert (at.verdict, below.verdict) == ("unrelated", "same-lineage")


def test_json_has_the_fixed_keys_and_no_nan():
    verdict = undefined("iclr", "because", num_inputs=7, alpha=0.01, extra=math.inf, many=np.arange(3))
    found = json.loads(json.dumps(verdict.to_json(), allow_nan=False))
    fixed = {"verdict", "reason", "p_value", "log10_p", "z", "test", "num_inputs", "alpha"}
    assert fixed <= set(found)
    assert found["extra"] is None and found["many"] == [0, 1, 2] and found["num_inputs"] == 7


def test_text_says_what_is_covered_and_what_is_not():
    base = np.random.default_rng(0).standard_normal((50, 20))
    text = permutation_test(base, base[:, ::-1].copy()).text()
    for words in (
        "not intent",
        "transplanted",
        "distillation",
        "8-bit optimisers",
        "sinusoidal",
        "approximate",
    ):
        assert words in text
    assert SCOPE in text and "p = " in text
