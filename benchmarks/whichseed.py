"""``bornbiased whichseed``: a trained llama-tiny found among a million seeds, and how fast they are searched.

    python -m benchmarks whichseed --json benchmarks/results/whichseed.json

Two models are trained below a temporary folder: one of seed 31,337, and one of a seed that is not searched. The whole
command is then timed on each, in a process of its own. The rate of the search alone is measured in turn with the rate
at which this machine draws as many normal numbers in one array. Seconds are also those of the processor, which other
work on the machine changes less.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.child import run_child
from benchmarks.recorded import Findings, command, median_and_range, timed
from benchmarks.tables import facts
from bornbiased_jax import hardware, keys
from bornbiased_jax.config import preset
from bornbiased_jax.lineage import seed_search
from bornbiased_jax.lineage.whichseed import NUM_SEEDS as ALL_SEEDS
from bornbiased_jax.training import PretrainConfig, pretrain

MODEL, SEED, UNRELATED = "llama-tiny", 31_337, 3_000_000_000
NUM_SEEDS, STEPS = 1_000_000, 600
TURNS, CHUNKS = 5, 4


def search_rate() -> Findings:
    """Measure seeds a second of the compiled search, in turn with numbers a second of one large draw."""
    places = tuple(seed_search.search_places(preset(MODEL)))
    entries = sum(place.entries for place in places)
    correlate = seed_search.correlator(places)
    suspect_N = jnp.asarray(seed_search.unit(np.random.default_rng(0).standard_normal(entries)), jnp.float32)
    seeds_S = jnp.arange(seed_search.CHUNK, dtype=jnp.uint32)
    draw = jax.jit(lambda key: keys.normal(key, (seed_search.CHUNK, entries), 1.0))
    key = keys.init_key(0)

    def seconds(call: Callable[[], jax.Array]) -> tuple[float, float]:
        call().block_until_ready()
        _, wall_s, cpu_s = timed(lambda: [call().block_until_ready() for _ in range(CHUNKS)])
        return wall_s / CHUNKS, cpu_s / CHUNKS

    turns = [(seconds(lambda: correlate(seeds_S, suspect_N)), seconds(lambda: draw(key))) for _ in range(TURNS)]
    fractions = [draw[1] / searched[1] for searched, draw in turns]
    searched_s = [statistics.median(searched[kind] for searched, _ in turns) for kind in (0, 1)]
    return {
        "entries": entries,
        "matrices": len(places),
        "seeds_per_second": seed_search.CHUNK / searched_s[0],
        "seeds_per_cpu_second": seed_search.CHUNK / searched_s[1],
        "numbers_per_cpu_second": seed_search.CHUNK * entries / searched_s[1],
        **median_and_range("fraction_of_draw_rate_cpu", fractions),
        "hours_of_all_seeds": ALL_SEEDS / seed_search.CHUNK * searched_s[1] / hardware.cores() / 3600,
    }


def commands(folder: Path, num_seeds: int, steps: int) -> Findings:
    """Train both models and search for their initial weights by the command line."""
    settings: Findings = dict(batch_size=4, context=64, checkpoint_every=steps, tensorboard=False)
    settings |= dict(token_cache=str(folder / "cache"))
    config = PretrainConfig(
        preset(MODEL), "builtin:prose", str(folder / "run"), seeds=(SEED, UNRELATED), steps=steps, **settings
    )
    pretrain(config)
    searches = {}
    for name, seed in (("descendant", SEED), ("stranger", UNRELATED)):
        suspect = f"{folder / 'run'}@seed={seed},step={steps}"
        child = run_child(
            "bornbiased_jax", ["whichseed", suspect, "--model", MODEL, "--seeds", f"0:{num_seeds}", "--quiet"]
        )
        result = child.pop("result")
        columns = {key: result[key] for key in ("seed", "log10_p", "best", "runner_up", "num_entries")}
        confirmed = result["confirmed"]
        searches[name] = {
            "born_from": seed,
            **columns,
            "confirmed": None if confirmed is None else confirmed["verdict"],
            "process": child,
        }
    return searches


def measure(folder: Path, num_seeds: int = NUM_SEEDS, steps: int = STEPS) -> Findings:
    """Find a trained llama-tiny among a million initializations, and measure the rate of the search.

    Args:
        folder: For the models.
        num_seeds: Seeds that are searched.
        steps: Of training.
    """
    searches = commands(folder, num_seeds, steps)
    sizes = {"model": MODEL, "steps": steps, "num_seeds": num_seeds}
    return {**sizes, **searches, "search": search_rate()}


tables = functools.partial(
    facts,
    title="{num_seeds:integer} seeds of {model} searched, {steps} steps",
    rows={
        "descendant of seed {descendant[born_from]:integer}: found": (
            "{descendant[seed]:integer} (r = {descendant[best][correlation]:fixed:3}, "
            "log10 p = {descendant[log10_p]:fixed:0})"
        ),
        "descendant: processor time and time of the whole command": (
            "{descendant[process][cpu_s]:duration}, {descendant[process][wall_s]:duration}"
        ),
        "unrelated model of seed {stranger[born_from]:integer}: found": (
            "{stranger[seed]:integer} (r = {stranger[best][correlation]:fixed:3}, "
            "log10 p = {stranger[log10_p]:fixed:0})"
        ),
        "unrelated model: processor time and time of the whole command": (
            "{stranger[process][cpu_s]:duration}, {stranger[process][wall_s]:duration}"
        ),
        "seeds a second of one core": "{search[seeds_per_cpu_second]:integer}",
        "fraction of the rate of one large draw, in turn": (
            "{search[fraction_of_draw_rate_cpu_median]:percent:0} ({search[fraction_of_draw_rate_cpu_range]:percent:0})"
        ),
        "all 2³² seeds at that rate on all cores": "{search[hours_of_all_seeds]:fixed:1} h",
    },
    note="{search[entries]} numbers of {search[matrices]} matrices are drawn of each seed.",
)

main = functools.partial(command, measure)
