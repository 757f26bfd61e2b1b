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
