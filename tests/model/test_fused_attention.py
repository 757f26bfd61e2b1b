"""The fused kernel: who takes it, and what it means. What would run on a GPU is lowered here, without one."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from bornbiased_jax.config import preset
from bornbiased_jax.init import init_seed, parameter_shapes
from bornbiased_jax.model import ForwardOptions, apply, attention
from bornbiased_jax.model.interventions import self_only
from bornbiased_jax.model.loss import loss_sum

FUSED, LAYERS = 52, 3
CFG = preset(
    "llama-tiny",
    num_layers=LAYERS,
    d_model=64,
    d_ff=40,
    num_heads=4,
    num_kv_heads=2,
    vocab_size=96,
    max_seq_len=64,
)
KERNEL_CHECKS = {
    "check_cudnn_version": lambda: 91100,
    "check_compute_capability": lambda _: True,
    "is_cuda_compute_capability_equal": lambda _: False,
}


@pytest.fixture
def hopper(monkeypatch):
    """Tracing believes that there is a GPU of compute capability 9.0 with cuDNN."""
    # The functions with which JAX asks the machine have no public name.
    module = pytest.importorskip("jax._src.cudnn.fused_attention_stablehlo")
    for name, answer in KERNEL_CHECKS.items():
        monkeypatch.setattr(module, name, answer)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(attention, "_capability", lambda: (9, 0))
    jax.clear_caches()
    yield
    jax.clear_caches()


def lowered(function, *arguments) -> str:
    """The program that a CUDA device would be given."""
    unstable = [export.DisabledSafetyCheck.custom_call(f"__cudnn$fmhaSoftmax{end}") for end in ("", "Backward")]
    exported = export.export(jax.jit(function), platforms=["cuda"], disabled_checks=unstable)(*arguments)
    return str(exported.mlir_module())


def kernels(program: str) -> tuple[int, int]:
    """Count calls of the forward and the backward kernel, and check that both are causal."""
    forward, backward = (len(re.findall(rf"@__cudnn\$fmhaSoftmax{end}\(", program)) for end in ("", "Backward"))
    assert program.count("CAUSAL") == forward + backward
    return forward, backward


def gradient(cfg, dtype, remat=False):
    def loss(params, tokens):
        return loss_sum(cfg, params, tokens, dtype=dtype, remat=remat)[0]

    return jax.grad(loss)


def tokens(*batch):
    return jax.ShapeDtypeStruct((*batch, FUSED + 1), jnp.int32)


@pytest.mark.slow
def test_training_in_half_precision_never_holds_a_square(hopper):
    """One forward and one backward kernel in the loops over blocks: attention is kept, not computed again."""
    program = lowered(gradient(CFG, "bfloat16"), parameter_shapes(CFG), tokens(5))
    assert kernels(program) == (1, 1)
    assert not re.search(rf"{FUSED}x{FUSED}x", program)


@pytest.mark.slow
def test_float32_keeps_the_plain_formula(hopper):
    program = lowered(gradient(CFG, "float32"), parameter_shapes(CFG), tokens(5))
    assert kernels(program) == (0, 0)


@pytest.mark.slow
def test_seeds_at_once_share_a_call(hopper):
    params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((4, *leaf.shape), leaf.dtype), parameter_shapes(CFG))
    program = lowered(jax.vmap(gradient(CFG, "bfloat16"), in_axes=(0, None)), params, tokens(5))
    assert kernels(program) == (1, 1)


def test_window_reaches_the_kernel(hopper):
    windowed = preset("llama-tiny", **{**CFG.to_dict(), "window": 7})
    program = lowered(gradient(windowed, "bfloat16"), parameter_shapes(windowed), tokens(5))
    assert kernels(program) == (1, 1)
    assert len(re.findall(r"sliding_window_length\\22: 7\b", program)) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [{"sink_logit": "zero"}, {"attention_kernel": "sigmoid"}, {"head_dim": 12}, {"head_dim": 512}],
    ids=["sink logit", "sigmoid", "heads of width 12", "heads of width 512"],
)
def test_fused_attention_falls_back_to_plain(hopper, change):
    other = preset("llama-tiny", **{**CFG.to_dict(), **change})
    program = lowered(gradient(other, "bfloat16"), parameter_shapes(other), tokens(5))
    assert kernels(program) == (0, 0)


def test_masks_and_last_queries_stay_plain(hopper):
    def last(params, ids):
        return apply(
            CFG, params, ids[:, :FUSED], positions="last", options=ForwardOptions(dtype=jnp.bfloat16)
        ).final_BTD

    def alone(params, ids):
        edit = self_only(FUSED, [5], num_layers=LAYERS, blocks=[2])
        return apply(CFG, params, ids[:, :FUSED], options=ForwardOptions(edit=edit, dtype=jnp.bfloat16)).final_BTD

    # All blocks but the last need every query.
    assert kernels(lowered(last, parameter_shapes(CFG), tokens(5))) == (1, 0)
    assert kernels(lowered(alone, parameter_shapes(CFG), tokens(5))) == (0, 0)


@pytest.mark.parametrize(
    ("capability", "expected"), [("9.0", (9, 0)), ("12.1", (12, 1)), ("gfx90a", (0,)), (None, (0,))]
)
def test_capability_of_foreign_devices_is_none(monkeypatch, capability, expected):
    class Device:
        compute_capability = capability

    monkeypatch.setattr(jax, "local_devices", lambda: [Device()])
    assert attention._capability() == expected


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 7])
def test_the_kernel_means_what_the_plain_formula_computes(monkeypatch, window):
    """JAX's plain version of the same call, window and grouped heads included, in place of the kernel."""
    cfg = preset("llama-tiny", **{**CFG.to_dict(), "window": window})
    params = init_seed(cfg, 3)
    ids = jnp.asarray(np.random.default_rng(0).integers(0, cfg.vocab_size, (2, FUSED)), jnp.int32)
    plain = apply(cfg, params, ids).final_BTD
    original = jax.nn.dot_product_attention
    requests = []

    def stand_in(*arrays, implementation, **options):
        requests.append(implementation)
        return original(*arrays, **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", stand_in)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(attention, "_capability", lambda: (9, 0))
    monkeypatch.setattr(attention, "HALF", (jnp.float32,))
    states = apply(cfg, params, ids).final_BTD
    assert set(requests) == {"cudnn"}
    # float32 sums of 52 terms in another order, three blocks deep; states are of order one.
    np.testing.assert_allclose(states, plain, rtol=0, atol=1e-5)
