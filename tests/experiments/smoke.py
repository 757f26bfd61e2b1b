"""Experiments at smoke scale, as the runner would have them: a record as it comes back from disk, and what it shows."""

import json

from bornbiased_jax.experiments import results
from bornbiased_jax.experiments.base import Context
from bornbiased_jax.record import jsonable
from bornbiased_jax.report import figures


def committed(name):
    """Return the committed record of an experiment at scale laptop."""
    record = results.committed(name, "laptop")
    assert record is not None, f"bornbiased reproduce {name} --scale laptop, then collect it"
    return record


def context_of(experiment, work, data=None, **changes):
    """At smoke scale, in a folder of its own below ``work``."""
    settings = {**experiment.settings["smoke"], **changes}
    return Context(scale="smoke", settings=settings, work=work / experiment.name, data=data, quiet=True)


def record_of(experiment, work, data=None, **changes):
    """Run at smoke scale; the record."""
    context = context_of(experiment, work, data, **changes)
    record = {
        "experiment": experiment.name,
        "scale": "smoke",
        "settings": context.settings,
        "data": data,
        "status": "complete",
        "result": jsonable(experiment.run(context)),
        "provenance": {},
    }
    record = json.loads(json.dumps(jsonable(record), allow_nan=False))
    check_shown(experiment, record)
    return record


def check_shown(experiment, record):
    """Every table has rows; of a run that found no model the reason alone is shown."""
    tables, panels, claims = show(experiment, record)
    if record["result"].get("attempted", True):
        assert (tables or panels) and all(table.rows for table in tables)
    else:
        assert not (tables or panels or claims) and experiment.headline(record)


def show(experiment, record):
    """Everything that a page shows, with the figures drawn: tables, panels, claims."""
    with figures.style():
        panels = list(experiment.figures(record))
    for index, panel in enumerate(panels):
        assert figures.svg(panel.figure, f"{experiment.name}-{index}", panel.caption).startswith("<svg")
    assert isinstance(experiment.headline(record), str)
    return list(experiment.tables(record)), panels, list(experiment.claims(record))
