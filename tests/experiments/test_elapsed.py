import json
import os
import subprocess
import sys
import time

import pytest

from experiments import elapsed as module
from experiments.elapsed import elapsed

KILLED = """
import os, sys, time
from pathlib import Path
import numpy as np
from experiments import elapsed as module
module.EVERY_S = 0.05
path = Path(sys.argv[1])
with module.elapsed(path, {"work": 1}):
    held = np.ones(40_000_000)  # 320 MB, for the peak
    del held
    time.sleep(0.3)
    while not path.exists():
        time.sleep(0.01)
    os._exit(9)
"""


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr(module, "EVERY_S", 0.01)


def note(path, identity, **changes):
    found = {"identity": identity, "wall_time_s": 100.0, "peak_memory_bytes": 10**12}
    path.write_text(json.dumps({**found, **changes}))
    return path


def wait_for(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_one_call_is_a_plain_measurement(tmp_path):
    with elapsed(tmp_path / "none" / "noted.json", {}) as taken:
        time.sleep(0.05)
    found = taken.to_dict()
    assert found == taken.now.to_dict() and 0.05 <= found["wall_time_s"] < 10 and found["peak_memory_bytes"] > 10**7
    assert not list(tmp_path.iterdir())


def test_what_a_killed_call_took_counts(tmp_path):
    path = tmp_path / "noted.json"
    done = subprocess.run([sys.executable, "-c", KILLED, path], env=dict(os.environ), timeout=60)
    assert done.returncode == 9
    killed = json.loads(path.read_text())
    assert killed["wall_time_s"] > 0.2 and killed["peak_memory_bytes"] > 320_000_000
    with elapsed(path, {"work": 1}) as taken:
        assert path.exists()
        time.sleep(0.05)
    found = taken.to_dict()
    assert found["wall_time_s"] == pytest.approx(killed["wall_time_s"] + taken.now.wall_time_s, abs=0.002)
    assert found["peak_memory_bytes"] == max(killed["peak_memory_bytes"], taken.now.peak_memory_bytes)
    assert found["wall_time_calls"] == 2 and not path.exists()


def test_a_third_call_goes_on_from_both(tmp_path, often):
    path = note(tmp_path / "noted.json", {}, wall_time_calls=2)
    with pytest.raises(KeyboardInterrupt), elapsed(path, {}):
        wait_for(lambda: json.loads(path.read_text())["wall_time_s"] > 100)
        raise KeyboardInterrupt
    noted = json.loads(path.read_text())
    assert (noted["wall_time_calls"], noted["peak_memory_bytes"]) == (3, 10**12) and 100 < noted["wall_time_s"] < 130


@pytest.mark.parametrize("text", [None, "{", "[]", '{"identity": {}}', '{"identity": {}, "wall_time_s": null}'])
def test_what_is_of_other_work_or_damaged_is_not_counted(tmp_path, text):
    path = note(tmp_path / "noted.json", {"work": 2})
    if text is not None:
        path.write_text(text)
    with elapsed(path, {"work": 1} if text is None else {}) as taken:
        pass
    assert taken.to_dict()["wall_time_s"] < 10 and taken.calls == 1 and not path.exists()
