"""Provides the `requests` session for the vSphere Automation SDK; every call goes through `exchange`.

`requests` itself follows redirects, with the login in their headers, unpacks compressed replies and reads without
limits, and the environment can override even `verify=False`. Here it only carries the calls of the SDK: connections,
trust and limits are those of every other call to a vCenter.
"""

from __future__ import annotations

import http.client
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from requests import Response, Session
from requests.adapters import BaseAdapter

from gpuops import clock
from gpuops.vsphere.transport import network
from gpuops.vsphere.transport.exchange import exchange
from gpuops.vsphere.transport.stub import CALL_S

if TYPE_CHECKING:
    from requests import PreparedRequest

    from gpuops.model.vcenter.target import Target

DEADLINE_S: Final = 600
"""The limit for all calls of one session together."""
LARGEST_REPLY: Final = 8 * 1024 * 1024
"""The tags of 1,000 objects, 50 of each."""
MOST_VALUES: Final = 150_000
"""Lists, mappings and values in one reply: each becomes several objects of the SDK."""


@contextmanager
def automation_session(target: Target) -> Iterator[Session]:
    """Provide a session with the trust settings of the target, not of the environment."""
    with Session() as session:
        session.trust_env = False
        session.adapters.clear()  # nothing but https
        session.mount("https://", _Adapter(target))
        yield session


class _Adapter(BaseAdapter):
    """Sends the calls of one session over one connection, with limits of bytes, values and seconds for each reply."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self._target = target
        self._deadline_s = clock.passed_s() + DEADLINE_S
        self._connection: http.client.HTTPConnection | None = None

    def send(self, request: PreparedRequest, **options: Any) -> Response:  # type: ignore[override]
        """Send the request over `exchange` and return the response. Options of `requests` have no effect.

        Raises UnreadableReply for a redirect or a reply that is compressed or too large; errors of the connection pass.
        """
        if self._connection is None:
            self._connection = network.open_connection(self._target, network.tls_context(self._target))
        assert isinstance(request.body, bytes), "the SDK writes its calls as bytes"
        try:
            reply = exchange(
                self._connection,
                request.method or "POST",
                request.path_url,
                until=min(clock.passed_s() + CALL_S, self._deadline_s),
                body=request.body,
                headers={
                    name: header if isinstance(header, str) else header.decode("latin-1")
                    for name, header in request.headers.items()
                    if name != "Accept-Encoding"  # `exchange` sets it
                },
                largest=LARGEST_REPLY,
            )
        except BaseException:
            self.close()  # the connection may still contain the rest of a reply
            raise
        if 300 <= reply.status < 400:
            raise network.UnreadableReply("a redirect, which no vCenter does")
        if reply.body.count(b",") + reply.body.count(b"{") + reply.body.count(b"[") > MOST_VALUES:
            raise network.UnreadableReply(f"more than {MOST_VALUES:,} values in one reply")
        response = Response()
        response.status_code, response.reason = reply.status, reply.reason
        response.request, response.url = request, request.url or ""
        response.raw = io.BytesIO(reply.body)
        return response

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
