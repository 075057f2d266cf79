"""The door is open again when each trouble that shut it has ended."""

from __future__ import annotations

import errno
import socket

import pytest

from tests.fleet.door import Door


def test_a_door_that_was_shut_twice_opens_with_the_second_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as behind:
        door = Door(behind.getsockname()[1])
        try:
            door.shut()
            door.shut()
            door.reopen()
            with socket.socket() as socket_refused:
                assert socket_refused.connect_ex(("127.0.0.1", door.port)) == errno.ECONNREFUSED
            with socket.socket() as socket_refused, pytest.raises(OSError, match=str(errno.EADDRINUSE)):
                socket_refused.bind(("127.0.0.1", door.port))
            door.reopen()
            with socket.create_connection(("127.0.0.1", door.port), timeout=10) as connection:
                inside, _ = behind.accept()
                with inside:
                    connection.sendall(b"up?")
                    assert inside.recv(3) == b"up?"
                    door.shut()
                    assert connection.recv(3) == b"", "a door that is shut ends what went through it"
        finally:
            door.close()
