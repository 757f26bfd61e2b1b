"""Commands that the docs' cells run in forks of one process do what the program itself does."""

import os
import subprocess

import pytest

from tests.docs import warm


@pytest.fixture
def programs(tmp_path):
    with warm.start(tmp_path) as server:
        yield tmp_path
        server.terminate()


@pytest.mark.slow
def test_a_forked_command_has_the_callers_folder_streams_environment_and_exit_code(programs):
    folder = programs / "work"
    folder.mkdir()

    def bornbiased(words, **environment):
        call = f"PATH={programs}:$PATH; {words}"
        return subprocess.run(
            ["bash", "-c", call], cwd=folder, env=os.environ | environment, capture_output=True, text=True
        )

    shape = "num_layers=1,d_model=16,num_heads=2,d_ff=32,vocab_size=32"
    written = bornbiased(f"bornbiased digest seed:1@gpt2-tiny,{shape} --json here.json | tr a-f A-F")
    assert written.returncode == 0 and written.stdout.strip() == written.stdout.strip().upper()
    assert "commits to" in written.stderr and (folder / "here.json").is_file()
    refused = bornbiased("bornbiased digest absent")
    assert refused.returncode == 2 and "absent does not exist" in refused.stderr and not refused.stdout
    # The environment is that of the call, not of the server's start.
    wide, narrow = (bornbiased("bornbiased digest --help", COLUMNS=columns).stdout for columns in ("100", "60"))
    assert len(wide.splitlines()) < len(narrow.splitlines())
