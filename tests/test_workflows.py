"""The continuous-integration workflows: what they run exists, what they may do is little, and no registry is named."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
HOST = re.compile(r"://|--(extra.)?index.url|--find.links|\bPIP_\w+|\b[\w-]+\.(com|dev|io|net|org)\b", re.IGNORECASE)

every_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def load(path):
    """Parse a workflow; every scalar stays text, so that the key ``on`` is not read as true."""
    return yaml.load(path.read_text(), Loader=yaml.BaseLoader)


def steps(workflow):
    """List the steps of all jobs."""
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def commands(text):
    """Split a script into its commands, each a tuple of words."""
    lines = text.replace("\\\n", " ").splitlines()
    return {tuple(shlex.split(line)) for line in lines if line.strip() and not line.lstrip().startswith("#")}


def run_commands(path):
    """Collect the commands that the steps of a workflow run."""
    return set().union(*(commands(step["run"]) for step in steps(load(path)) if "run" in step))


def make_targets():
    """Read the Makefile's phony targets."""
    (line,) = re.findall(r"^\.PHONY:(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return set(line.split())


def is_known(command, extras):
    """Tell whether a command is a target of the Makefile, with its variables, or a line of ``.ci/run``."""
    targets = {word for word in command[1:] if "=" not in word}
    return command in extras or (command[0] == "make" and targets <= make_targets())


def test_lint_tests_docs_and_nightly_run_the_makefile_targets():
    targets = {
        path.stem: {word for command in run_commands(path) if command[0] == "make" for word in command[1:]}
        for path in WORKFLOWS
    }
    assert set(targets) == {"lint", "tests", "docs", "nightly"}
    assert targets["lint"] == {"check", "actionlint"} and targets["docs"] == {"docs"}
    assert {"test", "test-slow"} <= targets["tests"] and {"test-all", "mutants"} <= targets["nightly"]


@every_workflow
def test_every_workflow_command_exists(path):
    extras = commands((ROOT / ".ci" / "run").read_text())
    assert {command for command in run_commands(path) if not is_known(command, extras)} == set()


def test_slow_tests_install_the_packages_of_the_ci_script():
    extras = commands((ROOT / ".ci" / "run").read_text())
    installs = {command for command in extras if "install" in command}
    assert len(installs) == 2 and installs <= run_commands(ROOT / ".github" / "workflows" / "tests.yml")


@pytest.mark.parametrize(
    "command", ["make deploy", "make check --always", ".venv/bin/python -m tests.mutants", "curl x"]
)
def test_unknown_commands_are_noticed(command):
    assert not is_known(tuple(command.split()), set())


@every_workflow
def test_no_workflow_names_a_registry_host(path):
    assert HOST.search(path.read_text()) is None


@pytest.mark.parametrize(
    "text", ["https://a/simple", f"pip --{'index'}-url x", "host: registry.example.org", "PIP_INDEX_URL: x"]
)
def test_registry_hosts_are_noticed(text):
    assert HOST.search(text) is not None


@every_workflow
def test_workflows_may_read_only_and_end(path):
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert set(workflow["concurrency"]) == {"group", "cancel-in-progress"}
    for job in workflow["jobs"].values():
        assert "permissions" not in job and 0 < int(job["timeout-minutes"]) <= 350


@every_workflow
def test_actions_are_pinned_and_pip_is_cached_by_the_constraints(path):
    used = [step for step in steps(load(path)) if "uses" in step]
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+(\.\d+)*", step["uses"]) for step in used)
    by_name = {}
    for step in used:
        by_name.setdefault(step["uses"].split("@")[0], []).append(step.get("with", {}))
    jobs = len(load(path)["jobs"])
    assert len(by_name["actions/checkout"]) == len(by_name["actions/setup-python"]) == jobs
    assert all(given["persist-credentials"] == "false" for given in by_name["actions/checkout"])
    for given in by_name["actions/setup-python"]:
        assert (given["cache"], given["cache-dependency-path"]) == ("pip", "constraints.txt")


def test_matrix_covers_the_supported_pythons():
    job = load(ROOT / ".github" / "workflows" / "tests.yml")["jobs"]["test"]
    classifiers = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert job["strategy"]["matrix"]["python"] == classifiers
