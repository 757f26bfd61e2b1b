"""What each option of each command is tried with: what is typed, where it must arrive, and as what."""

import re
from pathlib import Path
from typing import Any

from bornbiased_jax.config import preset
from bornbiased_jax.derive.changes import parse_change

SIZES = "--num-inputs 4 --seq-len 8"
PAIR = "seedprint seed:1@gpt2-tiny seed:2@gpt2-tiny"
# The shortest call of each command; a row adds its option at the end.
CALLS = {
    "models": "models",
    "probe preference": f"probe preference --model gpt2-tiny {SIZES}",
    "probe contraction": f"probe contraction --model gpt2-tiny {SIZES}",
    "probe scaling": "probe scaling --model gpt2-tiny",
    "predict": "predict --model gpt2-tiny --seq-len 8",
    "generate": "generate model.gguf --prompt Once",
    "parity": "parity folder",
    "evaluate": "evaluate model.gguf --data builtin:prose",
    "sinks": "sinks model.gguf --text wiki.txt",
    "intervene": "intervene model.gguf --text wiki.txt",
    "fingerprint": f"fingerprint model.gguf --outputs --out a.fingerprint {SIZES}",
    "seedprint": f"{PAIR} --test permutation {SIZES}",
    "scan": "scan model.gguf seed:1@gpt2-tiny",
    "whichseed": "whichseed model.gguf --model gpt2-tiny --seeds 0:10",
    "digest": "digest model.gguf",
    "init-scheme": "init-scheme model.gguf",
    "pretrain": "pretrain --model gpt2-tiny --data builtin:prose --steps 3 --out runs/a",
    "runs": "runs folder",
    "plot": "plot runs/a",
    "export": "export runs/a@seed=42 exported",
    "adapt": "adapt model.gguf --method lora --data builtin:prose --steps 3 --out runs/a",
    "derive": "derive model.gguf --change noise:0.1 --out derived",
    "audit": "audit folder",
    "reproduce": "reproduce demo",
    "doctor": "doctor",
    "status": "status folder",
}
INPUTS = "bornbiased_jax.probes.inputs:parse_inputs"
RANDOM = "bornbiased_jax.probes.inputs:random_inputs"
SWEEP = "bornbiased_jax.probes.run:probe"
NAMED = "bornbiased_jax.executors:engine_named"
OPEN = "bornbiased_jax.checkpoints:open_checkpoint"
QUIET = "bornbiased_jax.progress:set_quiet"
PREDICT = "bornbiased_jax.prediction:predict"
SCALING = "bornbiased_jax.training.scaling:scaling"
TEXT = "bornbiased_jax.evaluation.generation:generate_text"
EVALUATE = "bornbiased_jax.evaluation.perplexity:evaluate_checkpoint"
SINKS = "bornbiased_jax.evaluation.sink_report:sinks_report"
INTERVENE = "bornbiased_jax.evaluation.intervention:intervene_checkpoint"
PRINT = "bornbiased_jax.lineage.output_fingerprint:fingerprint_outputs"
ROLES = "bornbiased_jax.checkpoints.by_role:read_by_role"
READ = "bornbiased_jax.cli.seedprint:_models"
SKETCH = "bornbiased_jax.lineage.fingerprint_pass:fingerprint"
COMPARE = "bornbiased_jax.lineage.compare:compare"
COMPARE_WEIGHTS = "bornbiased_jax.lineage.weights_compare"
WEIGHTS = f"{COMPARE_WEIGHTS}:weights"
WEIGHT_SCORES = "bornbiased_jax.lineage.baselines:weight_scores"
TRAIN = "bornbiased_jax.training:pretrain"
EXPORT = "bornbiased_jax.checkpoints:export_hugging_face"
SCAN = "bornbiased_jax.lineage.scan:scan"
MIXTURE_PART = "bornbiased_jax.results.scans:check_checkpoint"
WHICH = "bornbiased_jax.lineage.whichseed:which_seed"
WHICH_TORCH = "bornbiased_jax.lineage.torch_seeds:which_torch_seed"
ADAPT = "bornbiased_jax.derive.tune:pretrain"
PEFT = "bornbiased_jax.derive.peft:export_adapter"
DERIVE = "bornbiased_jax.derive.derive:derive"
AUDIT = "bornbiased_jax.lineage.audit.audit:audit_folder"
REPRODUCE = "bornbiased_jax.experiments.runner:reproduce"
PROCESSES = "--coordinator h:1 --num-processes 2 --process-id 1"
DISTRIBUTED = "bornbiased_jax.parallel:initialize_distributed"
BUILD_MESH = "bornbiased_jax.parallel:build_mesh"

