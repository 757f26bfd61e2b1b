"""Fake quantisation: numbers rounded to few bits and computed with in float32, to see what outliers cost."""

from bornbiased_jax.quantization.fake import GRANULARITIES, FakeQuantiser, Granularity, quantise_kernel
from bornbiased_jax.quantization.model import quantised_edits, quantised_params
from bornbiased_jax.quantization.price import Price, prices
from bornbiased_jax.quantization.schemes import Scheme, parse_granularities, parse_kept, parse_scheme, parse_schemes

__all__ = [
    "GRANULARITIES",
    "FakeQuantiser",
    "Granularity",
    "Price",
    "Scheme",
    "parse_granularities",
    "parse_kept",
    "parse_scheme",
    "parse_schemes",
    "prices",
    "quantise_kernel",
    "quantised_edits",
    "quantised_params",
]
