"""``bornbiased status``."""

from __future__ import annotations

from typing import Any

import click

from bornbiased_jax.cli import options


@click.command("status")
@click.argument("directory", metavar="DIR")
@options.result_options
def status(directory: str, json_file: str | None) -> None:
    """How far is the work that a store keeps (--resume DIR), how fast does it go, and what failed?

    \b
    Example:
      bornbiased status out/probes
    """
    from bornbiased_jax.results import Listing, sentences
    from bornbiased_jax.store import status as look

    options.prepare_json(json_file)
    state = look(directory)
    columns = ["page", "chunks", "failed", "chunks/min", "left", "last one ago", "what"]
    rows = [_row(page) for page in state["pages"]]
    failures = [f"{chunk}: {reason}" for page in state["pages"] for chunk, reason in page["failures"].items()]
    table = Listing("Chunks done of those asked for", columns, rows, "\n".join(failures))
    options.print_result(state, [table], sentences.status(state), json_file)


def _row(page: Any) -> list[str]:
    from bornbiased_jax.progress import duration

    def time(seconds: float | None) -> str:
        return "–" if seconds is None else duration(seconds)

    rate = page["per_minute"]
    about = _about(page["settings"]) + ("" if page["same_code"] else " (made by other code)")
    return [
        page["page"].rpartition("/")[2],
        f"{page['done']:,} of {page['asked']:,}",
        str(page["failed"]),
        "–" if rate is None else f"{rate:.3g}",
        time(page["seconds_left"]),
        time(page.get("seconds_since_last")),
        about,
    ]


def _about(settings: dict[str, Any]) -> str:
    """Describe the sizes among the settings, for a reader."""
    model, inputs = settings.get("subject", {}).get("model", {}), settings.get("inputs", {})
    parts = [f"{model[name]} {name}" for name in ("num_layers", "d_model") if name in model]
    return ", ".join(parts + [f"{name} {inputs[name]}" for name in ("seq_len", "num_inputs") if name in inputs])
