"""A login to a Horizon Connection Server (2412 and later) by its REST API: pools, machines, sessions, maintenance mode.

Paths by the operation indexes of the Horizon Server API (developer.broadcom.com/xapis/vmware-horizon-server-api: 8.0.0,
2103, 2303, latest; the change log of 2609 at developer.omnissa.com): login, refresh and logout; List Sessions, List
Machines and Get Machine of version 1, List Desktop Pools of version 5, Get Environment and List Virtual Centers of
version 2. Later servers keep earlier versions of a path in addition to their own. Enter Maintenance and Exit
Maintenance take a list of machine ids.

A list is read page by page (`page` from 1, `size`). From memory of the pagination guide: the header HAS_MORE_RECORDS
shows whether there is another page. If it is missing, a full page means that there is one.

A read is repeated if its connection broke. A change is repeated only after the reply that it was not authorised, since
it was not made then. Access tokens are valid for minutes: an expired one is refreshed; if the refresh token has expired
too, gpuops logs in again. Tokens and the password are in no message and no repr.

TLS is that of vCenter: verified by the CA file or the system's authorities, and compared with a pinned certificate in
addition. It cannot be switched off. No redirect is followed, no proxy of the environment is used, no reply may be
compressed, and each has limits of bytes and of seconds. httpx is imported when the first client is made.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from urllib.parse import quote

from gpuops import clock
from gpuops.broker import horizon_values as values
from gpuops.distribution import install_extra
from gpuops.errors import (
    BrokerUnreachable,
    GpuopsError,
    LoginRefused,
    NoPermission,
    NotConnected,
    NotTrusted,
    OutcomeUnknown,
    ProtocolError,
    Refused,
    TargetError,
)
from gpuops.model.desktops.broker import BrokerIdentity, BrokerVcenter, DesktopMachine, DesktopPool, DesktopSession
from gpuops.model.vcenter.target import BrokerTarget, Secret, Target
from gpuops.vsphere.transport import network

if TYPE_CHECKING:
    import httpx

SILENCE_S: Final = 20.0
"""The limit for a connection, and for each wait for the next bytes."""
REQUEST_S: Final = 120.0
"""The limit for one reply, from the request to its last byte."""
LARGEST_REPLY: Final = 32 * 1024 * 1024
"""The limit for a reply: a page of a thousand machines has about 3 MB."""
_HINT: Final = "check the address of the broker, its service and the network, then run the command again"


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
            verify=network.tls_context(target) or False,  # False: over http there is no certificate
            timeout=SILENCE_S,
            headers={"Accept": "application/json", "Accept-Encoding": "identity"},
            trust_env=False,
            follow_redirects=False,
        )

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def send(
        self, verb: str, path: str, *, token: str = "", query: Mapping[str, int] | None = None, content: Any = None
    ) -> HorizonReply:
        """Return the reply, also one with an error status. Raises BrokerUnreachable, NotTrusted, ProtocolError."""
        request = self._client.build_request(
            verb,
            path,
            params=dict(query or {}),
            json=content,
            headers={"Authorization": f"Bearer {token}"} if token else {},
        )
        with self._translate_errors():
            deadline_s = clock.passed_s() + REQUEST_S
            response = self._client.send(request, stream=True)  # `_body` limits its size and time
            try:
                return HorizonReply(response.status_code, self._body(response, deadline_s), dict(response.headers))
            finally:
                response.close()

    def _body(self, response: httpx.Response, deadline_s: float) -> bytes:
        """Return the body. Raises network.UnreadableReply, and network.EndlessReply after the deadline."""
        if response.headers.get("content-encoding", "identity") != "identity":
            raise network.UnreadableReply("a compressed reply, which gpuops did not ask for")
        content = bytearray()
        for piece in response.iter_raw():
            content += piece
            if len(content) > LARGEST_REPLY:
                raise network.UnreadableReply(f"a reply of more than {LARGEST_REPLY >> 20} MiB")
            if clock.passed_s() > deadline_s:
                raise network.EndlessReply(REQUEST_S)
        return bytes(content)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raise an error of httpx or of the reply as BrokerUnreachable, NotTrusted or ProtocolError."""
        try:
            yield
        except network.UnreadableReply as error:
            raise ProtocolError(f"the broker {self._target.address} sends {error}", hint=_HINT) from error
        except network.EndlessReply as error:
            raise BrokerUnreachable(
                f"the reply of the broker {self._target.address} did not end within {error.limit_s:.0f} s",
                hint=_HINT,
            ) from error
        except self._httpx.TransportError as error:
            raise self._connection_error(error) from error
        except (self._httpx.HTTPError, self._httpx.InvalidURL) as error:
            raise self._not_horizon(type(error).__name__) from error

    def _connection_error(self, error: httpx.TransportError) -> GpuopsError:
        """Return the error to raise: TLS refused, no answer in time, not HTTP, or not reachable."""
        ssl_error = _cause(error, ssl.SSLError)
        # a connection that was only closed during the handshake is unreachable, not untrusted
        if ssl_error is not None and not isinstance(ssl_error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            tls_error = network.connection_error(self._target, ssl_error)
            hint = "set ca_file to the broker's CA, or use the host name in its certificate"
            kind = NotTrusted if isinstance(tls_error, NotTrusted) else ProtocolError
            return kind(f"the broker: {tls_error.message}", hint=hint)
        if isinstance(error, self._httpx.TimeoutException):
            return BrokerUnreachable(
                f"the broker {self._target.address} did not answer within {SILENCE_S:.0f} s", hint=_HINT
            )
        # httpx also raises it, with the text "Server disconnected", if the connection was closed without a reply
        if isinstance(error, self._httpx.RemoteProtocolError) and "disconnected" not in str(error):
            return self._not_horizon(type(error).__name__)
        reason = _cause(error, OSError)
        reason_text = getattr(reason, "strerror", None) or "it closed the connection"
        return BrokerUnreachable(f"the broker {self._target.address} is not reachable: {reason_text}", hint=_HINT)

    def _not_horizon(self, kind: str) -> NotConnected:
        return ProtocolError(
            f"{self._target.address} does not answer like a Horizon Connection Server: {kind}", hint=_HINT
        )


def _cause(error: BaseException, kind: type[BaseException]) -> Any:
    """Return the first error of that kind in the chain of causes of this one, or None."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, kind):
        cause = cause.__cause__ or cause.__context__
    return cause


PAGE_SIZE: Final = 1000
MOST_PAGES: Final = 200
"""The limit of pages of one list: 200,000 records are more than a pod has."""
PAUSES_S: Final = (0.5, 2.0)
"""The pause before the first and before the second repetition of a read."""
_OVERLOADED: Final = frozenset({429, 502, 503, 504})
_MAINTENANCE: Final = "/inventory/v1/machines/action/{}-maintenance"

_Record = TypeVar("_Record", DesktopPool, DesktopMachine, DesktopSession)
Record = Mapping[str, Any]


class Horizon:
    """A logged-in session; leaving its `with` block logs out. It implements `DesktopBroker`."""

    def __init__(self, target: BrokerTarget) -> None:
        """Log in. Raises subclasses of NotConnected, and TargetError if httpx is missing."""
        self._target = target
        self._address = target.server.address
        self._access, self._refresh = Secret(""), Secret("")
        self._wire = HorizonWire(target.server)
        try:
            self._log_in()
        except BaseException:
            self._wire.close()
            raise

    def __repr__(self) -> str:
        return f"Horizon({self._address})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Log out. A server that cannot be reached any more ends the session by itself."""
        with self._wire:
            if self._refresh:
                with suppress(NotConnected):
                    self._wire.send("POST", "/logout", content={"refresh_token": self._refresh.reveal()})
            self._access = self._refresh = Secret("")

    # --- reads ----------------------------------------------------------------------------------------------------

    def identity(self) -> BrokerIdentity:
        """Return the product, the pod and the user of the login. Raises subclasses of NotConnected, NoPermission."""
        reply = self._read("/config/v2/environment-properties")
        with self._decoding("environment-properties"):
            environment = values.structure(reply.body)
            version = values.text(environment, "local_connection_server_version")
            name = environment.get("cluster_name")
            cluster = name if isinstance(name, str) and len(name) <= values.LONGEST_TEXT else ""
        return BrokerIdentity(self._address, self._target.user, f"Horizon Connection Server {version}", cluster)

    def pools(self) -> tuple[DesktopPool, ...]:
        return self._read_list("/inventory/v5/desktop-pools", values.pool)

    def machines(self) -> tuple[DesktopMachine, ...]:
        return self._read_list("/inventory/v1/machines", values.machine)

    def machine(self, identity: str) -> DesktopMachine | None:
        path = f"/inventory/v1/machines/{quote(identity, safe='')}"
        reply = self._read(path, accept_missing=True)
        if reply.status == 404:
            return None
        with self._decoding(path):
            return values.machine(values.structure(reply.body))

    def vcenters(self) -> tuple[BrokerVcenter, ...]:
        """Return every vCenter of the pod; () if the account lacks VC_CONFIG_VIEW, or the server has no such list."""
        path = "/config/v2/virtual-centers"
        try:
            reply = self._read(path, accept_missing=True)
        except NoPermission:
            return ()
        if reply.status == 404:
            return ()
        with self._decoding(path):
            return tuple(values.vcenter(record) for record in values.parse_list(reply.body))

    def sessions(self) -> tuple[DesktopSession, ...]:
        return self._read_list("/inventory/v1/sessions", values.session)

    def _read_list(self, path: str, decode: Callable[[Record], _Record]) -> tuple[_Record, ...]:
        """Return every record of a list, read page by page.

        Raises ProtocolError for a list without an end, and the errors of `_read`.
        """
        records: dict[str, _Record] = {}
        for number in range(1, MOST_PAGES + 1):
            reply = self._read(path, {"page": number, "size": PAGE_SIZE})
            with self._decoding(path):
                page = [decode(record) for record in values.parse_list(reply.body)]
                before = len(records)
                records.update((record.id, record) for record in page)
                if page and len(records) == before:  # a server that ignores `page` would send page 1 for ever
                    raise ValueError(f"page {number} repeats an earlier one")
            if not _has_more(reply, len(page)):
                return tuple(records.values())
        raise ProtocolError(
            f"the broker {self._address} sends more than {MOST_PAGES} pages of {path}",
            hint="check the address of the broker; gpuops used none of these pages",
        )

    def _read(self, path: str, query: Mapping[str, int] | None = None, *, accept_missing: bool = False) -> HorizonReply:
        """Return the reply to a GET request, repeated if the connection breaks; with `accept_missing`, also a 404."""
        for pause_s in PAUSES_S:
            try:
                return self._read_once(path, query, accept_missing=accept_missing)
            except BrokerUnreachable:
                clock.pause(pause_s)
        return self._read_once(path, query, accept_missing=accept_missing)

    def _read_once(self, path: str, query: Mapping[str, int] | None, *, accept_missing: bool) -> HorizonReply:
        reply = self._send_authorised("GET", path, query=query)
        return reply if accept_missing and reply.status == 404 else self._check(path, reply)

    # --- the gate -------------------------------------------------------------------------------------------------

    def enter_maintenance(self, machines: Collection[str]) -> Mapping[str, str]:
        return self._change(_MAINTENANCE.format("enter"), machines)

    def exit_maintenance(self, machines: Collection[str]) -> Mapping[str, str]:
        return self._change(_MAINTENANCE.format("exit"), machines)

    def _change(self, path: str, machines: Collection[str]) -> Mapping[str, str]:
        """Send a change once, and return the reasons of refusals by machine id.

        Raises OutcomeUnknown if the reply is lost, unreadable or a server error: the change may have been made.
        """
        if not machines:
            return {}
        machine_ids = frozenset(machines)
        try:
            reply = self._send_authorised("POST", path, content=sorted(machine_ids))
            if reply.status < 500:
                return self._read_refusals(path, reply, machine_ids)
            raise self._overload_error(reply)
        except (BrokerUnreachable, ProtocolError) as error:
            raise OutcomeUnknown(
                f"{error.message}; whether the machines changed is not known",
                hint="check the state of each machine: gpuops broker show",
            ) from error

    def _read_refusals(self, path: str, reply: HorizonReply, machine_ids: frozenset[str]) -> Mapping[str, str]:
        self._check(path, reply)
        if not reply.body.strip():
            return {}  # 204, or 200 without a body: it is done
        with self._decoding(path):
            return values.refusals(reply.body, machine_ids)

    # --- login ----------------------------------------------------------------------------------------------------

    def _send_authorised(
        self, verb: str, path: str, *, query: Mapping[str, int] | None = None, content: Any = None
    ) -> HorizonReply:
        """Return the reply; an expired token is replaced once, and the request sent again."""
        reply = self._wire.send(verb, path, token=self._access.reveal(), query=query, content=content)
        if reply.status == 401:
            self._renew()
            reply = self._wire.send(verb, path, token=self._access.reveal(), query=query, content=content)
        return reply

    def _log_in(self) -> None:
        """Log in and keep the tokens. Raises LoginRefused and the errors of `send`."""
        server = self._target.server
        reply = self._wire.send(
            "POST",
            "/login",
            content={"domain": self._target.domain, "username": server.username, "password": server.password.reveal()},
        )
        if reply.status in (400, 401, 403):
            raise LoginRefused(
                f"the broker {self._address} refuses the login of {self._target.user}",
                hint="check username, domain and password of [targets.NAME.broker]; it needs an administrator's role",
            )
        self._check("/login", reply)
        with self._decoding("/login"):
            tokens = values.structure(reply.body)
            self._access = Secret(_token(tokens, "access_token"))
            self._refresh = Secret(_token(tokens, "refresh_token"))

    def _renew(self) -> None:
        """Get a new access token. Raises LoginRefused."""
        reply = self._wire.send("POST", "/refresh", content={"refresh_token": self._refresh.reveal()})
        if reply.status != 200:
            self._log_in()
            return
        with self._decoding("/refresh"):
            self._access = Secret(_token(values.structure(reply.body), "access_token"))

    # --- replies --------------------------------------------------------------------------------------------------

    def _check(self, path: str, reply: HorizonReply) -> HorizonReply:
        """Return the same reply if its status is a success; raise the error of its status otherwise."""
        if 200 <= reply.status < 300:
            return reply
        raise self._error(path, reply)

    def _error(self, path: str, reply: HorizonReply) -> GpuopsError:
        """Return the error for a reply with an error status, after a new login was tried."""
        if reply.status in _OVERLOADED:
            return self._overload_error(reply)
        if reply.status == 401:
            return LoginRefused(
                f"the broker {self._address} does not accept its own session of {self._target.user}",
                hint="gpuops login test shows whether the broker accepts the login",
            )
        if reply.status == 403:
            return NoPermission(
                f"{self._target.user} may not use {path} of the broker {self._address}",
                hint="give it a role with the privileges that gpuops help broker names",
            )
        if reply.status in (400, 409, 422):
            return Refused(
                f"the broker {self._address} refuses {path} (status {reply.status}); nothing was changed",
                hint="look for the reason in the event database of the Connection Server",
            )
        return ProtocolError(
            f"the broker {self._address} answers {path} with status {reply.status}",
            hint="check the address; gpuops needs Horizon 2412 or later",
        )

    def _overload_error(self, reply: HorizonReply) -> BrokerUnreachable:
        return BrokerUnreachable(
            f"the broker {self._address} is overloaded or starting (status {reply.status})", hint="try again later"
        )

    @contextmanager
    def _decoding(self, path: str) -> Iterator[None]:
        """Turn decoding errors of the block into ProtocolError, without the text of the reply: it may hold a token."""
        try:
            yield
        except values.UNREADABLE as error:
            why = f": {error}" if type(error) is ValueError else ""
            raise ProtocolError(
                f"the broker {self._address} sends what no Connection Server sends in reply to {path}{why}",
                hint="check the address of the broker; gpuops used nothing of this reply",
            ) from None


def _has_more(reply: HorizonReply, length: int) -> bool:
    """Return whether another page follows this one, which has `length` records."""
    header = reply.headers.get("has_more_records")
    return header.strip().lower() == "true" if header is not None else length == PAGE_SIZE


def _token(tokens: Record, name: str) -> str:
    """Return a token, which may be longer than any other text. Raises ValueError."""
    token = tokens.get(name)
    if not isinstance(token, str) or not token.isascii() or not token.isprintable() or not 0 < len(token) <= 65536:
        raise ValueError(f"{name} is not a token")
    return token
