"""Soap: the same nights by our own client, pyVmomi's serialiser and parser among it, in this process: no socket, one
thread, no real time.

What the simulator's HTTP handler writes for a request is what the client reads for it; the end of a reply shows as the
error that a socket would raise.
"""

from __future__ import annotations

import http.client
import io
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from gpuops.errors import GpuopsError
from gpuops.execute.site.ports import Vcenter
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.target import Secret, Target
from gpuops.model.vcenter.task import TaskRef
from gpuops.plan.core.steps import Step
from gpuops.sim.server import USERNAME
from gpuops.sim.wire.endpoint import Endpoint
from gpuops.sim.wire.handler import Handler
from gpuops.vsphere import watches
from gpuops.vsphere.connection import Connection
from gpuops.vsphere.transport import network
from tests.canary import CANARY
from tests.nights.playing.night import Nightly
from tests.nights.playing.played import Played
from tests.nights.world.session import GUEST_LOGIN
from tests.nights.world.worlds import policies_read_quickly

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

UNKNOWN_ISSUER: Final = 20
"""X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY."""


class SoapNightly(Nightly):
    """The night of a seed over SOAP without a wire."""

    def play(self) -> Played:
        self.world.sessions.passwords[USERNAME] = CANARY
        endpoint = Endpoint(self.world)

        def open_connection(target: Target, context: ssl.SSLContext | None) -> http.client.HTTPConnection:
            return _Line(endpoint, lambda: self._certificate)

        with patch.object(network, "open_connection", open_connection), _at_once(), policies_read_quickly():
            return self._play()

    def _connect(self, boundary: Callable[[str], None]) -> Vcenter:
        target = Target("127.0.0.1", USERNAME, Secret(CANARY), tls=False, guest=GUEST_LOGIN)
        return Watched(Connection(target), boundary, self._note_request, self._note_refusal)


class Watched:
    """A connection that can be cut off before and after each change; anything else is the connection's own."""

    def __init__(
        self,
        connection: Connection,
        boundary: Callable[[str], None],
        on_request: Callable[[str], None] = lambda op_id: None,
        refused: Callable[[str], None] = lambda fault: None,
    ) -> None:
        self._connection = connection
        self._boundary = boundary
        self._asked = on_request
        self._refused = refused

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    @property
    def uuid(self) -> str:
        return self._connection.uuid

    @property
    def applied(self) -> bool | None:
        return self._connection.applied

    def submit(self, step: Step, inventory: Inventory, op_id: str) -> TaskRef | None:
        name = inventory.vm(step.vm).name
        self._boundary(f"before {type(step).__name__} {name}")
        self._asked(op_id)
        try:
            return self._connection.submit(step, inventory, op_id)
        except GpuopsError as error:
            self._refused(type(error.__cause__).__name__.rpartition(".")[2])
            raise
        finally:
            self._boundary(f"after {type(step).__name__} {name}")


class _Line(http.client.HTTPConnection):
    """A connection to an endpoint of this process, for as long as it shows the certificate that is trusted."""

    def __init__(self, endpoint: Endpoint, certificate: Callable[[], int]) -> None:
        super().__init__("127.0.0.1")
        self._endpoint = endpoint
        self._certificate = certificate

    def connect(self) -> None:
        if self._certificate() != 1:
            untrusted = ssl.SSLCertVerificationError("certificate verify failed")
            untrusted.verify_code = UNKNOWN_ISSUER
            raise untrusted
        self.sock: Any = _Socket(self._endpoint, self._certificate)


class _Socket:
    """What http.client needs of one: the request goes in, and what the handler writes comes out."""

    def __init__(self, endpoint: Endpoint, certificate: Callable[[], int]) -> None:
        self.endpoint = endpoint
        self._certificate = certificate
        self._sent = bytearray()
        self._left: io.BytesIO | None = None
        self._end: Exception | None = None

    def settimeout(self, timeout_s: float) -> None:
        """Nothing: no time passes here."""

    def sendall(self, data: Any) -> None:
        self._sent += bytes(data)
        self._left = None

    def makefile(self, mode: str, buffering: int = -1) -> _Reading:
        return _Reading(self)

    def close(self) -> None:
        """Do nothing: no call follows."""

    def received(self, size: int) -> bytes:
        """The next bytes. Raises what a socket does whose other end is gone, or says no more."""
        if self._left is None:
            if self._end is not None or self._certificate() != 1:
                return b""  # it ended behind the client's back
            served = _Served(bytes(self._sent), self.endpoint)
            self._sent.clear()
            self._left, self._end = io.BytesIO(served.wfile.getvalue()), served.end
        received_bytes = self._left.read(size)
        if received_bytes:
            return received_bytes
        if self._end is not None:
            raise self._end
        with self.endpoint.world.lock:
            self.endpoint.world.clock.advance(network.SILENCE_S)
        raise TimeoutError("timed out")


class _Reading(io.RawIOBase):
    """What such a socket receives."""

    def __init__(self, line: _Socket) -> None:
        self._line = line

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer)
        received_bytes = self._line.received(len(view))
        view[: len(received_bytes)] = received_bytes
        return len(received_bytes)


class _Served(Handler):
    """One request, by the simulator's own handler; `end` is what became of the connection, None = it stays."""

    wfile: io.BytesIO

    def __init__(self, request: bytes, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.stopping = self
        self.server = self
        self.connection: Any = self
        self.rfile, self.wfile = io.BytesIO(request), io.BytesIO()
        self.client_address = ("127.0.0.1", 0)
        self.end: Exception | None = None
        self.handle_one_request()

    def wait(self, pace_s: float) -> bool:
        """A reply that drips has dripped long enough."""
        return True

    def setsockopt(self, *option: Any) -> None:
        """As a socket's: it is closed with a reset then."""

    def close(self) -> None:
        self.end = ConnectionResetError("Connection reset by peer")

    def shutdown(self, how: int) -> None:
        self.end = cut = ssl.SSLEOFError("EOF occurred in violation of protocol")
        cut.reason = "UNEXPECTED_EOF_WHILE_READING"


@contextmanager
def _at_once() -> Iterator[None]:
    """Retry without a pause: the world has its own clock."""
    with patch.object(watches, "PAUSES_S", (0.0, 0.0, 0.0, 0.0)):
        yield


def play_over_soap(seed: int) -> Played:
    """The night of a seed, with all of its trouble."""
    return SoapNightly(seed).play()
