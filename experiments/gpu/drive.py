"""Take the steps in turn, each in a process of its own, until all are made or the time is up."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bornbiased_jax import files, progress
from bornbiased_jax.errors import InputError
from bornbiased_jax.record import git_revision, library_versions
from experiments.gpu import archive
from experiments.gpu.step import PATIENCE, Place, Step

ROOT = Path(__file__).resolve().parents[2]
RESERVE = 10.0
"""Seconds kept for the archive and for ending a process."""
GRACE = 5.0
"""Seconds that a process has between SIGTERM and SIGKILL."""
LEAST = {"gpu": 60.0, "smoke": 900.0}
"""Seconds that a step may take whatever was thought, which is of a GPU: small steps on a busy CPU may take longer."""
_POLL = 0.1
_LOG_BYTES = 1 << 16

COMPLETE, FAILED, SKIPPED, CUT = "complete", "failed", "skipped", "cut"
THERE, NO_TIME = "there", "no time"


@dataclasses.dataclass
class Call:
    """One call of the command.

    Attributes:
        out: the folder of records and work.
        target: the archive.
        scale: "smoke" or "gpu".
        end: when the last step must have ended, on the monotonic clock.
        asked_to_stop: the signal that came, or None.
        rows: of the summary, by step.
    """

    out: Path
    target: Path
    scale: str
    end: float
    asked_to_stop: int | None = None
    rows: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)

    @property
    def left(self) -> float:
        """Seconds until the end; none after a signal."""
        return 0.0 if self.asked_to_stop is not None else self.end - time.monotonic()


def run(
    steps: Sequence[Step],
    out: Path,
    *,
    minutes: float,
    scale: str,
    target: Path | None = None,
    again: bool = False,
    begun: float | None = None,
) -> Call:
    """Make the records that are missing, most valuable first; what stands stays.

    A step that fails is recorded with its error and the others go on; one whose process was ended by a signal not of
    ours is tried once more at the end. The archive is written after every step, so that a call that is killed leaves
    the one before.

    Args:
        steps: what is asked for, in order.
        out: the folder, of an earlier call perhaps.
        minutes: of the whole call.
        scale: "smoke" or "gpu".
        target: the archive; ``OUT/gpu.tar.gz`` unless given.
        again: also make what stands.
        begun: when the call began, on the monotonic clock; now unless given.

    Raises:
        InputError: the folder cannot be written, or another call writes in it.
    """
    begun = time.monotonic() if begun is None else begun
    files.check_writable(out / archive.SUMMARY)
    call = Call(out, target or out / archive.NAME, scale, begun + 60 * minutes - RESERVE)
    files.check_writable(call.target)
    if (out / archive.NAME).is_file() and not (out / archive.RECORDS).is_dir():
        progress.note(f"{archive.unpack(out / archive.NAME, out)} files of an earlier call are taken over")
    with files.locked(out / ".lock", wait=False) as held:
        if not held:
            raise InputError(f"another call writes in {out}: wait for it, or name another folder")
        with listening(call):
            # What failed before comes last: it may well fail again.
            failed_before = {step.name for step in steps if (read(out, step) or {}).get("status") == FAILED}
            order = sorted(steps, key=lambda step: step.name in failed_before)
            died = [step for step in order if take(call, step, again) == "died"]
            for step in died:
                take(call, step, again)
            _finish(call)
    return call


def take(call: Call, step: Step, again: bool) -> str:
    """One step; its outcome: "complete", "failed", "died", "skipped", "cut", "there" or "no time"."""
    before = read(call.out, step)
    if before is not None and not again and stands(before, call, step):
        return _told(call, step, THERE, before.get("reason"))
    missing = [name for name in step.needs if importlib.util.find_spec(name) is None]
    if missing:
        reason = f"{' and '.join(missing)} not installed here"
        _record(call, step, SKIPPED, reason, {}, 0.0)
        return _told(call, step, SKIPPED, reason)
    if call.left < (step.seconds if call.scale == "gpu" else 1.0):
        return _told(call, step, NO_TIME)
    limit = call.left if step.rest else min(call.left, max(LEAST[call.scale], PATIENCE * step.seconds))
    if again:
        shutil.rmtree(call.out / archive.WORK / step.name, ignore_errors=True)
    place = place_of(call, step, limit)
    words = step.command(place)
    begun = time.monotonic()
    code, log = _process(call, step, words, limit)
    seconds = time.monotonic() - begun
    made = results(place, step, begun_at=time.time() - seconds)
    if code == 0 and made is not None:
        status, reason = COMPLETE, ""
    elif code is None:
        by = "by a signal" if call.asked_to_stop is not None else f"after {seconds:.0f} s"
        status, reason = CUT, f"ended {by}; it goes on or begins again in the next call"
    else:
        status, reason = FAILED, _reason(code, log)
    # What an earlier call measured is worth more than that this one could not.
    if before is None or before["status"] != COMPLETE or status == COMPLETE:
        _record(call, step, status, reason or None, made or {}, seconds, words)
    outcome = _told(call, step, status, reason or None, seconds)
    _finish(call)
    return "died" if code is not None and code < 0 else outcome


def stands(record: Mapping[str, Any], call: Call, step: Step) -> bool:
    """Whether a record needs not to be made again: complete, of this scale, and nothing is left to go on with."""
    if record["status"] != COMPLETE or record["scale"] != call.scale:
        return False
    return record["result"].get("finished", True) or not any((call.out / archive.WORK / step.name).glob("*/*"))


def read(out: Path, step: Step) -> dict[str, Any] | None:
    """The record of a step, or None."""
    try:
        record = files.read_json(record_path(out, step))
    except InputError:
        return None
    return record if isinstance(record, dict) and "status" in record and "scale" in record else None


def record_path(out: Path, step: Step) -> Path:
    """Where a step's record lies."""
    return out / archive.RECORDS / f"{step.name}.json"


