"""Automation: the transport of the vSphere Automation SDK, a `requests` session with the same limits as ours.

By itself `requests` follows redirects, with the login in their headers, unpacks what a server packed and reads for as
long as something comes; and it lets the environment override even `verify=False`.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from requests import Session
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError

from gpuops import clock
from gpuops.vsphere.transport import door
from gpuops.vsphere.transport.exchange import LARGEST_REPLY, unpacked
from gpuops.vsphere.transport.stub import CALL_S

if TYPE_CHECKING:
    import ssl

    from requests import PreparedRequest, Response

    from gpuops.model.target import Target

_PIECE: Final = 64 * 1024
_ELSEWHERE: Final = 3
"""The hundreds of a redirect's status."""


@contextmanager
def automation_session(target: Target) -> Iterator[Session]:
    """A session that trusts what the target trusts, and nothing that the environment or a reply says."""
    with Session() as session:
        session.trust_env = False
        session.verify = target.verify
        session.headers["Accept-Encoding"] = "identity"
        if target.proxy is not None:
            session.proxies = {"https": f"http://{target.proxy}"}
        session.adapters.clear()  # nothing but https
        session.mount("https://", _Adapter(door.tls_context(target)))
        yield session


class _Adapter(HTTPAdapter):
    """Sends over TLS of the given context, and receives within bytes and seconds."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self._context = context
        super().__init__()

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options, ssl_context=self._context)

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        return super().proxy_manager_for(proxy, **options, ssl_context=self._context)

    def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:
        """Leaves all to the context: requests would add the authorities of certifi to it."""

    def send(self, request: PreparedRequest, **options: Any) -> Response:  # type: ignore[override]
        """Raises Unreadable for a redirect, and for a reply that is packed or too large; TimeoutError."""
        until = clock.passed_s() + CALL_S
        response = super().send(request, **{**options, "stream": True})
        try:
            if response.status_code // 100 == _ELSEWHERE:
                raise door.Unreadable("a redirect, which no vCenter does")
            unpacked(response.headers.get("Content-Encoding", ""))
            received = _within(response, until)
        except BaseException:
            response.raw.close()
            raise
        response.raw = io.BytesIO(received)
        return response


def _within(response: Response, until: float) -> bytes:
    received = bytearray()
    try:
        while piece := response.raw.read1(_PIECE):
            received += piece
            if len(received) > LARGEST_REPLY:
                raise door.Unreadable(f"more than {LARGEST_REPLY // 1024**2} MiB in one reply")
            if clock.passed_s() > until:
                raise TimeoutError("the reply is not whole in time")
    except HTTPError as error:
        raise ConnectionError(f"the reply broke off: {error}") from error
    return bytes(received)
