"""What sinks and intervene found, in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bornbiased_jax.words.phrases import count, percent


def sinks(value: Mapping[str, Any]) -> list[str]:
    """How many heads are sinks, how sure that is, and what is behind the largest."""
    length, rate = max(value["sink_rate"].items(), key=lambda item: int(item[0]))
    std, sequences = value.get("sink_rate_std", {}).get(length), value["num_sequences"]
    # Over sequences, of their mean.
    error = "" if std is None or sequences < 2 else f", give or take {percent(std / sequences**0.5)}"
    found = [
        f"{percent(rate)} of the heads{error}, put more than {value['epsilon']:g} of their attention on position "
        f"{value['position']} at T = {length}: they are sinks.",
        f"That is over {count(sequences, 'window')} of one text; heads are the model's own and no sample.",
    ]
    neurons = [row for row in value.get("super_neurons", ()) if row["super"]]
    if neurons:
        first = neurons[0]
        found.append(
            f"{count(len(neurons), 'super neuron')} could be behind it, the first in block {first['block']} (neuron "
            f"{first['neuron']}): `bornbiased intervene … --silence blocks/{first['block']}/mlp:{first['neuron']}` "
            "tries that."
        )
    return found


def intervene(value: Mapping[str, Any]) -> list[str]:
    """What is left of the sinks, and what it cost."""
    before, cost = value["before"], value["loss"] - value["before"]["loss"]
    moved = value["sink_rate"] - before["sink_rate"]
    what = "are fewer" if moved < 0 else "are more" if moved > 0 else "are as many"
    return [
        f"Sinks at position {value['position']} {what}: {percent(before['sink_rate'])} of the heads as it is, "
        f"{percent(value['sink_rate'])} after the intervention.",
        f"The loss moved by {cost:+.4f} nats a token, to {value['loss']:.4f}; both are means over the same windows of "
        "one text.",
    ]
