"""Whatever a command writes, what lay there before stays: files, links, pipes and devices of other people."""

import base64
import os
import re
import stat
import threading
from pathlib import Path

import click
import pytest

from bornbiased_jax.checkpoints import export_hugging_face, open_checkpoint
from bornbiased_jax.cli.main import run
from bornbiased_jax.io import MARKER
from tests.cli.commands import commands
from tests.robustness.kinds import KINDS
from tests.robustness.process import TINY, UNTRAINED
from tests.tiers import nightly_except

MODELS = Path(__file__).resolve().parent.parent / "fixtures" / "hf"
SIZES = ["--num-inputs", "4", "--seq-len", "4", "--quiet"]
WIDTHS = ["--widths", "16,32", "--steps", "1", "--seeds", "0:2"]
EDIT = [f"seed:1@{TINY}", "--text", "builtin:prose", "--tokenizer", "bytes", "--length", "8", "--quiet"]
EDIT += ["--silence", "blocks/1/mlp:3"]
# Calls that fill the folder at their end, and calls that write the file at their end.
FOLDERS = {
    "probe preference": [*UNTRAINED, *SIZES, "--resume"],
    "probe contraction": [*UNTRAINED, *SIZES, "--resume"],
    "sinks": [f"seed:1@{TINY}", "--text", "builtin:prose", "--tokenizer", "bytes", "--lengths", "4", "--no-details",
              "--num-sequences", "2", "--quiet", "--figures"],
    "pretrain": [*UNTRAINED, "--data", "builtin:prose", "--tokenizer", "bytes", "--steps", "1", "--quiet", "--out"],
    "export": [f"seed:1@{TINY}"],
    "reproduce": ["table3", "--scale", "smoke", "--quiet", "--out"],
    "adapt": [f"seed:1@{TINY}", "--method", "lora", "--data", "builtin:prose", "--tokenizer", "bytes", "--steps", "1",
              "--quiet", "--out"],
    "derive": [f"seed:1@{TINY}", "--change", "noise:0.1", "--out"],
    "whichseed": [f"seed:1@{TINY}", "--seeds", "0:2", "--quiet", "--resume"],
    "fingerprint ledger": [f"seed:1@{TINY}", "--outputs", *SIZES, "--out", "a.fingerprint", "--resume"],
    "probe preference figures": [*UNTRAINED, *SIZES, "--figures"],
    "probe contraction figures": [*UNTRAINED, *SIZES, "--figures"],
    "probe scaling figures": [*UNTRAINED, *WIDTHS, "--figures"],
    "predict figures": [*UNTRAINED, "--seq-len", "4", "--figures"],
    "seedprint figures": [f"seed:1@{TINY}", f"seed:2@{TINY}", "--test", "weights", "--figures"],
    "scan figures": [f"seed:1@{TINY}", f"seed:2@{TINY}", "--figures"],
    "intervene figures": [*EDIT, "--figures"],
}  # fmt: skip
FILES = {
    "fingerprint": [f"seed:1@{TINY}", "--outputs", *SIZES, "--out"],
    "seedprint": [f"seed:1@{TINY}", f"seed:2@{TINY}", "--test", "weights", "--page"],
    "scan": [f"seed:1@{TINY}", f"seed:2@{TINY}", "--page"],
    "probe preference page": [*UNTRAINED, *SIZES, "--page"],
    "probe contraction page": [*UNTRAINED, *SIZES, "--page"],
    "probe scaling page": [*UNTRAINED, *WIDTHS, "--page"],
    "predict page": [*UNTRAINED, "--seq-len", "4", "--page"],
    "sinks page": [f"seed:1@{TINY}", "--text", "builtin:prose", "--tokenizer", "bytes", "--lengths", "4",
                   "--num-sequences", "2", "--quiet", "--page"],
    "intervene page": [*EDIT, "--page"],
    "plot": ["run", "--out"],
    "audit": [str(MODELS), "--page"],
    "audit report": [str(MODELS), "--report"],
    "models": ["--json"],
}  # fmt: skip
# What else is written is an image by the name's end.
IMAGES = ("plot",)
WRITES = ("out", "figures", "resume", "page", "directory", "report")
READS = {("parity", "directory"), ("runs", "directory"), ("plot", "directory"), ("status", "directory")}


def tree(folder: Path) -> dict[str, tuple]:
    """Every entry below a folder: what it is, and its content."""
    entries = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        content = os.readlink(path) if stat.S_ISLNK(mode) else path.read_bytes() if stat.S_ISREG(mode) else None
        entries[str(path.relative_to(folder))] = (mode, content)
    return entries


@pytest.fixture
def foreign(tmp_path):
    """A folder of somebody else's things, under the names that commands use."""
    folder = tmp_path / "theirs"
    (folder / "T4").mkdir(parents=True)
    (folder / "checkpoints" / "0").mkdir(parents=True)
    (folder / "tokenizer").mkdir()
    names = [
        "thesis.tex",
        "config.json",
        "model.safetensors",
        "index.html",
        "sink-map.png",
        "T4/0.npz",
        "T4/identity.json",
    ]
    for name in [*names, "metrics.jsonl", "tokenizer/tokenizer.json", "checkpoints/0/x", "curves.png", ".hidden"]:
        (folder / name).write_text(f"mine: {name}")
    (folder / "link").symlink_to("thesis.tex")
    (folder / "records").symlink_to("T4")
    os.mkfifo(folder / "pipe")
    return folder


