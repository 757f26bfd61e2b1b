"""Sentences of the commands whose results have no class, each from the object that ``--json`` writes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from bornbiased_jax.lineage.audit.finding import INFORMATION, TITLES, Kind
from bornbiased_jax.results.phrases import among, count, percent, rounded


def models(value: Mapping[str, Any]) -> list[str]:
    """Say how many presets there are and how large they are."""
    sizes = {name: preset["num_parameters"] for name, preset in value["models"].items()}
    small, large = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
    return [
        f"{count(len(sizes), 'preset')}, from {small} ({sizes[small]:,} parameters) to {large} ({sizes[large]:,}).",
        f"A preset is an architecture without weights: a seed gives it those, and --set changes any of its "
        f"{len(value['fields'])} fields.",
    ]


def prediction(value: Mapping[str, Any]) -> list[str]:
    """Say which cosine and top-1 fraction theory expects, and for which seeds its band holds."""
    cosine, std = value["inter_cosine_by_layer"][-1], value["inter_cosine_by_layer_std"][-1]
    return [
        f"Theory expects unrelated inputs to end at a cosine of {cosine:.3f} after the last block, give or take "
        f"{std:.3f} from seed to seed.",
        f"It expects {percent(value['top1_share_mean'])} of the inputs to get one and the same token; of seeds with "
        f"fresh embeddings 80% lie between {percent(value['top1_share_p10'])} and {percent(value['top1_share_p90'])}.",
        "Nothing was built, sampled or fitted; `probe … --theory` sets a measurement beside it, and conditions on the "
        "one embedding table that `probe` holds fixed.",
    ]


def whichseed(value: Mapping[str, Any]) -> list[str]:
    """Say which seed it is, how sure that is, and what the search cannot see."""
    searched = f"Of {count(value['num_seeds'], 'seed')} searched"
    confirmed = value["confirmed"]
    if value["seed"] is None:
        return [
            f"{searched} none is shown to be the birth: {value['reason']}.",
            "A seed outside the range, another framework's seed, or coordinates that were rotated or renumbered stay "
            "unseen.",
        ]
    sentences = [f"{searched}, seed {value['seed']} is the birth: {value['reason']}."]
    if confirmed is not None:
        decision = "confirms it" if confirmed["verdict"] == "same-lineage" else "does not confirm it"
        sentences.append(f"The exact test of all weights {decision}: {confirmed['reason']}.")
    return [*sentences, "Seeds are those of this package: another framework draws other weights from the same number."]


def audit(value: Mapping[str, Any]) -> list[str]:
    """Say how many findings of which kind there are, and how far the tests reach."""
    kinds: Counter[Kind] = Counter(finding["kind"] for finding in value["findings"])
    defects = [f"{TITLES[kind].lower()} ({kinds[kind]})" for kind in TITLES if kind not in INFORMATION and kinds[kind]]
    checkpoints = f"{count(len(value['checkpoints']), 'checkpoint')} of {count(len(value['runs']), 'run')}"
    tested = sum(pair["p_value"] is not None for pair in value["pairs"])
    scope = "No pair was tested in the weights: copies and gaps are facts, and shared births were not looked for."
    if tested:
        scope = (
            f"{count(tested, 'pair')} were tested in the weights; that any unrelated pair is called related has "
            f"probability {value['alpha']:g} at most over the whole audit."
        )
    contradictions = "nothing contradicts their labels" if value["clean"] else among(defects)
    return [f"{checkpoints}: {contradictions}.", scope]


def fingerprint_of_weights(value: Mapping[str, Any]) -> list[str]:
    """Say what was stored, and what of the model repeats itself."""
    lines = [
        f"Sketches, digests and statistics of {count(value['num_tensors'], 'tensor')} are in {value['out']}, and no "
        "weights; its payload has the digest "
        f"{value['digest'][:12]}…, which is a commitment once it is published where a date can be proved.",
    ]
    equal = [row for row in value["repeats"] if row["num_equal"]]
    if equal:
        named = " and ".join(f"{row['num_equal']:,} of its {row['labels']}" for row in equal)
        lines.append(f"The model repeats itself: {named} equal earlier ones.")
    return lines


def fingerprint_of_outputs(value: Mapping[str, Any]) -> list[str]:
    """Say what was stored and what it is good for."""
    return [
        f"{value['num_outputs']:,} outputs of width {value['width']} are in {value['out']}: what the model answers to "
        "inputs that their digest names.",
        "Two models' fingerprints on the same inputs are compared by `bornbiased seedprint A B`; outputs show the "
        "embedding table rather than the blocks, so that tests in the weights see more.",
    ]


def init_scheme(value: Mapping[str, Any]) -> list[str]:
    """Name the scheme that an untrained model was drawn by."""
    nearest, runner_up = value["nearest_scheme"], value["runner_up"]
    if nearest is None:
        return ["No named scheme can have drawn these weights."]
    if value["fits"]:
        return [f"Drawn by {nearest}, as far as moments tell."]
    then = f", then {runner_up}" if runner_up else ""
    return [f"Nearest is {nearest}{then}, but not every group fits it."]


def digest(value: Mapping[str, Any]) -> list[str]:
    """Say what the digest commits to."""
    return [
        f"{value['digest'][:12]}… commits to {count(len(value['tensors']), 'tensor')} of {value['checkpoint']}, their "
        "numbers and the order of their coordinates.",
        "It proves something once it is published where a date can be proved: then `seedprint --base-digest` holds the "
        "base to it.",
    ]


def derive(value: Mapping[str, Any]) -> list[str]:
    """Say what was changed, and whether the function is still the same."""
    origin = f"{value['out']} is {value['checkpoint']} after {among(list(value['changes']))}."
    if not value["function_preserved"]:
        return [
            origin,
            "It computes another function than its parent; what it was born from is known, so that tests can be tried.",
        ]
    difference = value["logit_difference"]
    check = "" if difference is None else f": the logits moved by {difference:.1g} of their standard deviation"
    return [origin, f"It computes the same function as its parent{check}."]


def runs(value: Mapping[str, Any]) -> list[str]:
    """Say how many runs there are, and how many are finished."""
    finished = sum(run["finished"] for run in value["runs"])
    open_runs = len(value["runs"]) - finished
    rest = "each resumes when its command is given again" if open_runs else "none is left to resume"
    return [
        f"{count(len(value['runs']), 'run')}, {finished} finished and {open_runs} not: {rest}.",
        "A run opens as PATH@seed=N,step=N wherever a checkpoint is asked for; losses are nats a token of training "
        "text.",
    ]


def plot(value: Mapping[str, Any]) -> list[str]:
    """Say what the image shows."""
    return [
        f"{value['image']} shows loss, learning rate, gradient norm and speed of {value['run']} by step.",
        "The loss is that of training text, each seed a curve; seeds that see the same data rise and fall together.",
    ]


def export(value: Mapping[str, Any]) -> list[str]:
    """Say what was written."""
    if "base" in value:
        return [
            f"{value['directory']} holds the LoRA adapter of {value['base']} alone, in PEFT's layout.",
            "PEFT opens it beside the base; `bornbiased derive --change lora:DIR` merges it.",
        ]
    return [
        f"{value['directory']} is {value['checkpoint']} as a {value['family']} model that transformers opens, "
        f"{'with its tokenizer' if value['tokenizer'] else 'without a tokenizer'}.",
        f"Its weights are the same numbers: digest {value['digest'][:12]}…",
    ]


def evaluate(value: Mapping[str, Any]) -> list[str]:
    """Say what the perplexity means, over how much text, and whether that was training text."""
    perplexity = value["perplexity"]
    choices = rounded(perplexity) if math.isfinite(perplexity) else "more than any float can count"
    sentences = [
        f"Perplexity {choices}: at each token the model is as undecided as among {choices} equally likely ones, at a "
        f"context of {value['context']:,} tokens.",
        f"That is a mean over {value['num_tokens']:,} predicted tokens of {value['num_sequences']:,} sequences.",
    ]
    if value["training_text"] and value.get("step", 1):
        sentences.append(
            "The run was trained on this text: the number says how well it is remembered, not how well text is "
            "modelled."
        )
    return sentences


def generate(value: Mapping[str, Any]) -> list[str]:
    """Say how many tokens there are, and that they are the likeliest."""
    return [
        f"{count(len(value['ids']), 'token')} with the prompt, each the likeliest after those before it.",
        "The same model and prompt give the same continuation: nothing is drawn.",
    ]


def parity(value: Mapping[str, Any]) -> list[str]:
    """Say how far the logits lie apart, as a fraction of their standard deviation."""
    largest, std = value["max_abs_error"], value["logit_std"]
    relative = largest / std if std else math.inf
    return [
        f"Over {value['num_tokens']:,} positions the logits differ from those of transformers {value['transformers']} "
        f"by {largest:.2g} at most, {relative:.1g} of their standard deviation.",
        f"{value['top1_agreement']:.1%} of the predicted tokens are the same; rounding in another order moves logits "
        "by far less than their own size, a wrong architecture does not.",
    ]


def reproduce(value: Mapping[str, Any]) -> list[str]:
    """Give the leading result, and say how many there are."""
    if "experiments" in value:
        return [
            f"{count(len(value['experiments']), 'experiment')} at scale {value['scale']}, each with what it costs.",
            "`bornbiased reproduce NAME` runs one; what was run before is kept.",
        ]
    num_done, num_failed = len(value["done"]), len(value["failed"])
    num_results = num_done + len(value["kept"])
    without = f"; {count(num_failed, 'other')} {'has' if num_failed == 1 else 'have'} none" if num_failed else ""
    return [
        *list(value.get("headlines", {}).values())[:1],
        f"{count(num_results, 'experiment')} {'has' if num_results == 1 else 'have'} a result, {num_done} of them made "
        f"now{without}.",
        f"{value['page']} shows each beside what was printed and what theory says.",
    ]


def status(value: Mapping[str, Any]) -> list[str]:
    """Say how many chunks of a store are done, and how to compute the rest."""
    chunks, pages = count(value["asked"], "chunk"), count(len(value["pages"]), "page")
    remedy = "Nothing is left to compute."
    if value["failed"]:
        remedy = f"{value['failed']:,} failed, for the reasons above; the command that asked for them tries them again."
    elif value["done"] < value["asked"]:
        remedy = "The command that asked for the others goes on with them when it is given again."
    return [f"{value['done']:,} of {chunks} are done, in {pages} of {value['folder']}.", remedy]


def doctor(value: Mapping[str, Any]) -> list[str]:
    """Say whether anything is wrong, and which extras lack something."""
    incomplete = [name for name, extra in value["extras"].items() if not extra["installed"]]
    problems = value["problems"]
    state = "Nothing is wrong here" if not problems else f"{count(len(problems), 'thing')} to mend, named above"
    backend = f"JAX computes on {value['backend']}" if value["backend"] else "JAX has no device to compute on"
    extras = "What every extra needs is installed."
    if incomplete:
        extras = f"Not complete: {among(incomplete)}; `pip install 'bornbiased-jax[{incomplete[0]}]'` adds the first."
    return [f"{state}; {backend}, with {count(value['cores'], 'core')}.", extras]


def scaling(report: Mapping[str, Any]) -> list[str]:
    """Say whether activations keep their size over widths as under muP, or which first do not."""
    widths = f"{min(report['widths'])} to {max(report['widths'])}"
    first: dict[str, Mapping[str, Any]] = {}
    for row in report["rows"]:
        if not row["flat"]:
            first.setdefault(row["activation"], row)
    if not first:
        return [
            f"muP holds: from width {widths} nothing shows that an activation grows or vanishes with width, at any "
            f"step and over {report['num_seeds']} seeds."
        ]
    parts = [
        f"{name} {'grows' if row['slope'] > 0 else 'vanishes'} from step {row['step']} (slope {row['slope']:.2f}, "
        f"95% interval {row['interval'][0]:.2f} to {row['interval'][1]:.2f})"
        for name, row in first.items()
    ]
    return [f"muP does not hold: from width {widths} {'; '.join(parts)}."]


def diagram(report: Mapping[str, Any], page: str) -> list[str]:
    """Say where the page of a trainability diagram is, and what its planes are over."""
    planes = " and ".join(f"({report[name]['x']}, {report[name]['y']})" for name in ("depth", "attention"))
    return [f"{page} shows contraction, gradient ratio and attention entropy over {planes}; nothing was sampled."]
