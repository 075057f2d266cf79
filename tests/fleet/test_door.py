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
            with socket.socket() as other:
                assert other.connect_ex(("127.0.0.1", door.port)) == errno.ECONNREFUSED
            with socket.socket() as other, pytest.raises(OSError, match=str(errno.EADDRINUSE)):
                other.bind(("127.0.0.1", door.port))
            door.reopen()
            with socket.create_connection(("127.0.0.1", door.port), timeout=10) as asked:
                inside, _ = behind.accept()
                with inside:
                    asked.sendall(b"up?")
                    assert inside.recv(3) == b"up?"
                    door.shut()
                    assert asked.recv(3) == b"", "a door that is shut ends what went through it"
        finally:
            door.close()
