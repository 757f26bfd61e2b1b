"""Training runs of this package are audited as they lie."""

import pytest

from bornbiased_jax.cli.main import run
from bornbiased_jax.lineage.audit.audit import audit_folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs") / "a"
    sizes = "num_layers=1 num_heads=2 d_model=32 d_ff=32 vocab_size=256".split()
    call = "pretrain --model llama-tiny --data builtin:prose --steps 6 --seeds 1,2 --checkpoint-every 2 --context 16"
    call += " --batch-size 2 --tokenizer bytes --quiet " + " ".join(f"--set {size}" for size in sizes)
    assert run([*call.split(), "--out", str(place)]) == 0
    return place


@pytest.mark.slow
def test_a_run_is_clean_and_its_record_tells(trained):
    for place in (trained, trained.parent):
        report = audit_folder(place)
        assert report["clean"], report["findings"]
        assert [row["steps"] for row in report["runs"]] == [[0, 2, 4, 6]] * 2
        first, second = (row["name"] for row in report["runs"])
        assert report["runs"][0]["shares_data_with"] == [second] and report["runs"][0]["data"]["tokens_digest"]
        directed = [edge for edge in report["graph"]["edges"] if edge["from"] is not None]
        assert directed and all("step=0" not in edge["to"] and edge["direction"] == "run record" for edge in directed)


@pytest.mark.slow
def test_a_damaged_checkpoint_of_a_run_leaves_the_others(trained, tmp_path):
    import shutil

    place = tmp_path / "a"
    shutil.copytree(trained, place)
    for path in (place / "checkpoints" / "4").rglob("*"):
        if path.is_file() and path.stat().st_size > 2000:
            path.write_bytes(path.read_bytes()[:100])
    report = audit_folder(place)
    assert {finding["kind"] for finding in report["findings"]} == {"unreadable"}
    assert {subject for finding in report["findings"] for subject in finding["subjects"]} == {
        "seed=1,step=4",
        "seed=2,step=4",
    }
