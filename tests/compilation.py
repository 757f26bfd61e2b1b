"""How long XLA thinks about a program: briefly for what tests run once, as for users where running takes longer.

Small programs compile for longer than they run, so LLVM takes its shortest way and XLA its older, lighter emitter: a
third of the time, for the same operations rounded otherwise.
"""

# For the environment's XLA_FLAGS: every program of a process that names no options of its own.
QUICK = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)
# For ``jax.jit(…, compiler_options=…)``: a program over hundreds of seeds, which runs for longer than it compiles.
THOROUGH = {
    "xla_backend_optimization_level": 3,
    "xla_llvm_disable_expensive_passes": False,
    "xla_cpu_use_fusion_emitters": True,
}
