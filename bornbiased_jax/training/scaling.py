"""Coordinate check: how the standard deviation of activations and logits grows with width, before and while training.

muP's own test ("Tensor Programs V", appendix D.1): under a parametrization that transfers, no activation grows or
vanishes with width at any of the first steps. Models of several widths are trained alike, all seeds at once, at the
learning rates that the scheme asks for (:data:`bornbiased_jax.schemes.RATES_BY_WIDTH`).

What counts as flat, at every step:

- An activation is flat unless the 95% interval over seeds of its slope lies wholly beyond ±``FLAT``.
- Zero at every width is flat, as the logits of a zero head are before training.
- Logits that muP draws fall as 1/√width, and they stay part of the sum while training adds to them: ``logits`` may
  vanish that fast. ``logits_update``, what training has added to them, begins with sums over signs that are nearly
  random, which fall alike; at the last step it must be flat.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import init_seed
from bornbiased_jax.model.loss import unrolled_blocks
from bornbiased_jax.model.model import ForwardOptions, apply
from bornbiased_jax.parameters import Params, flatten, parameter_table, unflatten
from bornbiased_jax.schemes import has_rates_by_width
from bornbiased_jax.training.config import PretrainConfig
from bornbiased_jax.training.optimizer import make_optimizer, muon_dimensions
from bornbiased_jax.training.step import State, make_loss, make_train_step, over_seeds

SITES = ("attention_update", "mlp_update", "residual")
FLAT = 0.1
"""A slope within ±FLAT counts as none: doubling the width then moves an activation by less than 7%."""
RANDOM_SUM = -0.5
"""Slope of a mean over a width's inputs with random signs, as logits that muP draws are."""
COVERAGE = 0.95


@dataclasses.dataclass(frozen=True)
class ScalingRow:
    """One activation at one step: its slope against width, both in logarithms."""

    activation: str
    step: int
    slope: float
    low: float
    high: float
    std_by_width: tuple[float, ...]
    """Mean over seeds, and over blocks where there are several."""
    lowest: float = 0.0
    """Slope down to which it vanishes by design."""

    @property
    def is_flat(self) -> bool:
        """True if nothing shows that the activation grows with width, or vanishes other than by design."""
        return self.low <= FLAT and self.high >= self.lowest - FLAT

    def to_json(self) -> dict[str, object]:
        """Return the row of the JSON object."""
        return {
            "activation": self.activation,
            "step": self.step,
            "slope": self.slope,
            "interval": [self.low, self.high],
            "std_by_width": list(self.std_by_width),
            "flat": self.is_flat,
        }


@dataclasses.dataclass(frozen=True)
class Scaling:
    """The coordinate check of one scheme under one optimizer."""

    widths: tuple[int, ...]
    num_seeds: int
    optimizer: str
    rows: tuple[ScalingRow, ...]
    base_width: int | None = None
    """Width at which matrices have the stated learning rate, which falls with the width; None: one rate for all."""

    def to_json(self) -> dict[str, object]:
        """Return the JSON object of ``bornbiased probe scaling``."""
        return {
            "widths": list(self.widths),
            "num_seeds": self.num_seeds,
            "optimizer": self.optimizer,
            "base_width": self.base_width,
            "mup_holds": all(row.is_flat for row in self.rows),
            "rows": [row.to_json() for row in self.rows],
        }


