"""Committed records, and what several pages quote of them."""

import math
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from scipy import stats

from bornbiased_jax.experiments import results
from bornbiased_jax.experiments.survival import finding7
from bornbiased_jax.report.numbers import SUPERSCRIPT, fixed

ROOT = Path(__file__).resolve().parents[3]
COUNTS = {3: "three", 4: "four", 5: "five", 7: "seven", 13: "thirteen"}


def assert_quoted(page: str, phrases: list[str]) -> None:
    """Hold a page to phrases with numbers of records: each occurs once, no number within a longer one."""
    text = " ".join(re.sub(r"<!--.*?-->", "", (ROOT / page).read_text()).split())
    counts = {phrase: len(_pattern(phrase).findall(text)) for phrase in phrases}
    assert phrases and set(counts.values()) == {1}, (
        f"{page} does not say once, as its records do: {[phrase for phrase, count in counts.items() if count != 1]}"
    )


def _pattern(phrase: str) -> re.Pattern[str]:
    before = r"(?<![\d.,−-])" if phrase[0].isdigit() else ""
    after = r"(?![.,]?\d)" if phrase[-1].isdigit() else ""
    return re.compile(before + re.escape(phrase) + after)


def result_of(name: str, scale: str = "laptop"):
    """Read the result of a committed record."""
    return results.committed(name, scale)["result"]


def perplexities(name: str, text: str) -> list[float]:
    """Average the perplexities of Table 7 over seeds: with amplification, with attenuation, of the baseline."""
    runs = result_of(name)["cures"]
    order = ("positional amplification", "positional attenuation", "baseline")
    return [float(np.mean([seed["perplexity"][text] for seed in runs[mitigation]["by_seed"]])) for mitigation in order]


def power_of_ten(log10: float) -> str:
    """Write the least power of ten with a whole exponent that a number given by its log₁₀ does not exceed."""
    return f"10{str(math.ceil(log10)).translate(SUPERSCRIPT)}"


def span(values: Iterable[float], digits: int) -> str:
    """Write the least and the largest of several numbers."""
    values = list(values)
    return f"{fixed(digits)(min(values))} to {fixed(digits)(max(values))}"


def is_own(pair) -> bool:
    """Compare the seeds of a pair."""
    return pair["base"]["seed"] == pair["suspect"]["seed"]


def seeds_and_tokens(name: str) -> dict[int, int]:
    """Map each seed of a record with fixed embeddings to its top-1 token."""
    (group,) = result_of(name, "paper")["groups"]
    assert group["group"]["fix_embeddings"]
    return {record["seed"]: record["preference"]["top1_id"] for record in group["records"]}


def p_of_preference(ids: str) -> list[float]:
    """Read, of the two runs on bytes, the p that preferred tokens rank as high as other seeds' after the last step."""
    runs = result_of("finding7")["runs"]
    return [10 ** finding7._entries(runs[name], ids)[-1]["rank"]["log10_p"] for name in ("bytes", "GPT-2, bytes")]


def with_pair_left_out() -> float:
    """Compute the smallest corrected p of the checks with the one pair that has p below 0.01 and was left undefined."""
    result = result_of("weights_calibration")
    (untied,) = (case for case in result["cases"] if case["test"] == "rotation, form A")
    count = untied["rates"][0]["count"] + untied["num_undefined"]
    p_two_sided = stats.binomtest(count, untied["num_pairs"], untied["rates"][0]["level"]).pvalue
    return float(p_two_sided) * result["family"]["num_checks"]
