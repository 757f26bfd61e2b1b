"""Experiments at smoke scale, as the runner would have them: a record as it comes back from disk, and what it shows."""

import json

from bornbiased_jax.record import jsonable
from bornbiased_jax.report import figures
from experiments.base import Context


def context_of(experiment, work, data=None, **changes):
    """At smoke scale, in a folder of its own below ``work``."""
    settings = {**experiment.settings["smoke"], **changes}
    return Context(scale="smoke", settings=settings, work=work / experiment.name, data=data, quiet=True)


def record_of(experiment, work, data=None, scale="smoke", **changes):
    """Run at smoke scale; the record, which may say another scale."""
    context = context_of(experiment, work, data, **changes)
    record = {
        "experiment": experiment.name,
        "scale": scale,
        "settings": context.settings,
        "data": data,
        "status": "complete",
        "result": jsonable(experiment.run(context)),
        "provenance": {},
    }
    return json.loads(json.dumps(jsonable(record), allow_nan=False))


def show(experiment, record):
    """Everything that a page shows, with the figures drawn: tables, panels, claims."""
    with figures.style():
        panels = list(experiment.figures(record))
    for index, panel in enumerate(panels):
        assert figures.svg(panel.figure, f"{experiment.name}-{index}", panel.caption).startswith("<svg")
    assert isinstance(experiment.headline(record), str)
    return list(experiment.tables(record)), panels, list(experiment.claims(record))
