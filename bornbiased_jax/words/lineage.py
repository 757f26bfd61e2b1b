"""What seedprint, whichseed, audit, fingerprint, digest and derive found, in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from bornbiased_jax.audit.finding import INFORMATION, TITLES, Kind
from bornbiased_jax.seedprint.summary import summary
from bornbiased_jax.words.phrases import among, count


def seedprint(value: Mapping[str, Any]) -> list[str]:
    """The verdict's own sentences."""
    return [summary(value)]


def whichseed(value: Mapping[str, Any]) -> list[str]:
    """The seed, how sure it is, and what the search cannot see."""
    of = f"Of {count(value['num_seeds'], 'seed')} searched"
    confirmed = value["confirmed"]
    if value["seed"] is None:
        return [
            f"{of} none is shown to be the birth: {value['reason']}.",
            "A seed outside the range, another framework's seed, or coordinates that were rotated or renumbered stay "
            "unseen.",
        ]
    told = [f"{of}, seed {value['seed']} is the birth: {value['reason']}."]
    if confirmed is not None:
        kept = confirmed["verdict"] == "same-lineage"
        told.append(
            f"The exact test of all weights {'confirms it' if kept else 'does not confirm it'}: {confirmed['reason']}."
        )
    return [*told, "Seeds are those of this package: another framework draws other weights from the same number."]


def audit(value: Mapping[str, Any]) -> list[str]:
    """How many findings of which kind, and how far the tests reach."""
    kinds: Counter[Kind] = Counter(finding["kind"] for finding in value["findings"])
    defects = [f"{TITLES[kind].lower()} ({kinds[kind]})" for kind in TITLES if kind not in INFORMATION and kinds[kind]]
    read = f"{count(len(value['checkpoints']), 'checkpoint')} of {count(len(value['runs']), 'run')}"
    tested = sum(pair["p_value"] is not None for pair in value["pairs"])
    found = [f"{read}: nothing contradicts their labels." if value["clean"] else f"{read}: {among(defects)}."]
    if tested:
        found.append(
            f"{count(tested, 'pair')} were tested in the weights; that any unrelated pair is called related has "
            f"probability {value['alpha']:g} at most over the whole audit."
        )
    else:
        found.append(
            "No pair was tested in the weights: copies and gaps are facts, and shared births were not looked for."
        )
    return found


def fingerprint(value: Mapping[str, Any]) -> list[str]:
    """What was stored and what it is good for."""
    return [
        f"{value['num_outputs']:,} outputs of width {value['width']} are in {value['out']}: what the model answers to "
        "inputs that their digest names.",
        "Two models' fingerprints on the same inputs are compared by `bornbiased seedprint A B`; outputs show the "
        "embedding table rather than the blocks, so that tests in the weights see more.",
    ]


def digest(value: Mapping[str, Any]) -> list[str]:
    """What the digest commits to."""
    return [
        f"{value['digest'][:12]}… commits to {count(len(value['tensors']), 'tensor')} of {value['checkpoint']}, their "
        "numbers and the order of their coordinates.",
        "It proves something once it is published where a date can be proved: then `seedprint --base-digest` holds the "
        "base to it.",
    ]


def derive(value: Mapping[str, Any]) -> list[str]:
    """What was changed, and whether the function is still the same."""
    made = f"{value['out']} is {value['checkpoint']} after {among(list(value['changes']))}."
    if not value["function_preserved"]:
        return [
            made,
            "It computes another function than its parent; what it was born from is known, so that tests can be tried.",
        ]
    moved = value["logit_difference"]
    checked = "" if moved is None else f": the logits moved by {moved:.1g} of their standard deviation"
    return [made, f"It computes the same function as its parent{checked}."]
