import json
import math

import numpy as np
import pytest

from bornbiased_jax.lineage.permutation import permutation_test
from bornbiased_jax.lineage.verdict import SCOPE, Verdict, decide, undefined


def test_nan_is_undefined_and_never_unrelated():
    verdict = decide("paper", p_value=math.nan, log10_p=math.nan, z=1.0, num_inputs=5, alpha=0.01)
    assert verdict.verdict == "undefined" and verdict.p_value is None


def test_the_level_itself_does_not_reject():
    at = decide("x", p_value=0.01, log10_p=-2.0, z=2.3, num_inputs=5, alpha=0.01)
    below = decide("x", p_value=0.00999, log10_p=-2.0, z=2.3, num_inputs=5, alpha=0.01)
    assert (at.verdict, below.verdict) == ("unrelated", "same-lineage")


def test_json_has_the_fixed_keys_and_no_nan():
    verdict = undefined("iclr", "because", num_inputs=7, alpha=0.01, extra=math.inf, many=np.arange(3))
    report = json.loads(json.dumps(verdict.to_json(), allow_nan=False))
    fixed = {"verdict", "reason", "p_value", "log10_p", "z", "test", "num_inputs", "alpha"}
    assert fixed <= set(report)
    assert report["extra"] is None and report["many"] == [0, 1, 2] and report["num_inputs"] == 7


def test_text_says_what_is_covered_and_what_is_not():
    base = np.random.default_rng(0).standard_normal((50, 20))
    text = permutation_test(base, base[:, ::-1].copy()).text()
    for words in (
        "not intent",
        "transplanted",
        "distillation",
        "8-bit optimizers",
        "sinusoidal",
        "approximate",
    ):
        assert words in text
    assert SCOPE in text and "p = " in text


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (dict(verdict="same-lineage", log10_p=-2027.7, null="exact"), ["probability < 10⁻³⁰⁰."]),
        (
            dict(verdict="same-lineage", log10_p=-9.0, null="approximate"),
            ["1.0 × 10⁻⁹ at most by this test's approximation."],
        ),
        (dict(verdict="same-lineage", log10_p=None, null="population"), ["No p-value stands behind it"]),
        (dict(verdict="same-lineage", log10_p=-9.0, null="exact", identity="files"), ["no chance enters."]),
        (dict(verdict="unrelated", log10_p=-0.4, null="exact"), ["probability 0.4: nothing", "hidden behind: a roll."]),
        (
            dict(verdict="unrelated", log10_p=-3.7, null="exact"),
            ["probability 0.0002: that is weak evidence for a shared initialization, short of the level of 0.0001."],
        ),
        (dict(verdict="undefined", log10_p=None, null="exact"), ["So nothing is decided"]),
    ],
)
def test_verdict_sentences(verdict, said):
    detail = {"null": verdict["null"], "identity": verdict.get("identity"), "evaded_by": "a roll"}
    fields = (verdict["verdict"], "something was found", None, verdict["log10_p"], None, "auto", None, 1e-4)
    text = Verdict(*fields, detail).summary()
    assert text.startswith("Something was found. ") and text.endswith(".") and text.count(". ") <= 2
    for words in said:
        assert words in text
    # What may hide a shared initialization is told where none was found.
    assert ("a roll" in text) == (verdict["verdict"] == "unrelated")
    assert ("nothing speaks" in text) == (verdict["verdict"] == "unrelated" and verdict["log10_p"] > -2)
