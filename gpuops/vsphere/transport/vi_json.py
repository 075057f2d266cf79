"""Sends calls over VI/JSON, which vCenter offers from 8.0 U1 on, with a separate login.

The login is separate: the documents name one way to a session id for VI/JSON, its own SessionManager.Login, whose reply
has it in the header `vmware-api-session-id` (Broadcom, Virtual Infrastructure JSON API, authentication; vSphere Web
Services SDK Programming Guide 8.0, "Authenticating a JSON Client with the Session Manager"). It is not documented that
the cookie of a SOAP session works too, so it is not sent, and both sessions are logged out.

A call is POST {path}/vim25/{release}/{type}/{id}/{method} with its parameters as a JSON object; void is 204, a fault is
a status of 400 or more with the fault as a JSON object (same sources; govmomi, vim25/soap/json_client.go). Connections,
TLS, bytes and seconds are those of `wire`.
"""

from __future__ import annotations

import http
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

from gpuops.errors import LoginRefused, NotConnected, ProtocolError
from gpuops.model.vcenter.target import Target
from gpuops.plan.core.versions import version_numbers
from gpuops.vsphere.transport import network
from gpuops.vsphere.transport.exchange import HttpReply
from gpuops.vsphere.transport.messages import reference, unwritable_surrogate
from gpuops.vsphere.transport.wire import SessionEnded, Wire, WireFault

SINCE: Final = "8.0.1.0"
"""Source: Broadcom, About the Virtual Infrastructure JSON API: from vCenter 8.0 Update 1 on."""
SESSION_HEADER: Final = "vmware-api-session-id"
_KEY: Final = re.compile(r"[\x21-\x7e]{1,1024}")
_LONGEST_SAID: Final = 200


def offers_vi_json(api_version: str) -> bool:
    """Return whether a vCenter of this API version offers VI/JSON."""
    return version_numbers(api_version) >= version_numbers(SINCE)


class JsonLogin:
    """The separate login for VI/JSON; `log_in` begins it."""

    def __init__(self, target: Target, api_version: str, session_manager: tuple[str, str]) -> None:
        self._target = target
        self._release = api_version
        self._session_manager = session_manager
        self._logging_in = threading.Lock()
        self.key = ""
        """The session's id; '' = not logged in."""

    def call(
        self,
        wire: Wire,
        method: str,
        target: tuple[str, str],
        body: Mapping[str, Any] | None = None,
        *,
        deadline: float | None = None,
    ) -> bytes:
        """Return the unparsed reply of a call that changes nothing; b"" for void.

        Raises SessionEnded, WireFault, NotConnected and its subclasses.
        """
        return self._answer(self._send(wire, method, target, body or {}, deadline))

    def log_in(self, wire: Wire, *, earlier_key: str) -> str:
        """Log in and return the key. If the key is not `earlier_key` any more, return it: another thread has logged in.

        Raises NotConnected and its subclasses.
        """
        with self._logging_in:
            if self.key != earlier_key:
                return self.key
            self.key = ""
            vcenter = self._target
            credentials = {"userName": vcenter.username, "password": vcenter.password.reveal()}
            reply = self._send(wire, "Login", self._session_manager, credentials, None)
            try:
                self._answer(reply)
            except (SessionEnded, WireFault) as refused:
                raise LoginRefused(
                    f"{vcenter.address} refuses {vcenter.username} over VI/JSON: {refused or 'not logged in'}",
                    hint="--reader soap reads without VI/JSON",
                ) from None  # the chain holds the request
            if _KEY.fullmatch(reply.session_key) is None:
                raise ProtocolError(f"{vcenter.address} accepts the login over VI/JSON but returns no session key")
            self.key = reply.session_key
            return self.key

    def log_out(self, wire: Wire) -> None:
        """End the session. If that fails, vCenter ends it when it is idle."""
        if self.key:
            with suppress(NotConnected, SessionEnded, WireFault):
                self._answer(self._send(wire, "Logout", self._session_manager, {}, None))
            self.key = ""

    def _send(
        self, wire: Wire, method: str, target: tuple[str, str], body: Mapping[str, Any], deadline: float | None
    ) -> HttpReply:
        import msgspec

        reference(*target)  # refuses invalid ids
        kind, moid = target
        path = f"{self._target.path}/vim25/{self._release}/{kind}/{quote(moid, safe='')}/{method}"
        headers = {"Content-Type": "application/json", **({SESSION_HEADER: self.key} if self.key else {})}
        try:
            encoded = msgspec.json.encode(body)
        except UnicodeEncodeError:
            raise unwritable_surrogate() from None
        return wire.post(path, encoded, headers, deadline=deadline)

    def _answer(self, reply: HttpReply) -> bytes:
        """Return the body of the reply. Raises SessionEnded, WireFault, or ProtocolError for anything but a fault."""
        if reply.status == http.HTTPStatus.OK:
            return reply.body
        if reply.status == http.HTTPStatus.NO_CONTENT:
            return b""
        fault: Any = None
        with suppress(ProtocolError), network.decoding(self._target.address, "a call"):
            fault = decode_reply(reply.body)
        name = fault.get("_typeName") if isinstance(fault, dict) else None
        if name == "NotAuthenticated":
            raise SessionEnded
        status_text = f"{reply.status} {reply.reason}"
        if not isinstance(name, str):
            raise ProtocolError(f"{self._target.address} answers VI/JSON with {status_text[:_LONGEST_SAID]}")
        fault_text = fault.get("faultstring")
        raise WireFault(
            name[:_LONGEST_SAID], (fault_text if isinstance(fault_text, str) else status_text)[:_LONGEST_SAID]
        )


def decode_reply(received: bytes) -> Any:
    """Return the values of a reply; None for an empty one. Raises UNREADABLE_ERRORS."""
    import msgspec

    return msgspec.json.decode(received) if received else None
