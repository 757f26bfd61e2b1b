from bornbiased_jax.results.attention import Intervention as Intervention
from bornbiased_jax.results.attention import Sinks as Sinks
from bornbiased_jax.results.attention import intervention as intervention
from bornbiased_jax.results.attention import sinks as sinks
from bornbiased_jax.results.comparison import Comparison as Comparison
from bornbiased_jax.results.comparison import compare as compare
from bornbiased_jax.results.prediction import Prediction as Prediction
from bornbiased_jax.results.probes import Contraction as Contraction
from bornbiased_jax.results.probes import Preference as Preference
from bornbiased_jax.results.probes import contraction as contraction
from bornbiased_jax.results.probes import preference as preference
from bornbiased_jax.results.result import Listing as Listing
from bornbiased_jax.results.result import Result as Result
from bornbiased_jax.results.runs import Training as Training
from bornbiased_jax.results.runs import training as training
from bornbiased_jax.results.scans import Scan as Scan
from bornbiased_jax.results.scans import scan as scan
from bornbiased_jax.results.verdicts import Lineage as Lineage
from bornbiased_jax.results.verdicts import lineage as lineage

__all__ = [
    "Comparison",
    "Contraction",
    "Intervention",
    "Lineage",
    "Listing",
    "Prediction",
    "Preference",
    "Result",
    "Scan",
    "Sinks",
    "Training",
    "compare",
    "contraction",
    "intervention",
    "lineage",
    "preference",
    "scan",
    "sinks",
    "training",
]
