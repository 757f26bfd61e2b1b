"""Golden reports of ``bornbiased sinks`` and ``bornbiased intervene``: every edit, every rounding, every mitigation."""

import functools
import math

from tests.golden.calls import answer, empty_folder, flat, generated_text, overwrite_weights
from tests.golden.record import NIGHTLY, Case, Tolerance, Value, Values, read

# Between the flags of the tests and those of users no float moves by more than 1e-6 of itself or 1e-8, save where
# numbers are rounded: what lies within float32's error of a boundary may go to the other side, which moved one loss of
# 72 by 1.5e-5 of itself and one divergence by 3e-5. Three times that is allowed.
TOLERANCE = Tolerance(relative=1e-4, absolute=1e-7)
# How it was called, and of what model: keys of commands, which the module commands holds.
ABOUT = ("command", "model", "provenance")
LEFT_OUT = ("checkpoint", "text", *ABOUT)

SIZES = "num_layers=2,d_model=32,d_ff=48,vocab_size=256,max_seq_len=64"
INITIAL = f"seed:42@llama-tiny,{SIZES},num_kv_heads=2"
TEXT = "--text text.txt --tokenizer bytes --quiet"
# Six sequences of 24 tokens.
NUM_PREDICTIONS = 6 * 23
REPORT = f"{TEXT} --lengths 8,24 --num-sequences 6 --epsilon 0.16"


def _measured(line: str) -> Values:
    with empty_folder() as place:
        (place / "text.txt").write_text(generated_text(300))
        answer(f"export {INITIAL} model")
        overwrite_weights("model")
        return flat(answer(line), without=LEFT_OUT)


def _rounded(line: str) -> Values:
    """Return the costs of rounding: losses as they are, a divergence as its exponential.

    Small numbers move by a tenth of themselves when one activation goes to the other side of a boundary, so the
    differences of losses are left out.
    """
    values: dict[str, Value] = {}
    for name, value in _measured(line).items():
        key = name.rpartition(".")[2]
        if key == "kl_median" and isinstance(value, float):
            values[f"{name}_exponential"] = math.exp(value)
        elif key not in ("delta_nats", "delta_interval", "d_sink"):
            values[name] = value
    return values


def _one_prediction() -> dict[str, float]:
    """Allow one of a cell's predictions the other of two tokens whose logits a boundary of rounding nearly ties.

    Of 72 cells one prediction of one cell moved between two CPUs; losses and divergences hold the cell otherwise.
    """
    return {name: 1.001 / NUM_PREDICTIONS for name in read("sinks")["rounding"] if name.endswith(".same_top1")}


def _mitigated(fields: str) -> Values:
    """Report on initial weights with other fields, which no family of Hugging Face has; without its longest lists."""
    with empty_folder() as place:
        (place / "text.txt").write_text(generated_text(300))
        report = answer(f"sinks {INITIAL}{fields} {REPORT}")
        return flat(report, without=(*LEFT_OUT, "weights_digest", "super_neurons", "top_channels", "pooled"))


def _case(line: str, marks: tuple[str, ...] = ()) -> Case:
    return Case(functools.partial(_measured, line), marks)


ROUNDINGS = "w8a8,w6a6,w4a4,a8,w4,kv8,kv4,w4a8kv4"
EDITS = {
    "silence": "--silence blocks/1/mlp:3 --silence blocks/2/mlp:40",
    "write": "--write blocks/1/mlp:3@5 --position 5",
    "write-back": "--write blocks/1/mlp:3@1",
    "clear": "--clear 7",
    "clear-after-a-block": "--clear 7@1 --clear 30@2",
    "first-token": "--first-token 9",
    "together": "--silence blocks/2/mlp:40 --clear 7@1 --first-token 9 --position 2",
}
MITIGATIONS = {
    "plain": "",
    "window": ",window=5",
    "qk-norm": ",qk_norm=true",
    **{f"kernel-{name}": f",attention_kernel={name}" for name in ("sigmoid", "softpick", "clipped", "centred")},
    **{f"sink-logit-{name}": f",sink_logit={name}" for name in ("zero", "learned")},
    **{f"positional-scale-{name}": f",positional_scale={name}" for name in ("amplify", "attenuate")},
    "head-norm": ",head_norm=true",
    **{f"output-gate-{name}": f",output_gate={name}" for name in ("headwise", "elementwise", "value")},
    "together": ",sink_logit=learned,positional_scale=amplify,head_norm=true,output_gate=headwise",
}
CASES = {
    "report": _case(f"sinks model {REPORT}"),
    "report-streamed": _case(f"sinks model {REPORT} --stream --scratch scratch", NIGHTLY),
    "report-of-position-2": _case(
        f"sinks model {REPORT} --no-details --position 2 --convention rows_from_k --threshold average --normalise"
    ),
    "rounding": Case(
        functools.partial(
            _rounded,
            f"sinks model {REPORT} --no-details --quantise {ROUNDINGS} --granularity tensor,token,channel"
            " --keep-sinks 0,1,4",
        ),
        marks=NIGHTLY,
        rounding=_one_prediction,
    ),
    "rolling-cache": _case(f"sinks model {REPORT} --no-details --streaming 6 --keep-sinks 0,1,4"),
    **{
        f"intervene-{name}": _case(
            f"intervene model {TEXT} --length 24 --num-sequences 6 --epsilon 0.16 {words}",
            () if name == "together" else ("slow",),
        )
        for name, words in EDITS.items()
    },
    # Before a merge all of them at once.
    **{
        f"mitigation-{name}": Case(
            functools.partial(_mitigated, fields), marks=("slow",) if name == "together" else NIGHTLY
        )
        for name, fields in MITIGATIONS.items()
    },
}