def at_width(cfg: ModelConfig, width: int) -> ModelConfig:
    """Return a configuration at another width: heads as many, heads and MLPs as much wider, q·k scaled as 1/head_dim.

    Raises:
        InputError: heads or neurons of that width would not be whole.
    """
    widths = {"head_dim": cfg.key_dim, "d_ff": cfg.d_ff}
    if cfg.shared_expert_width is not None:
        widths["shared_expert_width"] = cfg.shared_expert_width
    unit = math.lcm(*(cfg.d_model // math.gcd(cfg.d_model, size) for size in widths.values()))
    if width % unit:
        proportions = " and ".join(f"{name}={size}" for name, size in widths.items())
        raise InputError(
            f"width {width} is no multiple that keeps the proportions of d_model={cfg.d_model}, {proportions} whole: "
            f"choose widths that are multiples of {unit}"
        )
    # A scale of the configuration's own is muP's, which falls as the width of a head.
    scale = None if cfg.attention_scale is None else cfg.attention_scale * cfg.d_model / width
    sizes = {name: size * width // cfg.d_model for name, size in widths.items()}
    return cfg.replace(d_model=width, **sizes, attention_scale=scale)


def rates_by_width(base: ModelConfig, cfg: ModelConfig, optimizer: str) -> Params:
    """Return what multiplies the learning rate of each parameter so that its updates move outputs alike at every width.

    An update of Adam has entries of one size, all in line with the input: the sum over a matrix's inputs grows as their
    number, so the rate falls as 1/fan_in ("Tensor Programs V", table 3). A matrix from Muon has singular values that
    grow as √fan_in at a fixed size of its entries: the rate falls as 1/√fan_in. Tables of vectors, norms and biases
    have no inputs that grow.

    Args:
        base: the model at the width where every factor is 1.
        cfg: the model at another width.
        optimizer: "adamw" or "muon".
    """
    power = {
        path: 0.5 if optimizer == "muon" and numbers is not None else 1.0
        for path, numbers in flatten(muon_dimensions(cfg)).items()
    }
    table = parameter_table(cfg)
    return unflatten(
        {
            path: (row.block_shape[-2] / table[path].block_shape[-2]) ** power[path] if row.is_matrix else 1.0
            for path, row in parameter_table(base).items()
        }
    )


def scaling(
    config: PretrainConfig, widths: Sequence[int], *, advance: Callable[[int], None] = lambda _: None
) -> Scaling:
    """Train models of several widths for a few steps on one batch of uniform tokens, and compare their activations.

    Args:
        config: of the training: the model at its base width, seeds, optimizer, learning rate, steps and batch.
        widths: at least two different ones.
        advance: called with 1 after each width.

    Raises:
        InputError: fewer than two widths or seeds, a width at which the model's proportions would not be whole, or
            whose activations grow beyond float32.
    """
    if len(set(widths)) < 2:
        raise InputError("a slope needs at least two widths, as in --widths 64,128,256")
    if len(config.seeds) < 2:
        raise InputError("an interval needs at least two seeds, as in --seeds 0:4")
    configs = [dataclasses.replace(config, model=at_width(config.model, width)) for width in widths]
    is_scaled = has_rates_by_width(config.model.init)
    by_width = []
    for wide in configs:
        by_width.append(_stds(wide, rates_by_width(config.model, wide.model, config.optimizer) if is_scaled else None))
        _check_finite(by_width[-1], wide.model.d_model)
        advance(1)
    rows = [
        _row(
            name,
            step,
            widths,
            np.stack([stds[name][step] for stds in by_width]),
            is_last=step == len(by_width[0][name]) - 1,
        )
        for name in by_width[0]
        for step in range(len(by_width[0][name]))
        # Before training nothing has been added.
        if (name, step) != ("logits_update", 0)
    ]
    base_width = config.model.d_model if is_scaled else None
    return Scaling(tuple(widths), len(config.seeds), config.optimizer, tuple(rows), base_width)


def _check_finite(stds: dict[str, np.ndarray], width: int) -> None:
    """Refuse what has no slope.

    Raises:
        InputError: an activation is not finite; the sentence names it and the first such step.
    """
    for name, std_NS in stds.items():
        is_finite_N = np.isfinite(std_NS).all(axis=1)
        if not is_finite_N.all():
            raise InputError(
                f"{name} of width {width} is not finite at step {int(np.argmin(is_finite_N))}: lower the learning rate"
            )


def _stds(config: PretrainConfig, rates: Params | None) -> dict[str, np.ndarray]:
    """Train one width, at one learning rate or with its factors; return each activation's std [steps + 1, S]."""
    cfg, steps = config.model, config.steps or 0
    optimizer = make_optimizer(config, steps)
    if rates is not None:
        factors = optax.stateless(lambda updates, _params: jax.tree.map(jnp.multiply, updates, rates))
        optimizer = optax.chain(optimizer, factors)
    rng = np.random.default_rng(config.data_seed)
    shape = (config.batch_size, config.context + 1)
    tokens_BT1 = jnp.asarray(rng.integers(0, cfg.vocab_size, shape), jnp.int32)
    seeds = jnp.asarray(config.seeds, jnp.uint32)

    @jax.jit
    def start(seeds: jax.Array) -> State:
        params = jax.vmap(lambda seed: init_seed(cfg, seed))(seeds)
        return State(params, jax.vmap(optimizer.init)(params), jnp.zeros(len(config.seeds), jnp.int32), seeds)

    measure = jax.jit(jax.vmap(lambda params, first: _activations(cfg, params, tokens_BT1[:, :-1], first)))
    step = jax.jit(over_seeds(make_train_step(make_loss(cfg), optimizer), "vmap"))
    state = start(seeds)
    initial = state.params
    measured = [measure(initial, initial)]
    for _ in range(steps):
        state, _metrics = step(state, tokens_BT1[None])
        measured.append(measure(state.params, initial))
    return {name: np.stack([np.asarray(row[name], np.float64) for row in measured]) for name in measured[0]}


def _activations(cfg: ModelConfig, params: Params, tokens_BT: jax.Array, initial: Params) -> dict[str, jax.Array]:
    """Compute the standard deviation of each activation, averaged over blocks, and of what was added to the logits."""
    present = [site for site in SITES if {"attention_update": cfg.attention, "mlp_update": cfg.mlp}.get(site, True)]

    def reduce(captured: dict[str, jax.Array]) -> dict[str, jax.Array]:
        return {name: jnp.std(value) for name, value in captured.items()}

    options = ForwardOptions(unroll=unrolled_blocks(cfg))
    out = apply(cfg, params, tokens_BT, capture=present, reduce=reduce, options=options)
    assert out.logits_BTV is not None
    means = {name: jnp.mean(values) for name, values in out.layers.items()}
    initial_BTV = apply(cfg, initial, tokens_BT, options=options).logits_BTV
    assert initial_BTV is not None
    logits = {"logits": jnp.std(out.logits_BTV), "logits_update": jnp.std(out.logits_BTV - initial_BTV)}
    return {"embedded": jnp.std(out.embedded_BTD), **means, **logits}


def _row(name: str, step: int, widths: Sequence[int], std_WS: np.ndarray, *, is_last: bool = True) -> ScalingRow:
    """Fit log std against log width for each seed; the interval is Student's over seeds."""
    x_W = np.log(np.asarray(widths, float))
    x_W = (x_W - x_W.mean()) / np.sum((x_W - x_W.mean()) ** 2)
    # Zero projections write nothing at step 0, at any width: that is flat.
    is_zero = bool(np.all(std_WS == 0))
    slopes_S = np.zeros(std_WS.shape[1]) if is_zero else x_W @ np.log(np.maximum(std_WS, np.finfo(np.float32).tiny))
    slope = float(slopes_S.mean())
    error = float(slopes_S.std(ddof=1)) / math.sqrt(slopes_S.size)
    half = float(scipy.stats.t.ppf((1 + COVERAGE) / 2, slopes_S.size - 1)) * error
    by_design = name == "logits" or (name == "logits_update" and not is_last)
    stds = tuple(std_WS.mean(axis=1).tolist())
    return ScalingRow(name, step, slope, slope - half, slope + half, stds, RANDOM_SUM if by_design else 0.0)
