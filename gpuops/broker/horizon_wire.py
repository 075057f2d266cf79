"""Sends one request to a Horizon Connection Server and receives its reply, within limits of bytes and of seconds.

TLS is that of vCenter: verified by the CA file or the system's authorities, and held to a pinned certificate besides.
There is no way to switch it off. No redirect is followed, no proxy of the environment is used, and no reply may be
compressed. httpx is imported when the first client is made.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from gpuops import clock
from gpuops.distribution import install_extra
from gpuops.errors import BrokerUnreachable, GpuopsError, NotConnected, NotTrusted, ProtocolError, TargetError
from gpuops.model.vcenter.target import Target
from gpuops.vsphere.transport import network

if TYPE_CHECKING:
    import httpx

SILENCE_S: Final = 20.0
"""The longest silence on a connection."""
REQUEST_S: Final = 120.0
"""For one reply, to its last byte."""
LARGEST_REPLY: Final = 32 * 1024 * 1024
"""A page of a thousand machines has some three megabytes."""
_HINT: Final = "check the broker's address, its service and the network, then again"


@dataclass(frozen=True, slots=True)
class HorizonReply:
    """A complete reply; the names of its headers are in lower case."""

    status: int
    body: bytes
    headers: Mapping[str, str]


class HorizonWire:
    """Connections to one Connection Server."""

    def __init__(self, target: Target) -> None:
        """Prepare the client; no connection yet.

        Raises TargetError if httpx is missing, NotTrusted for a CA file that cannot be read.
        """
        try:
            import httpx
        except ImportError as error:
            hint = install_extra("horizon")
            raise TargetError("a broker needs httpx, and it is not installed", hint=hint) from error
        self._httpx = httpx
        self._target = target
        scheme = "https" if target.tls else "http"
        self._client = httpx.Client(
            base_url=f"{scheme}://{target.address}/rest",
            verify=network.tls_context(target) or False,
            timeout=SILENCE_S,
            headers={"Accept": "application/json", "Accept-Encoding": "identity"},
            trust_env=False,
            follow_redirects=False,
        )

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(
        self, verb: str, path: str, *, token: str = "", query: Mapping[str, int] | None = None, content: Any = None
    ) -> HorizonReply:
        """Return the reply, whatever its status.

        Raises BrokerUnreachable, NotTrusted, ProtocolError.
        """
        request = self._client.build_request(
            verb,
            path,
            params=dict(query or {}),
            json=content,
            headers={"Authorization": f"Bearer {token}"} if token else {},
        )
        with self._translate_errors():
            until = clock.passed_s() + REQUEST_S
            response = self._client.send(request, stream=True)
            try:
                return HorizonReply(response.status_code, self._body(response, until), dict(response.headers))
            finally:
                response.close()

    def _body(self, response: httpx.Response, until: float) -> bytes:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise network.UnreadableReply("a packed reply, which was not asked for")
        content = bytearray()
        for piece in response.iter_raw():
            content += piece
            if len(content) > LARGEST_REPLY:
                raise network.UnreadableReply(f"a reply of more than {LARGEST_REPLY >> 20} MiB")
            if clock.passed_s() > until:
                raise network.EndlessReply(REQUEST_S)
        return bytes(content)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except network.UnreadableReply as error:
            raise ProtocolError(f"the broker {self._target.address} sends {error}", hint=_HINT) from error
        except network.EndlessReply as error:
            raise BrokerUnreachable(
                f"the broker {self._target.address} answers, and its reply did not end within {error.limit_s:.0f} s",
                hint=_HINT,
            ) from error
        except self._httpx.TransportError as error:
            raise self._connection_error(error) from error
        except (self._httpx.HTTPError, self._httpx.InvalidURL) as error:
            raise self._unlike(type(error).__name__) from error

    def _connection_error(self, error: httpx.TransportError) -> GpuopsError:
        secured = _cause(error, ssl.SSLError)
        if secured is not None and not isinstance(secured, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            tls_error = network.connection_error(self._target, secured)
            hint = "give the broker's CA with ca_file, or use the name that its certificate is made out to"
            kind = NotTrusted if isinstance(tls_error, NotTrusted) else ProtocolError
            return kind(f"the broker: {tls_error.message}", hint=hint)
        if isinstance(error, self._httpx.TimeoutException):
            return BrokerUnreachable(
                f"the broker {self._target.address} did not answer within {SILENCE_S:.0f} s", hint=_HINT
            )
        if isinstance(error, self._httpx.RemoteProtocolError) and "disconnected" not in str(error):
            return self._unlike(type(error).__name__)
        reason = _cause(error, OSError)
        reason_text = getattr(reason, "strerror", None) or "it broke the connection off"
        return BrokerUnreachable(f"the broker {self._target.address} is not reachable: {reason_text}", hint=_HINT)

    def _unlike(self, kind: str) -> NotConnected:
        return ProtocolError(
            f"{self._target.address} does not answer like a Horizon Connection Server: {kind}", hint=_HINT
        )


def _cause(error: BaseException, kind: type[BaseException]) -> Any:
    """The first error of that kind that led to this one, or None."""
    at: BaseException | None = error
    while at is not None and not isinstance(at, kind):
        at = at.__cause__ or at.__context__
    return at
