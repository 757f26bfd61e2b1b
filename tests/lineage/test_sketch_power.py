"""z of sketches on trained models: what a prototype gave once, by its recipe and at its numbers a vector.

Models of 4 blocks, 128 wide, 352 neurons, 4,096 tokens, 200 steps on prose; suspects are a fine-tune of 80 steps on
code, changed and then rotated. z must be within a tenth of the prototype's, or above.
"""

from __future__ import annotations

import pytest

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.native_roles import NativeRoles
from bornbiased_jax.config import preset
from bornbiased_jax.derive.changes import ChangeContext, parse_change
from bornbiased_jax.derive.derive import derive
from bornbiased_jax.derive.tune import adapt
from bornbiased_jax.lineage.battery import Options
from bornbiased_jax.lineage.evidence import COORDINATES, TOKEN_NEURONS
from bornbiased_jax.lineage.fingerprint_pass import fingerprint
from bornbiased_jax.lineage.fingerprints import Settings
from bornbiased_jax.lineage.weights_verdict import single_verdict
from bornbiased_jax.training import PretrainConfig, pretrain

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

MOMENTS = Options(num_permutations=9, matches_neurons=False)
# Least z of related pairs by numbers a vector: of neurons in token space, and of coordinates.
RELATED = {8: (153, 29), 16: (214, 38), 64: (301, 65)}
# z in token space at 16 numbers, by what was done to the fine-tune before it was rotated.
CHANGED = {
    "noise:0.1": 213,
    "rescale:3 insert-layer:1": 216,
    "prune:0.5": 201,
    "round:4": 213,
    "noise:1": 105,
    "merge:{other}:0.5": 54,
    "slerp:{other}:0.3": 175,
    "drop-layers:2": 164,
    "repeat-layers:2-3": 216,
    "resize-vocab:3000": 183,
    "unused-rows:1000": 216,
    "renumber:3 heads:9": 216,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, str]:
    """Two models trained apart, and a fine-tune of the first."""
    folder = tmp_path_factory.mktemp("runs")
    sizes = dict(context=64, batch_size=8, quiet=True)
    base = PretrainConfig(preset("llama-tiny"), "builtin:prose", str(folder / "base"), seeds=(1, 2), steps=200, **sizes)
    pretrain(base)
    first, other = (f"{folder / 'base'}@seed={seed}" for seed in (1, 2))
    tuned = dict(data="builtin:code", out=str(folder / "tuned"), steps=80, learning_rate=3e-4)
    adapt(first, None, seeds=(1,), **tuned, **sizes)
    return {"base": first, "other": other, "tuned": f"{folder / 'tuned'}@seed=1"}


@pytest.mark.parametrize("dim", RELATED)
def test_related_models_have_at_least_the_z_of_the_prototype(runs, dim):
    prints = {name: fingerprint(run, Settings(dim=dim, token_labels="ids")) for name, run in runs.items()}
    for evidence, least in zip((TOKEN_NEURONS, COORDINATES), RELATED[dim], strict=True):
        assert single_verdict(prints["base"], prints["tuned"], evidence, MOMENTS).z >= 0.9 * least
        assert abs(single_verdict(prints["other"], prints["tuned"], evidence, MOMENTS).z) < 4


@pytest.mark.parametrize("change", CHANGED)
def test_changed_and_rotated_models_have_at_least_the_z_of_the_prototype(runs, change):
    changes = [parse_change(text.format(other=runs["other"])) for text in (*change.split(), "rotate:7")]
    derived = derive(runs["tuned"], changes, ChangeContext(0, None))
    suspect = NativeRoles(Checkpoint.from_params(derived.cfg, derived.params))
    base, suspect = (fingerprint(source, Settings(token_labels="ids")) for source in (runs["base"], suspect))
    assert single_verdict(base, suspect, TOKEN_NEURONS, MOMENTS).z >= 0.9 * CHANGED[change]
