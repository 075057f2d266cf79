"""One request as the managed objects see it: the caller, the method and the API version."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpuops.sim.core.encoder import Encoding, encoder

if TYPE_CHECKING:
    from gpuops.sim.core.sessions import ClientSession

OWN_USER: Final = "VSPHERE.LOCAL\\vpxd-extension"
"""The user in events and ledger entries of what the simulated vCenter does by itself (DRS, HA)."""


@dataclass(slots=True)
class Call:
    """The caller of a method. `method` is the WSDL name; `operation_id` is the client's opID header, '' without one."""

    method: str
    version: str
    session: ClientSession | None = None
    operation_id: str = ""
    opened: ClientSession | None = None
    """The session that this call logged in to; its reply sets the cookie."""
    wire: Callable[[str], Encoding] = encoder
    """Returns the encoder of an API version, for the wire that the call came by (SOAP or VI/JSON)."""

    @property
    def encoding(self) -> Encoding:
        """The encoder of the call's result."""
        return self.wire(self.version)

    @property
    def user(self) -> str:
        return self.session.user if self.session else OWN_USER

    @property
    def session_key(self) -> str:
        return self.session.key if self.session else ""


class CurrentCall:
    """A `with` block in which a call is the current one of its thread.

    A class instead of a generator because each request enters one, and a class is faster.
    """

    __slots__ = ("_call", "_calls", "_outer")

    def __init__(self, calls: threading.local, call: Call) -> None:
        self._calls = calls
        self._call = call
        self._outer: Call | None = None

    def __enter__(self) -> None:
        self._outer = getattr(self._calls, "current", None)
        self._calls.current = self._call

    def __exit__(self, *exc: object) -> None:
        self._calls.current = self._outer