def words_of(name: str) -> list[str]:
    """The call of a row, up to the name of the folder or file."""
    return [*_command(name).split(), *{**FOLDERS, **FILES}[name]]


def _command(name: str) -> str:
    """Of a row; one that writes two things has two rows."""
    return re.sub(" (report|ledger|figures|page)$", "", name)


def test_every_option_that_writes_is_here():
    tried = {(_command(name), words_of(name)[-1]) for name in {**FOLDERS, **FILES}}
    for path, command in commands().items():
        assert "json_file" in {parameter.name for parameter in command.params}  # one function writes them all
        for parameter in command.params:
            if parameter.name in WRITES and (path, parameter.name) not in READS:
                last = parameter.opts[0] if isinstance(parameter, click.Option) else words_of(path)[-1]
                assert (path, last) in tried, f"{path} writes {parameter.name}"


@pytest.mark.parametrize("command", FOLDERS)
def test_a_folder_of_other_things_is_refused_and_left_as_it_is(command, foreign, refused):
    before = tree(foreign)
    error = refused([*words_of(command), str(foreign)])
    assert error.count("\n") == 1 and str(foreign) in error
    assert tree(foreign) == before


@pytest.mark.parametrize("command", nightly_except(["probe preference", "export", "predict figures"], "export"))
def test_a_new_folder_next_to_other_things_is_all_that_comes(command, foreign):
    before = tree(foreign)
    for _ in range(2):  # the second time it is the command's own
        assert run([*words_of(command), str(foreign / "new")]) == 0
        after = tree(foreign)
        assert {name: entry for name, entry in after.items() if name.split("/")[0] != "new"} == before
    assert (foreign / "new" / MARKER).exists()


def test_with_overwrite_only_what_is_in_the_way_goes(foreign):
    before = tree(foreign)
    assert run(["sinks", *FOLDERS["sinks"], str(foreign), "--overwrite"]) == 0
    after = tree(foreign)
    assert {name for name in after if after[name] != before.get(name)} == {"sink-map.png", "sink-map.svg", MARKER}


def _without_time(page: bytes) -> bytes:
    """Return a file's content without the time of its making, also within the record that a page carries."""
    page = re.sub(rb"json;base64,([\w+/=]+)", lambda data: base64.b64decode(data[1]), page)
    return re.sub(rb"T\d\d:\d\d:\d\d\+00:00", b"", page)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    nightly_except((name for name in FILES if name not in IMAGES), "fingerprint", "seedprint", "probe preference page"),
)
def test_files_go_through_links_and_into_pipes(command, foreign):
    call = words_of(command)
    (foreign / "target").write_text("old")
    (foreign / "to-target").symlink_to("target")
    before = tree(foreign)
    got = []
    reader = threading.Thread(target=lambda: got.append((foreign / "pipe").read_bytes()))
    reader.start()
    for name in ("to-target", "pipe"):
        assert run([*call, str(foreign / name)]) == 0
    reader.join(60)
    after = tree(foreign)
    assert {name for name in after if after[name] != before.get(name)} == {"target"}
    assert [_without_time(page) for page in got] == [_without_time((foreign / "target").read_bytes())]
    assert run([*call, str(foreign / "T4")]) == 2 and tree(foreign) == after
    before = os.stat(os.devnull)
    assert run([*call, os.devnull]) == 0
    assert (os.stat(os.devnull).st_ino, os.stat(os.devnull).st_rdev) == (before.st_ino, before.st_rdev)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_plot_goes_through_a_link_and_leaves_the_rest(suffix, foreign, tmp_path):
    KINDS["run.json"].make(tmp_path)
    (foreign / f"target.{suffix}").write_text("old")
    (foreign / f"image.{suffix}").symlink_to(f"target.{suffix}")
    before = tree(foreign)
    assert run(["plot", str(tmp_path), "--out", str(foreign / f"image.{suffix}")]) == 0
    after = tree(foreign)
    assert {name for name in after if after[name] != before.get(name)} == {f"target.{suffix}"}
    assert run(["plot", str(tmp_path), "--out", str(foreign / "T4")]) == 2 and tree(foreign) == after


@pytest.mark.parametrize("command", ["export", "fingerprint", "probe preference", "models"])
def test_a_disk_that_fills_at_any_step_leaves_old_files_whole(command, tmp_path, monkeypatch, capsys):
    """The n-th time that something is brought to the disk there is no room, for every n."""
    place = tmp_path / "out"
    call = words_of(command)
    if command == "export":
        old = open_checkpoint(f"seed:9@{TINY}")
        export_hugging_face(old.cfg, old.params(), place)
    elif command != "probe preference":
        place.write_text("old")
    before, real, steps = tree(tmp_path), os.fsync, 0

    def full(descriptor):
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(28, "No space left on device")
        real(descriptor)

    while True:
        left = steps
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            code = run([*call, str(place)])
        if code == 0:
            break
        error = capsys.readouterr().err
        assert code == 2 and "No space left on device" in error and "Traceback" not in error
        if command != "probe preference":
            assert tree(tmp_path) == before
        assert not any(name.endswith(".part") for name in tree(tmp_path))
        steps += 1
    assert steps > 0