COMMON = [
    ("--quiet", QUIET, {"quiet": True}),
    ("--mesh seed=2", BUILD_MESH, {"sizes": {"seed": 2, "data": 1, "fsdp": 1}}),
    (PROCESSES, DISTRIBUTED, {"coordinator": "h:1", "num_processes": 2, "process_id": 1}),
]


def on_model(target: str, name: str) -> list[tuple[str, str, dict[str, Any]]]:
    """--model and --set, which arrive as a configuration."""
    return [
        ("--model llama-tiny", target, {name: preset("llama-tiny")}),
        ("--set num_layers=3", target, {name: preset("gpt2-tiny", num_layers=3)}),
    ]


def engines(before: str = "") -> list[tuple[str, str, dict[str, Any]]]:
    """--engine and what goes with it, after what the command needs for that."""
    return [
        (f"{before}--engine processes", NAMED, {"name": "processes", "workers": None}),
        (f"{before}--engine processes --workers 3", NAMED, {"workers": 3}),
        (
            f"{before}--submit timeout_min=9 --submit slurm_partition=long",
            NAMED,
            {"submit": {"timeout_min": 9, "slurm_partition": "long"}},
        ),
        (f"{before}--engine ray --ray-address h:1", NAMED, {"address": "h:1"}),
    ]


def kept_by(target: str) -> list[tuple[str, str, dict[str, Any]]]:
    """A ledger, its ranges and its engines."""
    return [
        ("--resume kept", target, {"resume": "kept"}),
        ("--resume kept --range 5", target, {"options.range_size" if target in (SWEEP, WHICH) else "range_size": 5}),
        ("--resume kept --engine processes ", target, {"engine": "the engine"}),
        *engines("--resume kept "),
    ]


def streamed(ref: str) -> list[tuple[str, str, dict[str, Any]]]:
    """--stream and --scratch, which open a checkpoint in another way."""
    return [("--stream --scratch kept", OPEN, {"ref": ref, "scratch": "kept"})]


