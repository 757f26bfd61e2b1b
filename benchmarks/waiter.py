"""Run a command and say what it used: ``python waiter.py REPORT COMMAND …``.

Linux counts a process's largest resident set from before it became the command, when it still shared its parent's
memory. So that this adds nothing, the parent here is a process that holds nothing.
"""

import json
import os
import sys


def main(report: str, command: list[str]) -> int:
    """Run, wait, and write the exit code and the resources used as JSON."""
    child = os.posix_spawn(command[0], command, os.environ)
    _, status, used = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    # Kibibytes on Linux and the BSDs, bytes on macOS.
    peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    with open(report, "w") as file:
        json.dump({"exit": code, "cpu_s": used.ru_utime + used.ru_stime, "peak_bytes": peak}, file)
    return code


if __name__ == "__main__":
    sys.exit(abs(main(sys.argv[1], sys.argv[2:])))