def place_of(call: Call, step: Step, seconds: float) -> Place:
    """What the step's command is made for."""
    out = call.out.resolve()
    work = out / archive.WORK / step.name
    work.mkdir(parents=True, exist_ok=True)
    return Place(call.scale, work / "record.json", work, out / archive.REPRODUCE / step.name, seconds)


def results(place: Place, step: Step, begun_at: float) -> dict[str, Any] | None:
    """What the command wrote in this call, or None; of ``reproduce`` a summary of its records, which stay there."""
    if not step.experiments:
        path = place.record
        if not path.is_file() or path.stat().st_mtime < begun_at - 1:
            return None
        return dict(files.read_json(path))
    digests: dict[str, Any] = {}
    provenances: list[dict[str, Any]] = []
    for name in step.experiments:
        path = place.reproduce / "records" / f"{name}.json"
        record: dict[str, Any] = files.read_json(path) if path.is_file() else {"status": "missing"}
        if record["status"] != COMPLETE:
            return None
        digests[name] = record.get("digest")
        provenances.append(record["provenance"])
    peaks: dict[str, Any] = {
        name: max(row[name] for row in provenances)
        for name in ("peak_memory_bytes", "device_peak_memory_bytes")
        if name in provenances[0]
    }
    whole: dict[str, Any] = {
        **provenances[0],
        "wall_time_s": sum(row["wall_time_s"] for row in provenances),
        **peaks,
        "seeds": [seed for row in provenances for seed in row.get("seeds") or ()],
        "config": {"experiments": list(digests), "records": f"{archive.REPRODUCE}/{step.name}/records"},
    }
    return {"records": digests, "provenance": whole}


def _record(
    call: Call,
    step: Step,
    status: str,
    reason: str | None,
    made: Mapping[str, Any],
    seconds: float,
    words: Sequence[str] = (),
) -> None:
    """Write the step's record, whole."""
    result = {name: value for name, value in made.items() if name != "provenance"}
    # Of what has no result the process that would know the device is gone.
    plain = {
        "git": git_revision(),
        "versions": library_versions(),
        "timestamp": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    told = [word.replace(str(call.out.resolve()), "OUT") for word in words]
    files.write_json(
        record_path(call.out, step),
        {
            "step": step.name,
            "title": step.title,
            "scale": call.scale,
            "goal": step.goal or None,
            "command": shlex.join(["python", *told]) if told else None,
            "status": status,
            "reason": reason,
            "estimated_s": step.seconds,
            "step_s": round(seconds, 1),
            "result": result,
            "provenance": made.get("provenance", plain),
        },
    )


def _process(call: Call, step: Step, words: Sequence[str], limit: float) -> tuple[int | None, Path]:
    """Run a command; its exit code (None where it was ended here) and its log."""
    log = call.out / archive.LOGS / f"{step.name}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **step.environment}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    whole = log.with_suffix(".part")
    end = time.monotonic() + limit
    with whole.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, *words], cwd=ROOT, env=environment, stdout=stream, stderr=stream, start_new_session=True
        )
        try:
            while process.poll() is None and time.monotonic() < end and call.asked_to_stop is None:
                time.sleep(_POLL)
            code = process.poll()
        finally:
            _end(process)
    # The end of it says why a step failed, and an archive is small.
    data = whole.read_bytes()
    files.write_bytes(log, data[-_LOG_BYTES:])
    whole.unlink()
    return code, log


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to a process and its children, and SIGKILL to what did not answer: nothing of a step outlives it."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _reason(code: int, log: Path) -> str:
    """Why a step failed: the last line that it printed, or the signal that ended it."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    said = lines[-1][:500] if lines else "it printed nothing"
    if code < 0:
        return f"ended by signal {-code}: {said}"
    return said if code else f"it ended without a record: {said}"


@contextlib.contextmanager
def listening(call: Call) -> Iterator[None]:
    """SIGTERM and Ctrl-C end the step that runs; the archive is written before this process goes."""

    def heard(number: int, _: Any) -> None:
        call.asked_to_stop = number

    before = {number: signal.signal(number, heard) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _told(call: Call, step: Step, status: str, reason: str | None = None, seconds: float = 0.0) -> str:
    call.rows[step.name] = {"status": status, "seconds": round(seconds, 1), "reason": reason}
    progress.note(f"{step.name}: {status}" + f", {seconds:.0f} s" * (seconds > 0) + f": {reason}" * bool(reason))
    return status


def _finish(call: Call) -> None:
    """The summary, and the archive with it."""
    files.write_json(call.out / archive.SUMMARY, {"scale": call.scale, "git": git_revision(), "steps": call.rows})
    left = archive.write(call.out, call.target)
    if left:
        progress.warn(f"the archive has no room for {', '.join(left)}: they lie in {call.out}")
