"""The client of /gpuops-sim, for tests and for `gpuops sim` in another process than the server's."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from contextlib import closing
from typing import Any, Final
from urllib.parse import urlsplit

from gpuops.errors import LoginRefused, ProtocolError, UsageError, VcenterUnreachable
from gpuops.files.file import parse_json
from gpuops.sim.fault_injection.rule import Rule
from gpuops.sim.wire.ready_file import ReadyFile

PREFIX: Final = "/gpuops-sim"
TIMEOUT_S: Final = 60.0


class SimClient:
    """A running simulated vCenter, as its ready file names it."""

    def __init__(self, ready: ReadyFile) -> None:
        self._ready = ready

    def ledger(self, *, after_sequence: int = 0) -> list[dict[str, Any]]:
        """The applied effects later than `after_sequence`, oldest first."""
        return self._call("GET", f"/ledger?after={after_sequence}")["entries"]

    def bugs(self) -> list[str]:
        """Tracebacks of the simulator's own bugs; empty when all is well."""
        return self._call("GET", "/bugs")["bugs"]

    def clock(self) -> dict[str, Any]:
        """`{mode, now}`."""
        return self._call("GET", "/clock")

    def advance(self, seconds: float) -> dict[str, Any]:
        """Move time forward; `{mode, now}` afterwards."""
        return self._call("POST", "/clock", {"advance_s": seconds})

    def state(self) -> Any:
        """The world's state as JSON."""
        return self._call("GET", "/state")

    def restore(self, state: Any) -> None:
        """Put a saved state in place of the present one."""
        self._call("PUT", "/state", state)

    def inject(self, rule: Rule) -> None:
        """Add a fault rule."""
        self._call("POST", "/inject", rule.to_json())

    def clear_injected(self) -> None:
        """Drop all fault rules."""
        self._call("DELETE", "/inject")

    def _call(self, verb: str, path: str, document: Any = None) -> Any:
        url = urlsplit(self._ready.url)
        login = base64.b64encode(f"{self._ready.username}:{self._ready.password}".encode()).decode()
        body = None if document is None else json.dumps(document)
        try:
            with closing(self._connection(url.scheme, url.hostname or "127.0.0.1", url.port or 443)) as connection:
                connection.request(verb, PREFIX + path, body, {"Authorization": f"Basic {login}"})
                reply = connection.getresponse()
                return _check_status(reply.status, reply.read())
        except (OSError, http.client.HTTPException) as error:
            raise VcenterUnreachable(f"no simulated vCenter answers at {self._ready.url}: {error}") from error

    def _connection(self, scheme: str, host: str, port: int) -> http.client.HTTPConnection:
        if scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
        context = ssl.create_default_context(cafile=self._ready.ca_file)
        return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)


def _check_status(status: int, content: bytes) -> Any:
    try:
        document = parse_json(content) if content else None
    except ValueError as error:
        raise ProtocolError(f"the simulated vCenter answers what is no JSON: {error}") from error
    if status == 401:
        raise LoginRefused("the simulated vCenter does not know this user and password")
    if status >= 400:
        raise UsageError((document or {}).get("error", f"the simulated vCenter answers {status}"))
    return document
