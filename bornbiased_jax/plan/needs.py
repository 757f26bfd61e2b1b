"""What a command holds in memory and what it computes, in numbers that know no machine."""

from __future__ import annotations

from typing import Literal, NamedTuple

from bornbiased_jax.config import ModelConfig

RateName = Literal["forward passes", "training", "updates", "draws", "draws one by one", "products", "permutations"]
Dtype = Literal["float32", "bfloat16"]


class Part(NamedTuple):
    """Something held in memory.

    Attributes:
        name: what it is, for a reader.
        bytes: of it in all, or on each device where nothing divides it.
        divided: whether devices share it: weights and what mirrors them, along ``fsdp`` or by seed.
        on_host: whether it lies in main memory although the devices are others.
        turn: "before" the forward passes, freed when they begin, or of the "passes" themselves, by the arrays that are
            alive together; None for what is held all the time.
    """

    name: str
    bytes: float
    divided: bool = False
    on_host: bool = False
    turn: Literal["before", "passes"] | None = None


class Work(NamedTuple):
    """Something computed: so many units (operations, numbers drawn, parameters updated, entries permuted) at a rate."""

    name: str
    amount: float
    rate: RateName
    operations: float = 0.0
    """Of them, floating-point operations of matrix products."""


class Needs(NamedTuple):
    """What one command needs.

    Attributes:
        what: the work in a few words.
        cfg: the model at whose widths rates are measured.
        seq_len, batch: of what goes through it at once.
        dtype: of the products.
        memory, work: the parts.
        devices: as the command's mesh says; None where it has none.
        processes: that this machine is to run at once.
        streamed: whether blocks are read one at a time, as they are applied.
        host_only: whether no accelerator takes part.
        left_out: what the numbers do not count, in nouns.
        sequences: of a training step that go through the model at once on a CPU, and in how many parts.
    """

    what: str
    cfg: ModelConfig
    seq_len: int
    batch: int
    dtype: Dtype
    memory: tuple[Part, ...]
    work: tuple[Work, ...]
    devices: int | None = None
    processes: int = 1
    streamed: bool = False
    host_only: bool = False
    left_out: tuple[str, ...] = ()
    sequences: tuple[int, int] = (1, 1)
