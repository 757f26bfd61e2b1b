"""What reproduce, status and doctor did, in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bornbiased_jax.words.phrases import among, count


def reproduce(value: Mapping[str, Any]) -> list[str]:
    """The leading result, and how many there are."""
    if "experiments" in value:
        return [
            f"{count(len(value['experiments']), 'experiment')} at scale {value['scale']}, each with what it costs.",
            "`bornbiased reproduce NAME` runs one; what was run before is kept.",
        ]
    done, kept, failed = (len(value[name]) for name in ("done", "kept", "failed"))
    found = list(value.get("headlines", {}).values())[:1]
    found.append(
        f"{count(done + kept, 'experiment')} {'has' if done + kept == 1 else 'have'} a result, {done} of them made now"
        + (f"; {count(failed, 'other')} {'has' if failed == 1 else 'have'} none." if failed else ".")
    )
    found.append(f"{value['page']} shows each beside what was printed and what theory says.")
    return found


def status(value: Mapping[str, Any]) -> list[str]:
    """How much of the work in a ledger is done, and what is to be done about the rest."""
    done, asked, failed = value["done"], value["asked"], value["failed"]
    found = [
        f"{done:,} of {count(asked, 'chunk')} are done, in {count(len(value['pages']), 'page')} of {value['folder']}."
    ]
    if failed:
        found.append(f"{failed:,} failed, for the reasons above; the command that asked for them tries them again.")
    elif done < asked:
        found.append("The command that asked for the others goes on with them when it is given again.")
    else:
        found.append("Nothing is left to compute.")
    return found


def doctor(value: Mapping[str, Any]) -> list[str]:
    """Whether anything is wrong, and which extras lack something."""
    lacking = [name for name, extra in value["extras"].items() if not extra["installed"]]
    problems = value["problems"]
    whole = "Nothing is wrong here" if not problems else f"{count(len(problems), 'thing')} to mend, named above"
    backend = f"JAX computes on {value['backend']}" if value["backend"] else "JAX has no device to compute on"
    found = [f"{whole}; {backend}, with {count(value['cores'], 'core')}."]
    if lacking:
        found.append(f"Not complete: {among(lacking)}; `pip install 'bornbiased-jax[{lacking[0]}]'` adds the first.")
    else:
        found.append("What every extra needs is installed.")
    return found
