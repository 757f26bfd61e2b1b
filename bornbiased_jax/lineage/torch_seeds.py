"""Which seed of torch a model of transformers began with: whole models are drawn by torch itself and compared.

torch draws one number after the other from one generator, so that a matrix depends on all that was drawn before it.
Each seed is therefore drawn as users do, ``torch.manual_seed(seed)`` and ``AutoModelForCausalLM.from_config(config)``,
on the CPU in float32. Of the matrices that are drawn with one standard deviation the first numbers are compared with
the suspect's. They are independent normals of equal variance, so that the t test of :mod:`.whichseed` is exact. A model
that was initialized on an accelerator, in another precision or by another version of the two may have other numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from bornbiased_jax import hardware
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.export import config_json, family_of
from bornbiased_jax.checkpoints.layout import FileEntry, file_shapes, unpack
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import parameter_shapes
from bornbiased_jax.lineage.seed_search import MatrixEntries, read_entries, unit
from bornbiased_jax.lineage.whichseed import Candidate, Found, candidate_of, check_search
from bornbiased_jax.parameters import count_parameters

POPULAR_SEEDS = (
    *(0, 42, 1234, 1, 1337, 123, 2, 3, 7, 10, 100, 12345, 3407, 2023, 2024, 2025, 2022, 2021, 2020, 2026),
    *(4, 5, 6, 8, 9, 11, 13, 21, 69, 99, 111, 128, 256, 314, 420, 512, 666, 777, 888, 999, 1000, 1024, 2000, 4096),
    *(8888, 10000, 31337, 54321, 65535, 123456, 314159, 1234567, 12345678, 123456789, 20230101, 20240101, 4294967295),
)
"""Seeds that people choose, the most frequent first."""
FAMILIES = ("gpt2", "llama", "qwen2", "gpt_neox")
ENTRIES = 4096
"""Numbers compared of each matrix."""
MATRICES = 16
"""Matrices compared, from the first block on."""


def which_torch_seed(
    cfg: ModelConfig,
    suspect: Checkpoint,
    seeds: range,
    *,
    alpha: float = 1e-4,
    advance: Callable[[int], None] | None = None,
) -> Found:
    """Search torch's seeds for the initial weights of a model: popular ones first, then a range, until a hit.

    Args:
        cfg: the architecture that is drawn.
        suspect: the model.
        seeds: a range of step 1 within 0 to 2³²; popular seeds are searched besides.
        alpha: level of the decision.
        advance: called with 1 after each seed.

    Raises:
        InputError: torch or transformers is missing, a family that is not drawn here, or as of ``which_seed``.
    """
    check_search(cfg, suspect.cfg, seeds, alpha)
    family = family_of(cfg)
    if family.name not in FAMILIES:
        raise InputError(
            f"seeds of torch are searched for {', '.join(FAMILIES)}, not for {family.name}: compare its weights "
            "with those of a known step 0"
        )
    hardware.check_memory(
        12.0 * count_parameters(parameter_shapes(cfg)), "a model drawn by torch", "name a smaller one"
    )
    draw = TorchDraw(cfg)
    unit_N = unit(read_entries(suspect, draw.places))
    # One whole model a seed; a hit ends the search.
    candidates: list[Candidate] = []
    for seed in _in_order(seeds):
        candidates.append(candidate_of(seed, unit(draw(seed)), unit_N))
        if advance is not None:
            advance(1)
        if candidates[-1].log10_p < math.log10(alpha):
            break
    # The best seed, and whether it is one.
    first, *rest = sorted(candidates, key=lambda row: (-row.t, row.seed))
    is_hit = first.log10_p < math.log10(alpha)
    drawn_by = f"torch {draw.versions['torch']} and transformers {draw.versions['transformers']}"
    reason = (
        f"the numbers that {drawn_by} draw from seed {first.seed} correlate with the suspect's at "
        f"r = {first.correlation:.3f} (log10 p = {first.log10_p:.1f} after correction for 2^32 seeds)"
        if is_hit
        else f"none of {len(candidates):,} seeds drawn by {drawn_by} on the CPU was found in the suspect's coordinates "
        f"(best: seed {first.seed}, r = {first.correlation:.3f}); other versions, devices and precisions draw others"
    )
    return Found(
        seed=first.seed if is_hit else None,
        reason=reason,
        best=first,
        runner_up=rest[0] if rest else None,
        num_seeds=len(candidates),
        num_entries=(len(unit_N), len(unit_N)),
        alpha=alpha,
        framework=draw.versions,
    )


def num_searched(seeds: range) -> int:
    """Count the seeds of a search that ends without a hit."""
    return len(POPULAR_SEEDS) + len(seeds) - sum(seed in seeds for seed in POPULAR_SEEDS)


def _in_order(seeds: range) -> Iterator[int]:
    yield from POPULAR_SEEDS
    popular = frozenset(POPULAR_SEEDS)
    yield from (seed for seed in seeds if seed not in popular)


def _entries(cfg: ModelConfig) -> list[FileEntry]:
    """List the first tensors whose numbers are drawn with one standard deviation, as files name them."""
    family = family_of(cfg)
    shapes = file_shapes(cfg, family.biases(cfg))
    # GPT-2's matrices that write to the residual stream have a smaller one.
    entries = [
        entry
        for entry in family.entries(shapes)
        if entry.layer is not None and entry.paths[0].endswith("kernel") and ".c_proj." not in entry.name
    ]
    return sorted(entries, key=lambda entry: entry.layer or 0)[:MATRICES]


class TorchDraw:
    """Initial weights by torch: the numbers at :attr:`places` of any seed, drawn with the rest of the model.

    Args:
        cfg: the architecture, of one of :data:`FAMILIES`.

    Raises:
        InputError: torch or transformers is missing.
    """

    def __init__(self, cfg: ModelConfig) -> None:
        try:
            import torch
            import transformers
        except ImportError as error:
            raise InputError(f"seeds of torch need {error.name}: pip install 'bornbiased-jax[torch]'") from error
        self._torch, self._models = torch, transformers.AutoModelForCausalLM
        self.versions = {"torch": torch.__version__, "transformers": transformers.__version__, "device": "cpu"}
        # The configuration as transformers has it.
        family = family_of(cfg)
        config = config_json(cfg, family, dtype="float32", tokenizer=None)
        fields = {key: value for key, value in config.items() if key not in ("model_type", "torch_dtype")}
        self._config = transformers.AutoConfig.for_model(family.name, dtype="float32", **fields)
        self._cfg, self._entries = cfg, _entries(cfg)
        shapes = file_shapes(cfg, family.biases(cfg))
        # Where the drawn numbers lie in this package's parameters.
        self.places = [
            MatrixEntries(path, entry.layer, min(ENTRIES, math.prod(shapes[path][1:])))
            for entry in self._entries
            for path in entry.paths
        ]

    def __call__(self, seed: int) -> np.ndarray:
        """Return the numbers of one seed [n] float64; torch's own generator stays as it is."""
        torch = self._torch
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            # Draw the whole model, as users do.
            torch.manual_seed(seed)
            state = self._models.from_config(self._config).state_dict()
        parts = [
            part
            for entry in self._entries
            for part in unpack(entry, self._cfg, state[entry.name].to(torch.float32).numpy())
        ]
        return np.concatenate(
            [part.ravel()[: place.entries] for part, place in zip(parts, self.places, strict=True)], dtype=np.float64
        )
