"""What a user may write where a checkpoint is asked for."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Literal, NamedTuple

from bornbiased_jax import io
from bornbiased_jax.checkpoints import hub
from bornbiased_jax.checkpoints.formats.orbax_tree import find_tree
from bornbiased_jax.checkpoints.formats.run import RUN_FILE
from bornbiased_jax.checkpoints.formats.torch_distributed import METADATA
from bornbiased_jax.checkpoints.weight_files import PICKLE, check_pointer
from bornbiased_jax.config import PRESETS, ModelConfig, parse_setting, preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.hub import is_named
from bornbiased_jax.parameters import check_read
from bornbiased_jax.schema import whole

ReferenceKind = Literal["birth", "run", "huggingface", "gguf"]
FORMS = (
    "name a Hugging Face directory, a .gguf file, a pretraining run (RUN@seed=42,step=1000), "
    "initial weights (seed:42@llama-nano), or a model of the hub (hf:OWNER/NAME)"
)

# What trainers and job systems write next to checkpoints.
_LOG = re.compile(
    r"events\.out\.tfevents\..*|trainer_state\.json|.*\.log(\.\d+)?|(.*[-_])?logs?\.(txt|jsonl?|csv)"
    r"|(nohup|slurm-.*)\.(out|err)",
    re.IGNORECASE,
)


# How files of stored fingerprints begin, after their header's size.
_FINGERPRINT = b'{"__metadata__":{"format":"bornbiased-'


class Reference(NamedTuple):
    """One checkpoint, not yet opened. ``seed`` and ``step`` are an initialization's or a run's, None for its default.

    ``remote`` is its name on the hub, and ``path`` None until it is fetched.
    """

    kind: ReferenceKind
    path: Path | None = None
    seed: int | None = None
    step: int | None = None
    cfg: ModelConfig | None = None
    remote: hub.HubName | None = None

    def fetched(self) -> Reference:
        """Return the same with a path where there is one: what is on the hub is now in the cache.

        Raises:
            InputError: as :func:`.hub.fetch`.
        """
        return self if self.remote is None else self._replace(path=hub.fetch(self.remote))

    def describe(self, description: str) -> str:
        """Describe what was opened; in place of a folder in the cache its name, and the commit that this stood for."""
        if self.remote is None or self.path is None:
            return description
        commit = "" if self.path.name == self.remote.revision else f" (commit {self.path.name[:10]})"
        return description.replace(str(self.path), f"{self.remote}{commit}")


def parse_ref(text: str | Path) -> Reference:
    """Tell what kind of checkpoint a text means, looking at what lies there.

    Known are: a Hugging Face directory, a GGUF file, a pretraining run
    ``RUN[@seed=42,step=1000]``, an initialization ``seed:42@llama-nano[,field=value,…]``, and a model of the hub
    ``hf:OWNER/NAME[@REVISION]``, which is not looked at.

    Raises:
        InputError: none of these, or nothing is there.

    >>> reference = parse_ref("seed:42@gpt2-tiny,num_layers=2")
    >>> reference.kind, reference.seed, reference.cfg.num_layers
    ('birth', 42, 2)
    """
    text = str(text)
    if text.startswith("seed:"):
        return _initialization(text)
    if is_named(text):
        return Reference("huggingface", remote=hub.parse_name(text))
    path = io.user_path(text)
    at = after = ""
    if not path.exists() and "@" in text:
        before, at, after = text.rpartition("@")
        path = io.user_path(before)
    if not path.exists():
        raise InputError(f"{text} does not exist: {_near(text)}")
    kind = _kind_of_directory(path) if path.is_dir() else _kind_of_file(path)
    if not at:
        return Reference(kind, path)
    if kind != "run":
        raise InputError(f"{path} is no pretraining run, which alone has seeds and steps: leave out @{after}")
    options = _options(text, after)
    return Reference(kind, path, seed=options.get("seed"), step=options.get("step"))


def is_log(name: str) -> bool:
    """Tell whether a file of this name is a log of training.

    >>> is_log("events.out.tfevents.1700000000.host"), is_log("slurm-1.out"), is_log("model.gguf")
    (True, True, False)
    """
    return _LOG.fullmatch(name) is not None


def _near(text: str) -> str:
    """Suggest what a text that names nothing may have meant: a preset, or a model of the hub."""
    name = text.partition("@")[0]
    if name in PRESETS:
        return f"for the initial weights of this preset name seed:42@{name}"
    if re.fullmatch(r"[A-Za-z0-9][\w-]*/[\w.-]+", name) and not Path(name).parent.exists():
        return f"for a model of the hub name hf:{text}"
    return FORMS


def portable_source(reference: str) -> dict[str, str]:
    """Return the reference under which processes that began in other folders open the same, as a source of jobs.

    Example:
        >>> portable_source("seed:42@gpt2-tiny")
        {'checkpoint': 'seed:42@gpt2-tiny'}
    """
    if reference.startswith("seed:") or is_named(reference):
        return {"checkpoint": reference}
    path = io.user_path(reference)
    before, at, after = reference.rpartition("@")
    if not path.exists() and at:
        return {"checkpoint": f"{io.user_path(before).absolute()}@{after}"}
    return {"checkpoint": str(path.absolute())}


def _initialization(text: str) -> Reference:
    match = re.fullmatch(r"seed:(\d+)@([^,]+)((?:,[^,=]+=[^,]+)*)", text)
    seed = None if match is None else whole(match[1])
    if match is None or seed is None:
        raise InputError(f"{text!r} is not of the form seed:42@llama-nano or seed:42@llama-nano,d_model=64")
    parts = match[3].split(",")[1:]
    cfg = preset(match[2], **dict(map(parse_setting, parts)))
    for part in parts:
        check_read(cfg, *parse_setting(part), f"{text!r}: {part}")
    return Reference("birth", seed=seed, cfg=cfg)


def _options(text: str, after: str) -> dict[str, int]:
    """Parse the seed and the step of a run."""
    options: dict[str, int] = {}
    for part in after.split(","):
        name, _, value = part.partition("=")
        number = whole(value)
        if name not in ("seed", "step") or number is None or name in options:
            raise InputError(f"{text!r} is not of the form RUN@seed=42,step=1000 (either may be left out)")
        options[name] = number
    return options


def _kind_of_directory(path: Path) -> ReferenceKind:
    config = path / "config.json"
    if config.is_file():
        content = io.read_json(config)
        if isinstance(content, dict) and "model_type" in content:
            return "huggingface"
    if (path / RUN_FILE).is_file():
        return "run"
    weights = (
        "*.safetensors",
        "adapter_config.json",
        "*.safetensors.index.json",
        "pytorch_model*",
        "model.pt",
        METADATA,
    )
    if any(True for pattern in weights for _ in path.glob(pattern)):
        return "huggingface"
    if find_tree(path) is not None:
        return "huggingface"
    # The hub's own layout: files lie in blobs, and their names in snapshots.
    snapshots = sorted(path.glob("snapshots/*/")) or sorted(path.glob("models--*/snapshots/*/"))
    if snapshots:
        raise InputError(f"{path} is a cache of the hub: name the folder of a snapshot, as {snapshots[0]}")
    logs = sorted(entry.name for entry in path.iterdir() if is_log(entry.name))
    if logs:
        raise InputError(f"{path} holds logs of training, as {logs[0]}, and no weights: {FORMS}")
    below = sorted(
        entry.name for entry in path.iterdir() if any((entry / name).is_file() for name in ("config.json", RUN_FILE))
    )
    if below:
        raise InputError(
            f"{path} holds models or runs in folders of their own: name one of them, as {path / below[0]}; "
            "audit takes the folder as it is"
        )
    raise InputError(f"{path} holds neither a Hugging Face model nor a pretraining run: {FORMS}")


def _kind_of_file(path: Path) -> ReferenceKind:
    io.check_regular(path)
    try:
        check_pointer(path)
        with path.open("rb") as stream:
            head = stream.read(64)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    if head[:4] == b"GGUF":
        return "gguf"
    # The first two bytes of a pickle are also those of a llama2.c model of width 640, but then the third is zero.
    pickled = head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05") and head[2:3] != b"\x00"
    if pickled or zipfile.is_zipfile(path):
        raise _pickled(path)
    if is_log(path.name):
        raise InputError(f"{path} is a log of training, no checkpoint: {FORMS}")
    if _FINGERPRINT in head:
        raise InputError(
            f"{path} is a stored fingerprint, without weights: name the checkpoint that it was made of; seedprint "
            "takes it as it is, and scan one of weights"
        )
    if path.suffix == ".gguf":
        raise InputError(f"{path} is no GGUF file, as it does not begin with those letters: name one that does")
    if path.suffix == ".safetensors":
        raise InputError(f"{path} has weights without their configuration: name the folder, with its config.json")
    if path.suffix == ".bin":
        raise InputError(
            f"{path} is not opened as it is: if it is a llama2.c model, convert it with "
            f"`python docs/guides/convert_llama2c.py {path} DIR` and name DIR"
        )
    raise InputError(f"{path} is no checkpoint of a known kind: {FORMS}")


def _pickled(path: Path) -> InputError:
    """Return the error of a pickle that is named by itself, without the folder that says what model it is of."""
    if (path.parent / "config.json").is_file():
        choice = "" if path.name.startswith(PICKLE.partition(".")[0]) else f" with --file {path.name}"
        remedy = f"name its folder{choice}, which has the model's config.json"
    else:
        remedy = (
            "save its tensors with safetensors.torch.save_file as DIR/model.safetensors, put the model's config.json "
            "there too (with model_type), and name DIR"
        )
    return InputError(f"{path} is a pickle, which alone does not say what model it is of: {remedy}")
