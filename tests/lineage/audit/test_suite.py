"""Audits of suites on a hub that this machine plays: listings alone, then weights."""

import hashlib
import json

import pytest

from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.checkpoints.hub import fetch
from bornbiased_jax.cli.main import run
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.audit.suite import audit_suite, find_suite
from tests.fixtures.hub_server import point_to, serving
from tests.fixtures.suites import trajectory, write

STEPS = (0, 100, 200)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Checkpoints by seed and step."""
    root = tmp_path_factory.mktemp("suite")
    return {
        (seed, step): write(root, f"seed{seed}-step{step}", flat)
        for seed in (1, 2)
        for step, flat in trajectory(seed, steps=STEPS).items()
    }


@pytest.fixture
def server(tmp_path, monkeypatch, folders):
    """Two repositories with a branch for each step; seed 2's last is a copy of seed 1's."""
    with serving() as started:
        point_to(started, tmp_path / "cache", monkeypatch)
        for (seed, step), folder in folders.items():
            copied = folders[1, 200] if (seed, step) == (2, 200) else folder
            started.add(f"owner/tiny-seed{seed}", f"step{step}", copied)
        started.add("owner/tiny-seed1", "main", folders[1, 200])
        started.add("owner/other", "step0", folders[1, 0])
        started.add("stranger/tiny-seed1", "step0", folders[1, 0])
        yield started


SUITE = "hf:owner/tiny-seed*@step*"


def test_names_and_revisions_match_and_listings_alone_are_fetched(server, tmp_path):
    suite = find_suite(SUITE)
    assert list(suite.names) == [f"tiny-seed{seed}@step{step}" for seed in (1, 2) for step in STEPS]
    assert {file.path for file in suite.files["tiny-seed1@step0"]} >= {"config.json", "model.safetensors"}
    assert all("/api/" in path for path in server.fetched())
    assert list(find_suite("hf:owner/tiny-seed1").names) == [
        *["tiny-seed1@main"],
        *[f"tiny-seed1@step{step}" for step in STEPS],
    ]


def test_listings_tell_copies_without_weights(server, capsys):
    assert run(["audit", SUITE, "--strict", "--json", "-"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert [(row["kind"], row["subjects"]) for row in report["findings"]] == [
        ("duplicate", ["tiny-seed1@step200", "tiny-seed2@step200"])
    ]
    assert [row["name"] for row in report["runs"]] == ["tiny-seed1", "tiny-seed2"]
    assert not server.fetched(".safetensors")


def test_main_of_a_suite_may_be_a_copy_of_its_last_step(server, folders):
    assert audit_suite("hf:owner/tiny-seed1")["findings"] == []
    server.add("owner/tiny-seed1", "main", folders[1, 100])
    (finding,) = audit_suite("hf:owner/tiny-seed1")["findings"]
    assert finding["text"] == (
        "tiny-seed1@main holds the same weight files as tiny-seed1@step100, and not those of tiny-seed1@step200, the "
        "last of that run."
    )


@pytest.mark.slow
def test_weights_are_fetched_where_asked_and_tell_more(server, tmp_path):
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "config.json").write_text("{}")
    (pickled / "pytorch_model.bin").write_bytes(b"\x80\x04")
    server.add("owner/tiny-seed2", "step300", pickled)
    report = audit_suite("hf:owner/tiny-seed[12]@step*", weights=True)
    assert report["basis"] == "all weights, read tensor by tensor"
    assert [(row["kind"], row["subjects"]) for row in report["findings"] if row["kind"] == "unreadable"] == [
        ("unreadable", ["tiny-seed2@step300"])
    ]
    assert "no weights in safetensors" in next(row["text"] for row in report["findings"] if row["kind"] == "unreadable")
    # The copy of another run's checkpoint does not continue from this run's initialization: only weights show it.
    assert [row["kind"] for row in report["listing"]] == ["duplicate"]
    by_weights = {row["kind"]: row["subjects"] for row in report["findings"]}
    assert by_weights["duplicate"] == ["tiny-seed1@step200", "tiny-seed2@step200"]
    assert by_weights["parentage"] == ["tiny-seed2@step200"]
    assert not server.fetched(".bin")
    server.asked.clear()
    audit_suite("hf:owner/tiny-seed[12]@step*", weights=True)
    assert all("/api/" in path for path in server.fetched())


def test_weights_are_those_that_were_listed_though_a_branch_moved(server, folders, monkeypatch):
    """Since it was cached, and once more while the suite is listed."""
    cached = open_checkpoint("hf:owner/tiny-seed1@step0").digest()
    listed = server.add("owner/tiny-seed1", "step0", folders[2, 0])
    api = pytest.importorskip("huggingface_hub").HfApi
    ask = api.list_repo_refs

    def moving(client, repository):
        refs = ask(client, repository)
        server.add(repository, "step0", folders[1, 100])
        return refs

    monkeypatch.setattr(api, "list_repo_refs", moving)
    suite = find_suite("hf:owner/tiny-seed1@step0")
    (remote,), (files,) = suite.names.values(), suite.files.values()
    assert remote.revision == listed
    weights = (folders[2, 0] / "model.safetensors").read_bytes()
    assert [file.lfs.sha256 for file in files if file.lfs] == [hashlib.sha256(weights).hexdigest()]
    assert (fetch(remote) / "model.safetensors").read_bytes() == weights
    assert open_checkpoint(str(remote)).digest() == open_checkpoint(folders[2, 0]).digest() != cached


def test_room_is_asked_for_weights_that_are_fetched(server, folders, tmp_path, monkeypatch):
    folder = tmp_path / "twice"
    folder.mkdir()
    for path in folders[1, 0].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "consolidated.safetensors").write_bytes(b"the same weights in another format")
    server.add("owner/twice", "main", folder)
    asked = []

    def note(text, size):
        asked.append(size)
        raise InputError("no room")

    monkeypatch.setattr("bornbiased_jax.lineage.audit.suite.check_room", note)
    with pytest.raises(InputError, match="no room"):
        audit_suite("hf:owner/twice", weights=True)
    assert asked == [(folder / "model.safetensors").stat().st_size]


def test_missing_suite_refused_in_one_sentence(server, refused, tmp_path):
    for name, message in {
        "hf:owner/none*": "the hub has nothing called hf:owner/none*",
        "hf:owner/tiny-seed1@x*": "the hub has nothing called",
        "hf:owner/none": "none of this name",
        "hf:tiny*": "is not of the form hf:OWNER/NAME*@REVISION*",
    }.items():
        told = refused(["audit", name])
        assert told.count("\n") == 1 and message in told
    assert "those of" in refused(["audit", str(tmp_path), "--weights"])
    with pytest.raises(InputError, match="make room"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("bornbiased_jax.checkpoints.hub.shutil.disk_usage", lambda path: type("", (), {"free": 1})())
        audit_suite(SUITE, weights=True)
