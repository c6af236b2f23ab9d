"""Programs of several organisations, a process each, which begin without reading the libraries anew."""

from __future__ import annotations

import os
import socket
import sys
import time

from vertinumpyro.transport.process_group import start_process

LIBRARIES = ("vertinumpyro.cli.commands", "vertinumpyro.dpvi", "vertinumpyro.mrf", "vertinumpyro.regression")
ENGINE = ("vertinumpyro.secure.crypten.protocol",)  # passed over where it is not installed


def free_port():
    """Of this machine, for a moment."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Program:
    """What a test uses of `subprocess.Popen`: `pid`, `communicate`, `returncode`, `poll`."""

    def __init__(self, run, *arguments):
        self._ours, theirs = socket.socketpair()
        self._process = start_process(_begin, (run, arguments, theirs), (*LIBRARIES, *ENGINE))
        theirs.close()
        self.pid = self._process.pid

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self._process.exitcode

    def kill(self):
        self._process.kill()

    def communicate(self, timeout):
        """What it printed, until it ended."""
        deadline, said = time.monotonic() + timeout, bytearray()
        while True:
            self._ours.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                part = self._ours.recv(2**16)
            except TimeoutError:
                self._process.kill()
                raise
            if not part:
                break
            said += part
        self._process.join(max(0.01, deadline - time.monotonic()))
        return said.decode(), None


def command(*arguments):
    """`vertinumpyro ARGUMENTS`."""
    return Program(_command, [str(argument) for argument in arguments])


def _begin(run, arguments, said):
    for number in (1, 2):
        os.dup2(said.fileno(), number)
    said.close()
    run(*arguments)


def _command(arguments):
    from vertinumpyro.cli.main import main

    os.environ["COLUMNS"] = "200"
    sys.argv = ["vertinumpyro", *arguments]
    main()
