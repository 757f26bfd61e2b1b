from bornbiased_jax import checkpoints as checkpoints
from bornbiased_jax import config as config
from bornbiased_jax import derive as derive
from bornbiased_jax import evaluation as evaluation
from bornbiased_jax import lineage as lineage
from bornbiased_jax import model as model
from bornbiased_jax import prediction as prediction
from bornbiased_jax import probes as probes
from bornbiased_jax import quantization as quantization
from bornbiased_jax import report as report
from bornbiased_jax import results as results
from bornbiased_jax import stats as stats
from bornbiased_jax import text as text
from bornbiased_jax import theory as theory
from bornbiased_jax import training as training
from bornbiased_jax.checkpoints.checkpoint import open_checkpoint as open_checkpoint
from bornbiased_jax.config import ModelConfig as ModelConfig
from bornbiased_jax.config import preset as preset
from bornbiased_jax.init import init_seed as init_seed
from bornbiased_jax.lineage.fingerprint_pass import fingerprint as fingerprint
from bornbiased_jax.model.model import apply as apply
from bornbiased_jax.prediction import predict as predict
from bornbiased_jax.results.attention import sinks as sinks
from bornbiased_jax.results.probes import contraction as contraction
from bornbiased_jax.results.probes import preference as preference
from bornbiased_jax.results.scans import scan as scan
from bornbiased_jax.results.verdicts import lineage as compare
from bornbiased_jax.training.config import PretrainConfig as PretrainConfig
from bornbiased_jax.training.train import pretrain as pretrain

__version__: str
__all__ = [
    "ModelConfig",
    "PretrainConfig",
    "apply",
    "compare",
    "contraction",
    "fingerprint",
    "init_seed",
    "open_checkpoint",
    "predict",
    "preference",
    "preset",
    "pretrain",
    "scan",
    "sinks",
]
