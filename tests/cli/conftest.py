"""Commands as tests call them."""

import json

import pytest

from bornbiased_jax.cli.main import run


@pytest.fixture
def seedprint(capsys):
    """Call ``bornbiased seedprint`` and return the JSON object that it prints."""

    def call(*arguments):
        assert run(["seedprint", *arguments, "--quiet", "--json", "-"]) == 0
        return json.loads(capsys.readouterr().out)

    return call
