# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A training process that does what a request is named after, and learns nothing."""

import os
import signal
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path

from fedpeft.site.connection import receive, send, unpack


def die(connection):
    os.kill(os.getpid(), signal.SIGKILL)


def die_of_a_nameless_signal(connection):
    os.kill(os.getpid(), signal.SIGRTMIN + 1)


def leave(connection):
    sys.exit(3)


def babble(connection):
    connection.send_bytes(b"no json")
    connection.send_bytes(b"")


def stop_halfway(connection):
    connection.send_bytes(b"{}")
    sys.exit(0)


def hang(connection):
    threading.Event().wait()


def leave_a_child(connection):
    """A process of its own, such as one that decodes images, holds the pipe open for longer than it lives."""
    if os.fork() == 0:
        connection.poll(None)
        os._exit(0)
    die(connection)


def complain(connection, **more):
    failure = {"detail": "patient 7", "code": "data-unusable", "setting": "", "traceback": "", "retryable": False}
    send(connection, {"failure": failure | more})


def tell(connection):
    """Lines that say how far it is, one of them with what no terminal should get, and then the answer."""
    send(connection, {"progress": "step 1 of 2"})
    send(connection, {"progress": "step 2 of 2\x1b[2J\nfinished"})
    send(connection, {"values": {}})


def stumble(connection):
    complain(connection, retryable=True)
    sys.exit(0)


ACTIONS = {
    f.__name__: f
    for f in (die, die_of_a_nameless_signal, leave, babble, stop_halfway, hang, leave_a_child, complain, tell, stumble)
}


def main():
    connection = Connection(int(sys.argv[1]))
    opened = []
    while True:
        request, state = unpack(receive(connection))
        if request["do"] == "open":
            opened.append(request)
            continue
        begun = Path(request["folder"]) / "begun"
        begun.write_text(begun.read_text() + "x" if begun.exists() else "x")
        if len(begun.read_text()) <= request["times"]:
            ACTIONS[request["do"]](connection)
        else:
            send(connection, {"values": {"pid": os.getpid(), "opened": opened, "number": request.get("number")}}, state)


if __name__ == "__main__":
    main()
