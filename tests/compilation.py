"""How long XLA thinks about a program: briefly for what tests run once, as for users where running takes longer.

Small programs compile for longer than they run, so LLVM takes its shortest way and XLA its older, lighter emitter: a
third of the time, for the same operations rounded otherwise.
"""

import jax

# What jaxlib 0.11 does not know any more, and XLA ends the process on a flag that it does not know.
_HAS_OLDER_EMITTER = jax.__version_info__ < (0, 11)
# For the environment's XLA_FLAGS: every program of a process that names no options of its own.
QUICK = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_parallel_codegen_split_count=1"
) + " --xla_cpu_use_fusion_emitters=false" * _HAS_OLDER_EMITTER
# For ``jax.jit(…, compiler_options=…)``: a program over hundreds of seeds, which runs for longer than it compiles.
THOROUGH = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False} | (
    {"xla_cpu_use_fusion_emitters": True} if _HAS_OLDER_EMITTER else {}
)