PROBE = [
    *on_model(INPUTS, "cfg"),
    *COMMON,
    ("--seeds 3:5,9", SWEEP, {"seeds": [3, 4, 9]}),
    ("--seq-len 16", INPUTS, {"seq_len": 16}),
    ("--num-inputs 6", INPUTS, {"num_inputs": 6}),
    ("--inputs gaussian", INPUTS, {"spec": "gaussian"}),
    ("--inputs builtin:prose --tokenizer bpe:512", INPUTS, {"tokenizer": "bpe:512"}),
    ("--input-seed 7", INPUTS, {"seed": 7}),
    ("--no-fix-embeddings", "bornbiased_jax.probes.subject:untrained", {"fixed_embedding_seed": None}),
    ("--fix-embeddings", "bornbiased_jax.probes.subject:untrained", {"fixed_embedding_seed": 0}),
    ("--embedding-seed 5", "bornbiased_jax.probes.subject:untrained", {"fixed_embedding_seed": 5}),
    *kept_by(SWEEP),
    ("--chunk 3", SWEEP, {"options.chunk": 3}),
    ("--mode map", SWEEP, {"options.mode": "map"}),
    ("--batch-size 2", SWEEP, {"options.batch_size": 2}),
    ("--precision bf16x3", SWEEP, {"options.precision": "bf16x3"}),
    ("--sweep num_layers=3,5", INPUTS, {"cfg": preset("gpt2-tiny", num_layers=3)}),
    ("--theory", "bornbiased_jax.results.theory:check", {"input_spec": "tokens"}),
    ("--dry-run", "bornbiased_jax.cli.dry_run:report", {"json_file": None}),
]
DRAWN = [
    ("--inputs gaussian", RANDOM, {"kind": "gaussian"}),
    ("--num-inputs 6", RANDOM, {"num_inputs": 6}),
    ("--seq-len 16", RANDOM, {"seq_len": 16}),
    ("--vocab-size 50", RANDOM, {"vocab_size": 50}),
    ("--input-seed 7", RANDOM, {"seed": 7}),
    ("--batch-size 2", PRINT, {"options.batch_size": 2}),
    ("--quiet", QUIET, {"quiet": True}),
]
# Options of pretrain that are fields of its configuration: what is typed, and the field.
FIELDS = {
    "--data corpus.txt": {"data": "corpus.txt"},
    "--out runs/b": {"out": "runs/b"},
    "--seeds 3,5": {"seeds": (3, 5)},
    "--data-seed 9": {"data_seed": 9},
    "--recipe seedprint --steps 4 --context 32": {"learning_rate": 3e-4, "accumulation": 8},
    # As it was typed when the names of recipes were those of --schedule.
    "--schedule seedprint --steps 4 --context 32": {"learning_rate": 3e-4, "schedule": "cosine"},
    "--schedule wsd": {"schedule": "wsd"},
    "--optimizer muon": {"optimizer": "muon"},
    "--metrics-csv": {"csv": True},
    "--wandb": {"wandb": True},
    "--checkpoint-log-spaced": {"checkpoint_log_spaced": True},
    "--remat": {"remat": True},
    "--no-tensorboard": {"tensorboard": False},
    "--quiet": {"quiet": True},
    "--mesh data=1": {"mesh": "data=1"},
    "--steps 7": {"steps": 7},
    "--schedule-steps 9": {"schedule_steps": 9},
    "--batch-size 6": {"batch_size": 6},
    "--accumulation 2": {"accumulation": 2},
    "--context 48": {"context": 48},
    "--learning-rate 0.5": {"learning_rate": 0.5},
    "--min-learning-rate 0.0001": {"min_learning_rate": 0.0001},
    "--warmup 1": {"warmup": 1},
    "--weight-decay 0.25": {"weight_decay": 0.25},
    "--clip 3.5": {"clip": 3.5},
    "--beta1 0.5": {"beta1": 0.5},
    "--beta2 0.75": {"beta2": 0.75},
    "--epsilon 1e-5": {"epsilon": 1e-5},
    "--dtype bfloat16": {"dtype": "bfloat16"},
    "--tokenizer bytes": {"tokenizer": "bytes"},
    "--validation-fraction 0.25": {"validation_fraction": 0.25},
    "--init-from model.gguf": {"init_from": "model.gguf"},
    "--checkpoint-every 2": {"checkpoint_every": 2},
    "--keep-latest 4": {"keep_latest": 4},
    "--eval-every 2": {"eval_every": 2},
    "--eval-sequences 3": {"eval_sequences": 3},
    "--log-every 2": {"log_every": 2},
    "--seeds-mode map": {"seeds_mode": "map"},
    "--processes 3": {"processes": 3},
    "--token-cache kept": {"token_cache": "kept"},
}


def prepared() -> list[tuple[str, str, dict[str, Any]]]:
    """--json is looked at before the work; that it is written after it, the golden set says."""
    return [("--json x.json", "bornbiased_jax.cli.outputs:prepare_json", {"json_file": "x.json"})]


