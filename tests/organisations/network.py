"""Something between two organisations that does what networks do: it breaks, stalls, garbles and repeats."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time

READ = 2**14


class Between:
    """Carries one connection to a port, both ways, and after some bytes to the listener does its mischief once.

    :param port: of the one who listens.
    :param after: bytes on their way to the listener before `mischief`; None for never.
    :param mischief: cut: closes both sides. stall: carries nothing for `pause_s` more. garble: turns a bit over.
        repeat: sends a piece twice. Or a function, called.
    """

    def __init__(self, port, after=None, mischief="cut", pause_s=3.0):
        self._to, self._after, self._mischief, self._pause_s = port, after, mischief, pause_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.carried = 0
        self.done = False
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                dialler, _ = self._listener.accept()
                threading.Thread(target=self._carry, args=(dialler,), daemon=True).start()

    def _carry(self, dialler):
        with contextlib.suppress(OSError), dialler, socket.create_connection(("127.0.0.1", self._to)) as listener:
            for end in (dialler, listener):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while True:
                for end in select.select([dialler, listener], [], [])[0]:
                    data = end.recv(READ)
                    if not data:
                        return
                    if end is dialler:
                        self.carried += len(data)
                        if self._after is not None and not self.done and self.carried > self._after:
                            self.done = True
                            data = self._changed(data)
                            if data is None:
                                return
                    (listener if end is dialler else dialler).sendall(data)

    def _changed(self, data):
        if callable(self._mischief):
            self._mischief()
        elif self._mischief == "cut":
            return None
        elif self._mischief == "stall":
            time.sleep(self._pause_s)
        elif self._mischief == "garble":
            middle = len(data) // 2
            return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        elif self._mischief == "repeat":
            return data + data
        return data

    def close(self):
        self._listener.close()
