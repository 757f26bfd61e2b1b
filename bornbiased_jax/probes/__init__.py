"""Measurements on (configuration, weights): initial preference and contraction, variances, outliers, sinks.

:func:`probe` measures untrained models, many seeds at once, or one model with its weights; the other functions look at
one model. Nothing here opens a checkpoint, reads a text or draws a figure.
"""

from bornbiased_jax.probes.activation import Preactivation, preactivation
from bornbiased_jax.probes.contraction import ContractionRecord
from bornbiased_jax.probes.outliers import Outliers, dom_ratio, effective_rank, measure_outliers, super_neurons
from bornbiased_jax.probes.preference import PreferenceRecord
from bornbiased_jax.probes.run import ProbeOptions, ProbeRecord, probe
from bornbiased_jax.probes.sinks import measure_sinks
from bornbiased_jax.probes.subject import ProbedModel, from_weights, untrained
from bornbiased_jax.probes.variance import PositionMoments, discrepancy, position_moments

__all__ = [
    "ContractionRecord",
    "Outliers",
    "PositionMoments",
    "Preactivation",
    "PreferenceRecord",
    "ProbeOptions",
    "ProbeRecord",
    "ProbedModel",
    "discrepancy",
    "dom_ratio",
    "effective_rank",
    "from_weights",
    "measure_outliers",
    "measure_sinks",
    "position_moments",
    "preactivation",
    "probe",
    "super_neurons",
    "untrained",
]