def placed() -> list[tuple[str, str, dict[str, Any]]]:
    """The places of results are looked at before the work; what is written there, test_outputs.py says."""
    return [
        *prepared(),
        ("--csv drawn.csv", "bornbiased_jax.io:check_writable", {"path": "drawn.csv"}),
        ("--page drawn.html", "bornbiased_jax.io:check_writable", {"path": "drawn.html"}),
        ("--figures drawn", "bornbiased_jax.io:check_writable", {"path": "drawn/figure.png"}),
        ("--figures drawn --overwrite", "bornbiased_jax.cli.outputs:Folder", {"overwrite": True}),
    ]


ROWS: dict[str, list[tuple[str, str, dict[str, Any]]]] = {
    "models": prepared(),
    "probe preference": [*PROBE, *placed(), ("", SWEEP, {"options.intra": False})],
    "probe contraction": [*PROBE, *placed(), ("", SWEEP, {"options.intra": True})],
    "probe scaling": [
        *on_model(SCALING, "config.model"),
        ("--widths 32,64", SCALING, {"widths": [32, 64]}),
        ("--steps 3", SCALING, {"config.steps": 3}),
        ("--seeds 3:5", SCALING, {"config.seeds": (3, 4)}),
        ("--optimizer muon", SCALING, {"config.optimizer": "muon"}),
        ("--optimizer adamw", SCALING, {"config.optimizer": "adamw"}),
        ("--learning-rate 0.5", SCALING, {"config.learning_rate": 0.5}),
        ("--batch-size 2", SCALING, {"config.batch_size": 2}),
        ("--seq-len 16", SCALING, {"config.context": 16}),
        ("--input-seed 7", SCALING, {"config.data_seed": 7}),
        *placed(),
    ],
    "predict": [
        *on_model(PREDICT, "cfg"),
        ("--diagram --page d.html", "bornbiased_jax.trainability:diagram", {"seq_len": 8, "num_inputs": 2000}),
        ("--gradients", "bornbiased_jax.prediction:predict_gradients", {"seq_len": 8, "num_inputs": 2000}),
        ("--seq-len 16", PREDICT, {"seq_len": 16}),
        ("--num-inputs 6", PREDICT, {"num_inputs": 6}),
        ("--inputs gaussian", PREDICT, {"tokens": False}),
        ("--inputs tokens", PREDICT, {"tokens": True}),
        ("--sweep num_layers=3,5", PREDICT, {"cfg": preset("gpt2-tiny", num_layers=3)}),
        *placed(),
    ],
    "generate": [
        ("<checkpoint>", OPEN, {"ref": "model.gguf"}),
        ("--prompt Twice", TEXT, {"prompt": "Twice"}),
        ("--max-new-tokens 5", TEXT, {"max_new_tokens": 5}),
        ("--temperature 0.5", TEXT, {"sampling.temperature": 0.5}),
        ("--temperature 0.5 --top-k 3", TEXT, {"sampling.top_k": 3}),
        ("--temperature 0.5 --top-p 0.25", TEXT, {"sampling.top_p": 0.25}),
        ("--temperature 0.5 --seed 7", TEXT, {"sampling.seed": 7}),
        *prepared(),
    ],
    "parity": [
        ("<directory>", "bornbiased_jax.evaluation.parity:parity", {"folder": "folder"}),
        ("--num-sequences 2", "bornbiased_jax.evaluation.parity:parity", {"num_sequences": 2}),
        ("--seq-len 16", "bornbiased_jax.evaluation.parity:parity", {"seq_len": 16}),
        *prepared(),
    ],
    "evaluate": [
        ("<checkpoint>", OPEN, {"ref": "model.gguf"}),
        ("--ignore-field flavor", OPEN, {"ignore_fields": ("flavor",)}),
        ("--data corpus.txt", EVALUATE, {"source": "corpus.txt"}),
        ("--num-sequences 9", EVALUATE, {"num_sequences": 9}),
        ("--context 33", EVALUATE, {"context": 33}),
        ("--batch-size 3", EVALUATE, {"batch_size": 3}),
        ("--tokenizer bytes", EVALUATE, {"tokenizer": "bytes"}),
        *streamed("model.gguf"),
        ("--quiet", EVALUATE, {"quiet": True}),
        *prepared(),
    ],
    "sinks": [
        ("<checkpoint>", OPEN, {"ref": "model.gguf"}),
        ("--ignore-field flavor", OPEN, {"ignore_fields": ("flavor",)}),
        ("--text book.txt", SINKS, {"text": "book.txt"}),
        ("--epsilon 0.5", SINKS, {"options.epsilon": 0.5}),
        ("--lengths 8,16", SINKS, {"options.lengths": [8, 16]}),
        ("--num-sequences 7", SINKS, {"options.num_sequences": 7}),
        ("--position 2", SINKS, {"options.position": 2}),
        ("--convention rows_from_k", SINKS, {"options.convention": "rows_from_k"}),
        ("--threshold average", SINKS, {"options.threshold": "average"}),
        ("--normalise", SINKS, {"options.normalize": True}),
        ("--tokenizer bytes", SINKS, {"tokenizer": "bytes"}),
        ("--no-details", SINKS, {"options.details": False}),
        ("--details", SINKS, {"options.details": True}),
        ("--quantise w8a8,kv4", SINKS, {"options.schemes": [(8, 8, None), (None, None, 4)]}),
        ("--quantise w8a8 --granularity channel", SINKS, {"options.granularities": ["channel"]}),
        ("--streaming 9 --keep-sinks 2,3", SINKS, {"options.keep_sinks": [2, 3]}),
        ("--streaming 9", SINKS, {"options.streaming": 9}),
        *streamed("model.gguf"),
        ("--by-step", SINKS, {"by_step": True}),
        ("--quiet", SINKS, {"quiet": True}),
        *placed(),
    ],
    "intervene": [
        ("<checkpoint>", OPEN, {"ref": "model.gguf"}),
        ("--text book.txt", INTERVENE, {"text": "book.txt"}),
        (
            "--silence blocks/1/mlp:2 --silence blocks/2/mlp:0",
            INTERVENE,
            {"options.silence": ("blocks/1/mlp:2", "blocks/2/mlp:0")},
        ),
        ("--write blocks/1/mlp:2@3", INTERVENE, {"options.write": ("blocks/1/mlp:2@3",)}),
        ("--clear 5@2", INTERVENE, {"options.clear": ("5@2",)}),
        ("--first-token 9", INTERVENE, {"options.first_token": 9}),
        ("--position 2", INTERVENE, {"options.position": 2}),
        ("--epsilon 0.5", INTERVENE, {"options.epsilon": 0.5}),
        ("--length 8", INTERVENE, {"options.length": 8}),
        ("--num-sequences 7", INTERVENE, {"options.num_sequences": 7}),
        ("--tokenizer bytes", INTERVENE, {"tokenizer": "bytes"}),
        ("--quiet", INTERVENE, {"quiet": True}),
        *placed(),
    ],
    "fingerprint": [
        ("<checkpoint>", OPEN, {"ref": "model.gguf"}),
        ("--out b.fingerprint", "bornbiased_jax.lineage.output_fingerprint:save_outputs", {"path": "b.fingerprint"}),
        ("--outputs", PRINT, {"options.layer": None}),
        ("--layer 2", PRINT, {"options.layer": 2}),
        ("--storage bfloat16", OPEN, {"dtype": "bfloat16"}),
        *kept_by(PRINT),
        *[row for row in COMMON if row[1] not in (QUIET, BUILD_MESH)],
        ("--mesh data=4,fsdp=2", BUILD_MESH, {"sizes": {"seed": 1, "data": 4, "fsdp": 2}}),
        ("--mesh data=1", PRINT, {"options.mesh": "the mesh"}),
        *streamed("model.gguf"),
        ("--stream --file other.safetensors", OPEN, {"file": "other.safetensors"}),
        *DRAWN,
        *prepared(),
    ],
    "seedprint": [
        ("<base>", COMPARE, {"base.source": "seed:1@gpt2-tiny"}),
        ("<suspect>", COMPARE, {"suspect.source": "seed:2@gpt2-tiny"}),
        ("--test iclr", COMPARE, {"test": "iclr"}),
        ("--alpha 0.05", COMPARE, {"alpha": 0.05}),
        ("--num-permutations 500", COMPARE, {"num_permutations": 500}),
        (
            "--test population --num-references 150",
            "bornbiased_jax.lineage.untrained_outputs:final_outputs",
            {"seeds": range(3_000_000_000, 3_000_000_150)},
        ),
        *streamed("seed:1@gpt2-tiny"),
        ("--signs free", COMPARE, {"signs": "free"}),
        ("--test auto --sign-key 00ff", f"{COMPARE_WEIGHTS}:auto", {"sign_key": "00ff"}),
        ("--test auto --neurons all", f"{COMPARE_WEIGHTS}:auto", {"neurons": "all"}),
        ("--file a.bin", READ, {"files": ("a.bin",)}),
        ("--roles roles.json", READ, {"roles": "roles.json"}),
        ("--ignore-field flavor", READ, {"ignore_fields": ("flavor",)}),
        (f"--base-digest {64 * 'A'}", "bornbiased_jax.lineage.trace:check_commitment", {"published": 64 * "a"}),
        ("--test auto", f"{COMPARE_WEIGHTS}:auto", {"alpha": 1e-4}),
        ("--by-step", "bornbiased_jax.results.verdicts_by_step:run_steps", {"reference": "seed:1@gpt2-tiny"}),
        ("--baselines", WEIGHT_SCORES, {"base.reference": "seed:1@gpt2-tiny"}),
        ("--baselines ", WEIGHT_SCORES, {"suspect.reference": "seed:2@gpt2-tiny"}),
        *DRAWN,
        *placed(),
    ],
    "scan": [
        ("<suspect>", SCAN, {"suspect": "model.gguf"}),
        ("<bases>", "bornbiased_jax.lineage.scan:find_bases", {"places": ("seed:1@gpt2-tiny",)}),
        ("--alpha 0.05", SCAN, {"alpha": 0.05}),
        ("--num-permutations 500", SCAN, {"num_permutations": 500}),
        ("--mixture --base seed:2@gpt2-tiny", MIXTURE_PART, {"place": "seed:2@gpt2-tiny"}),
        ("--base seed:2@gpt2-tiny --mixture", MIXTURE_PART, {"place": "seed:2@gpt2-tiny"}),
        ("--quiet", QUIET, {"quiet": True}),
        *placed(),
    ],
    "whichseed": [
        ("<suspect>", OPEN, {"ref": "model.gguf"}),
        *on_model(WHICH, "cfg"),
        ("--seeds 5:9", WHICH, {"seeds": range(5, 9)}),
        ("--alpha 0.05", WHICH, {"alpha": 0.05}),
        ("--entries 64", WHICH, {"options.entries": 64}),
        ("--framework torch", WHICH_TORCH, {"seeds": range(10)}),
        *kept_by(WHICH),
        ("--quiet", QUIET, {"quiet": True}),
        *prepared(),
    ],
    "init-scheme": [("<checkpoint>", OPEN, {"ref": "model.gguf"}), *prepared()],
    "digest": [
        ("<checkpoint>", ROLES, {"ref": "model.gguf"}),
        ("--file weights.bin", ROLES, {"file": "weights.bin"}),
        ("--roles roles.json", ROLES, {"roles_file": Path("roles.json")}),
        ("--ignore-field flavor", ROLES, {"ignore_fields": ("flavor",)}),
        *prepared(),
    ],
    "pretrain": [
        *on_model(TRAIN, "config.model"),
        *[(typed, TRAIN, {f"config.{name}": value for name, value in f.items()}) for typed, f in FIELDS.items()],
        ("--init-from model.gguf ", TRAIN, {"initial": [(preset("gpt2-tiny"), "weights of model.gguf")]}),
        *[row for row in COMMON if row[1] == DISTRIBUTED],
        ("--data builtin:prose --dry-run", "bornbiased_jax.cli.dry_run:report", {"json_file": None}),
        *prepared(),
    ],
    "status": [("<directory>", "bornbiased_jax.store:status", {"folder": "folder"}), *prepared()],
    "runs": [("<directory>", "bornbiased_jax.training:list_runs", {"folder": "folder"}), *prepared()],
    "plot": [
        ("<directory>", "bornbiased_jax.training:plot_run", {"folder": "runs/a"}),
        ("--out b.svg", "bornbiased_jax.training:plot_run", {"out": "b.svg"}),
        *prepared(),
    ],
    "export": [
        ("<checkpoint>", OPEN, {"ref": "runs/a@seed=42"}),
        ("<directory>", EXPORT, {"folder": "exported", "tokenizer": "its tokenizer", "overwrite": False}),
        ("--overwrite", EXPORT, {"overwrite": True}),
        ("--peft", PEFT, {"reference": "runs/a@seed=42", "folder": "exported", "overwrite": False}),
        *prepared(),
    ],
    "adapt": [
        ("<checkpoint>", "bornbiased_jax.derive.tune:open_checkpoint", {"ref": "model.gguf"}),
        ("--method full", ADAPT, {"config.adapter": None, "initial": [(preset("gpt2-tiny"), "weights of model.gguf")]}),
        ("--method prefix-plus --feature-map relu", ADAPT, {"config.adapter.feature_map": "relu"}),
        ("--method prefix --prefix-length 5", ADAPT, {"config.adapter.prefix_length": 5}),
        ("--rank 3", ADAPT, {"config.adapter.rank": 3, "config.adapter.alpha": 6.0}),
        ("--alpha 2.5", ADAPT, {"config.adapter.alpha": 2.5}),
        ("--matrices up,key", ADAPT, {"config.adapter.matrices": ("key", "up")}),
        ("--budget 6144 --alpha 5", ADAPT, {"config.adapter.rank": 3, "config.adapter.alpha": 5.0}),
        ("--method prefix --budget prefix-plus", ADAPT, {"config.adapter.prefix_length": 16}),
        ("--method full --optimizer muon", ADAPT, {"config.optimizer": "muon"}),
        ("", ADAPT, {"config.init_from": "model.gguf", "config.seeds": (0,), "tokenizer": "its tokenizer"}),
        *[
            (typed, ADAPT, {f"config.{name}": value for name, value in f.items()})
            for typed, f in FIELDS.items()
            if not typed.startswith(("--recipe", "--schedule seedprint", "--optimizer", "--mesh", "--init-from"))
        ],
        *prepared(),
    ],
    "derive": [
        ("<checkpoint>", DERIVE, {"parent": "model.gguf"}),
        ("--change prune:0.5", DERIVE, {"changes": [parse_change("noise:0.1"), parse_change("prune:0.5")]}),
        ("--seed 7", DERIVE, {"context.seed": 7}),
        ("--change unused-rows:2 --text book.txt", "bornbiased_jax.derive.text_ids:ids_in_text", {"text": "book.txt"}),
        ("--out elsewhere", EXPORT, {"folder": "elsewhere", "context": 64}),
        ("--overwrite", EXPORT, {"overwrite": True}),
        *prepared(),
    ],
    "audit": [
        ("<place>", AUDIT, {"folder": "folder"}),
        ("--pattern (?P<step>x)", AUDIT, {"pattern": re.compile("(?P<step>x)")}),
        ("--frozen ^embed", AUDIT, {"frozen": re.compile("^embed")}),
        ("--all-pairs", AUDIT, {"all_pairs": True}),
        ("--quiet", QUIET, {"quiet": True}),
        ("--page drawn.html", "bornbiased_jax.io:check_writable", {"path": "drawn.html"}),
        ("--report audit.md", "bornbiased_jax.io:check_writable", {"path": "audit.md"}),
        # The exit code alone: tests/audit.
        ("--strict", AUDIT, {"folder": "folder"}),
        *prepared(),
    ],
    "reproduce": [
        ("<names>", REPRODUCE, {"names": ("demo",)}),
        ("--scale smoke", REPRODUCE, {"scale": "smoke"}),
        ("--out elsewhere", REPRODUCE, {"out": "elsewhere"}),
        ("--overwrite", REPRODUCE, {"overwrite": True}),
        ("--data corpus.txt", REPRODUCE, {"data": "corpus.txt"}),
        ("--list", "bornbiased_jax.cli.outputs:print_tables", {"tables.0.title": "Experiments"}),
        ("--compare", REPRODUCE, {"out": "out/compare"}),
        ("--mesh data=1", REPRODUCE, {"mesh": "the mesh"}),
        *engines(),
        ("--engine processes ", REPRODUCE, {"computing.engine": "the engine"}),
        ("--precision bf16x3", REPRODUCE, {"computing.precision": "bf16x3"}),
        *[row for row in COMMON if row[1] != DISTRIBUTED],
        ("--coordinator h:1 --num-processes 1 --process-id 0", DISTRIBUTED, {"num_processes": 1, "process_id": 0}),
        *prepared(),
    ],
    "doctor": prepared(),
}
# Options that exclude another one of the shortest call.
SKETCHED = "fingerprint model.gguf --out a.fingerprint"
INSTEAD = {
    ("predict", "--checkpoint"): (
        "predict --checkpoint model.gguf --seq-len 8",
        PREDICT,
        {"cfg": preset("gpt2-tiny")},
    ),
    ("probe preference", "--checkpoint"): (
        f"probe preference --checkpoint model.gguf {SIZES}",
        "bornbiased_jax.probes.subject:from_weights",
        {"params": "weights of model.gguf", "digest": "digest"},
    ),
    ("probe contraction", "--checkpoint"): (
        f"probe contraction --checkpoint model.gguf {SIZES}",
        "bornbiased_jax.probes.subject:from_weights",
        {"params": "weights of model.gguf"},
    ),
    ("generate", "--prompt-ids"): (
        "generate model.gguf --prompt-ids 5,17",
        "bornbiased_jax.evaluation.generation:generate",
        {"prompt_ids": [5, 17], "max_new_tokens": 32, "stop_id": 7},
    ),
    ("fingerprint", "--neurons"): (f"{SKETCHED} --neurons all", SKETCH, {"settings.neurons": None}),
    ("fingerprint", "--dim"): (f"{SKETCHED} --dim 8", SKETCH, {"settings.dim": 8}),
    ("fingerprint", "--sign-key"): (f"{SKETCHED} --sign-key a1", SKETCH, {"settings.sign_key": bytes([0xA1])}),
    ("fingerprint", "--token-labels"): (f"{SKETCHED} --token-labels ids", SKETCH, {"settings.token_labels": "ids"}),
    ("fingerprint", "--file"): (f"{SKETCHED} --file a.safetensors", ROLES, {"file": "a.safetensors"}),
    ("fingerprint", "--ignore-field"): (f"{SKETCHED} --ignore-field flavor", ROLES, {"ignore_fields": ("flavor",)}),
    ("fingerprint", "--roles"): (f"{SKETCHED} --roles roles.json", ROLES, {"roles_file": Path("roles.json")}),
    ("fingerprint", "--max-bytes"): (
        f"{SKETCHED} --max-bytes 5000",
        "bornbiased_jax.lineage.fingerprint_size:fitted",
        {"max_bytes": 5000},
    ),
    ("seedprint", "--labels"): (
        "seedprint seed:1@gpt2-tiny seed:2@gpt2-tiny --test weights --labels units",
        WEIGHTS,
        {"labels": "units"},
    ),
    ("audit", "--weights"): (
        "audit hf:owner/tiny* --weights",
        "bornbiased_jax.lineage.audit.suite:audit_suite",
        {"text": "hf:owner/tiny*", "weights": True},
    ),
    ("evaluate", "--text"): ("evaluate model.gguf --text book.txt", EVALUATE, {"source": "book.txt"}),
}
