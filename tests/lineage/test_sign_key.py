"""A suspect that replaced what lies in the public directions of sketches: a key drawn afterwards finds it."""

import pytest

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.native_roles import NativeRoles
from bornbiased_jax.config import preset
from bornbiased_jax.experiments.survival.evasions import replace_public_directions
from bornbiased_jax.init import init_seed
from bornbiased_jax.lineage.battery import Options
from bornbiased_jax.lineage.fingerprint_pass import fingerprint
from bornbiased_jax.lineage.fingerprints import Settings
from bornbiased_jax.lineage.weights_verdict import auto_verdict


def verdict(cfg, base, suspect, dim, key):
    settings = Settings(dim=dim, token_labels="ids", sign_key=key)
    models = (NativeRoles(Checkpoint.from_params(cfg, params)) for params in (base, suspect))
    return auto_verdict(*(fingerprint(model, settings) for model in models), Options(num_permutations=999))


def z_by_evidence(result):
    return {row["name"]: row["z"] for row in result.detail["tests"]}


@pytest.mark.slow
def test_replaced_public_directions_are_missed_by_public_signs_and_found_under_another_key():
    cfg = preset("llama-tiny", d_ff=256, vocab_size=512)
    base, others = (init_seed(cfg, seed) for seed in (1, 2))
    suspect = replace_public_directions(cfg, base, others, 16)
    hidden, keyed = (verdict(cfg, base, suspect, 16, key) for key in (b"", b"drawn afterwards"))
    assert hidden.verdict == "unrelated" and max(z_by_evidence(hidden).values()) < 4
    assert keyed.verdict == "same-lineage" and keyed.log10_p < -1_000 and keyed.p_value == 1e-300
