"""``python -m tests.docs.warm DESCRIPTOR``: run ``bornbiased`` for the docs' cells in processes that have all imported.

A command of a page imports for longer than it computes. Here one process imports the package, and each command is a
fork of it, with the arguments, environment, folder and streams of the caller; JAX has started no thread by then. The
server is given a listening socket by its descriptor, and ends after the process that started it.
"""

import atexit
import contextlib
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import bornbiased_jax
from bornbiased_jax.cli.main import main

ROOMS = ("cli", "derive", "evaluation", "lineage", "prediction", "probes", "results", "training")
CLIENT = """#!{python} -SE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    call = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
    socket.send_fds(server, [len(call).to_bytes(4)], [0, 1, 2])
    server.sendall(call)
    sys.exit(int(server.recv(8) or 1))
"""


def start(folder: Path) -> subprocess.Popen:
    """Write the program ``bornbiased`` into a folder, and start the server that runs its commands."""
    address, program = str(folder / "socket"), folder / "bornbiased"
    program.write_text(CLIENT.format(python=sys.executable, address=address))
    program.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        number = listener.fileno()
        return subprocess.Popen([sys.executable, "-m", "tests.docs.warm", str(number)], pass_fds=[number])


def serve(listener: socket.socket) -> None:
    """Import, then run one command for each connection."""
    parent = os.getppid()
    for module in pkgutil.walk_packages(bornbiased_jax.__path__, "bornbiased_jax."):
        if module.name.split(".")[1] in ROOMS:
            importlib.import_module(module.name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener.settimeout(5)
    while os.getppid() == parent:
        with contextlib.suppress(TimeoutError):
            connection, _ = listener.accept()
            if os.fork() == 0:
                _answer(connection)
            connection.close()


def _answer(connection: socket.socket) -> None:
    """Run a command in a process of its own and send its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    length, streams, *_ = socket.recv_fds(connection, 4, 3)
    with connection.makefile("rb") as stream:
        words, environment, folder = json.loads(stream.read(int.from_bytes(length)))
    command = os.fork()
    if command == 0:
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
        os.environ.update(environment)
        os.chdir(folder)
        sys.argv = ["bornbiased", *words]
        try:
            main()
        except SystemExit as end:
            atexit._run_exitfuncs()
            os._exit(int(end.code or 0))
    connection.sendall(str(os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])).encode())
    os._exit(0)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
