"""Tests of lineage in the weights: streamed, without a forward pass, exact under the labels that each permutes.

=============================  =====================================  ============================================
test                           labels permuted                        what changes nothing
=============================  =====================================  ============================================
:func:`weights_test`           residual coordinates, or hidden units  signs of coordinates
… ``align="rotation"``         hidden units                           rotations of the residual stream, scales
… ``align="units"``            a birth's up rows against gate rows    the same, and the order of hidden units
:func:`bilinear_test`          an untied birth's vocabulary rows      rotations, hidden units, heads
:func:`rank_test`              births of other seeds                  what changes nothing for its score
=============================  =====================================  ============================================

A test is exact if one of two independent models is exchangeable under the labels permuted, and neither the
statistic's preparation nor the alignment looked at those labels.
"""

from bornbiased_jax.lineage.weights.bilinear import bilinear_test
from bornbiased_jax.lineage.weights.compare import weights_test
from bornbiased_jax.lineage.weights.rank import rank_test

__all__ = ["bilinear_test", "rank_test", "weights_test"]
