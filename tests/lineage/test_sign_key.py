"""A suspect that replaced what lies in the public directions of sketches: a key drawn afterwards finds it."""

import numpy as np
import pytest

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.native_roles import NativeRoles
from bornbiased_jax.config import preset
from bornbiased_jax.init import init_seed
from bornbiased_jax.lineage import sketches
from bornbiased_jax.lineage.battery import Options
from bornbiased_jax.lineage.fingerprint_pass import fingerprint
from bornbiased_jax.lineage.fingerprint_size import residual_axis
from bornbiased_jax.lineage.fingerprints import Settings
from bornbiased_jax.lineage.weights_verdict import auto_verdict
from bornbiased_jax.parameters import flatten, unflatten


def numpy_params(params):
    return {path: np.array(leaf) for path, leaf in flatten(params).items()}


def basis(signs_nK):
    return np.linalg.qr(signs_nK.astype(np.float64))[0]


def replace_public_directions(cfg, params, others, dim):
    """Give every matrix the numbers of another model in the directions of public signs, along both of its axes."""
    changed = {path: leaf.copy() for path, leaf in params.items()}
    residual_DK = basis(sketches.axis_signs("residual", cfg.d_model, dim))
    for role in NativeRoles(Checkpoint.from_params(cfg, unflatten(params))).roles:
        axis = residual_axis(role)
        if axis is None:
            continue
        path = role.name if role.block is None else role.name.rpartition("/")[0]
        place = ... if role.block is None else role.block - 1
        matrix, other = changed[path][place], others[path][place]
        size = matrix.shape[1 - axis]
        is_table = ("vocab",) in role.axes
        name = role.matrix_name
        signs_nK = sketches.token_signs(None, size, dim) if is_table else sketches.axis_signs(name, size, dim)
        other_nK = basis(signs_nK)
        rest_Dn = (matrix - other) if axis == 0 else (matrix - other).T
        rest_Dn = rest_Dn - residual_DK @ (residual_DK.T @ rest_Dn)
        rest_Dn = rest_Dn - (rest_Dn @ other_nK) @ other_nK.T
        matrix[...] = other + (rest_Dn if axis == 0 else rest_Dn.T)
    return changed


def verdict(cfg, base, suspect, dim, key):
    settings = Settings(dim=dim, token_labels="ids", sign_key=key)
    models = (NativeRoles(Checkpoint.from_params(cfg, unflatten(params))) for params in (base, suspect))
    return auto_verdict(*(fingerprint(model, settings) for model in models), Options(num_permutations=999))


def z_by_evidence(result):
    return {row["name"]: row["z"] for row in result.detail["tests"]}


@pytest.mark.slow
def test_replaced_public_directions_are_missed_by_public_signs_and_found_under_another_key():
    cfg = preset("llama-tiny", d_ff=256, vocab_size=512)
    base, others = (numpy_params(init_seed(cfg, seed)) for seed in (1, 2))
    suspect = replace_public_directions(cfg, base, others, 16)
    hidden, keyed = (verdict(cfg, base, suspect, 16, key) for key in (b"", b"drawn afterwards"))
    assert hidden.verdict == "unrelated" and max(z_by_evidence(hidden).values()) < 4
    assert keyed.verdict == "same-lineage" and keyed.log10_p < -1_000 and keyed.p_value == 1e-300
