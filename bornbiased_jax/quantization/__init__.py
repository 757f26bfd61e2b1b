"""Fake quantization: numbers rounded to few bits and computed with in float32, to see what outliers cost."""

from bornbiased_jax.quantization.fake import GRANULARITIES, FakeQuantizer, Granularity, quantize_kernel
from bornbiased_jax.quantization.model import quantized_edits, quantized_params
from bornbiased_jax.quantization.price import Price, prices
from bornbiased_jax.quantization.schemes import Scheme, parse_granularities, parse_kept, parse_scheme, parse_schemes

__all__ = [
    "GRANULARITIES",
    "FakeQuantizer",
    "Granularity",
    "Price",
    "Scheme",
    "parse_granularities",
    "parse_kept",
    "parse_scheme",
    "parse_schemes",
    "prices",
    "quantize_kernel",
    "quantized_edits",
    "quantized_params",
]
