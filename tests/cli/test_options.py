"""Every option of every command on its way from the command line to the function that must receive it.

One row an option (``option_rows.py``): what is typed, where it must arrive, and as what. The function is replaced by
one that notes its arguments and stops the command. A parameter without a row fails
:func:`test_every_parameter_has_a_row`.
"""

import contextlib
import inspect
import shlex
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import pytest

from bornbiased_jax.cli.main import run
from bornbiased_jax.config import preset
from bornbiased_jax.lineage.fingerprint_pass import WeightsDigests
from bornbiased_jax.lineage.verdict import undefined
from tests.cli.commands import commands, locate, replace
from tests.cli.option_rows import BUILD_MESH, CALLS, COMPARE, DERIVE, INSTEAD, NAMED, OPEN, PRINT, ROLES, ROWS


class Reached(BaseException):
    """Ends a command where its function would have begun."""


def test_every_parameter_has_a_row():
    """Arguments by <name>, options by one of their spellings, flags by both."""
    assert set(commands()) == set(ROWS) == set(CALLS)
    for path, command in commands().items():
        typed = {word for extra, _, _ in ROWS[path] for word in extra.split()[:1]}
        typed |= {word for extra, _, _ in ROWS[path] for word in extra.split() if word.startswith("--")}
        typed |= {option for name, option in INSTEAD if name == path}
        for parameter in command.params:
            if isinstance(parameter, click.Argument):
                assert f"<{parameter.name}>" in typed, f"{path}: argument {parameter.name} has no row"
            elif not parameter.is_eager:
                assert parameter.opts[0] in typed, f"{path}: option {parameter.opts[0]} has no row"
                assert not parameter.secondary_opts or parameter.secondary_opts[0] in typed, path


def test_every_number_has_a_range():
    """Of what is typed; the values of --set and of lists of lengths have theirs as well."""
    for path, command in commands().items():
        for parameter in command.params:
            assert not isinstance(parameter.type, (click.types.IntParamType, click.types.FloatParamType)), (
                f"{path} {parameter.opts[0]}: give it a range, options.Ranged(...)"
            )


def value_of(arguments: dict[str, Any], path: str) -> Any:
    """``a.b`` of the bound arguments; extra keywords count as arguments."""
    name, *rest = path.split(".")
    value = arguments[name]
    for part in rest:
        value = value[int(part)] if part.isdecimal() else getattr(value, part)
    return value


class FakeTokenizer(str):
    """A tokenizer that is told apart by its words."""

    vocab_size = 4096
    name = "its name"
    digest = "its digest"
    eos_id = 7


def fake_checkpoint(reference: str, *unused: Any, **ignored: Any) -> SimpleNamespace:
    """Make an opened model without weights, as far as the commands use it."""
    return SimpleNamespace(
        cfg=preset("gpt2-tiny"),
        config=preset("gpt2-tiny"),
        params=lambda: f"weights of {reference}",
        context=64,
        reference=reference,
        description=reference,
        tokenizer=FakeTokenizer("its tokenizer"),
        info={},
        tokenizer_files=(),
        files=(),
        notes=(),
        digest=lambda: "digest",
        by_role=lambda: SimpleNamespace(config=None),
        close=lambda: None,
    )


def fake_print(checkpoint: Any, inputs: Any, *unused: Any, **choices: Any) -> SimpleNamespace:
    """A fingerprint that knows whose it is."""
    outputs_ND = np.zeros((inputs.num_inputs, checkpoint.cfg.d_model), np.float32)
    about = dict(layer=None, config=checkpoint.cfg.to_dict(), weights_digest="digest")
    return SimpleNamespace(outputs_ND=outputs_ND, inputs=inputs.describe(), source=checkpoint.reference, **about)


EVERY = [
    pytest.param(
        f"{CALLS[path]} {'' if typed.startswith('<') else typed}".strip(),
        target,
        expected,
        id=f"{path} {typed.strip()} {target.rpartition(':')[2]}".replace(" ", "_"),
    )
    for path, rows in ROWS.items()
    for typed, target, expected in rows
]
EVERY += [pytest.param(*row, id=f"{path} {option}".replace(" ", "_")) for (path, option), row in INSTEAD.items()]


@pytest.mark.parametrize(("call", "target", "expected"), EVERY)
def test_options_arrive(call, target, expected, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    # What stands before the function in question does nothing; what it is handed is told apart by its words.
    stubs = {
        "bornbiased_jax.derive.tune:open_checkpoint": fake_checkpoint,
        OPEN: fake_checkpoint,
        "bornbiased_jax.training.initial:open_checkpoint": fake_checkpoint,
        "bornbiased_jax.training.initial:parse_ref": lambda reference: SimpleNamespace(kind="gguf", seed=None),
        PRINT: fake_print,
        "bornbiased_jax.lineage.compared_model:weights_digests": lambda roles: WeightsDigests({}, {}),
        ROLES: lambda ref, **choices: SimpleNamespace(roles=(), config=None),
        BUILD_MESH: lambda sizes: "the mesh",
        NAMED: lambda *unused, **options: "the engine",
        "bornbiased_jax.probes.subject:from_weights": lambda cfg, *unused: SimpleNamespace(cfg=cfg),
        DERIVE: lambda *unused: fake_checkpoint("changed weights"),
        "bornbiased_jax.text:tokenizer_for": lambda name, vocab_size: FakeTokenizer(name),
        COMPARE: lambda *unused, **options: undefined("permutation", "", num_inputs=4, alpha=0.01),
    }
    module, name = locate(target)
    signature = inspect.signature(getattr(module, name))
    for place, stub in stubs.items():
        replace(monkeypatch, place, stub)
    seen: dict[str, Any] = {}

    def reached(*arguments: Any, **keywords: Any) -> None:
        bound = signature.bind(*arguments, **keywords)
        bound.apply_defaults()
        for parameter, value in bound.arguments.items():
            kind = signature.parameters[parameter].kind
            seen.update(value if kind is inspect.Parameter.VAR_KEYWORD else {parameter: value})
        raise Reached

    replace(monkeypatch, target, reached)
    with contextlib.suppress(Reached):
        pytest.fail(f"{target} was not reached: exit code {run(shlex.split(call))}")
    for where, value in expected.items():
        actual = value_of(seen, where)
        assert (str(actual) if isinstance(value, str) else actual) == value, where
