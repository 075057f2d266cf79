"""The password reaches only the right server, in every state of its certificate, of the pin and of the call.

What a server may show: a trusted certificate, three bad ones, a trusted one that becomes another trusted one after the
first connection, and one that becomes a forged one just before the login. A pin is right for the certificate that the
rightful server shows, or wrong. The call is the first one, a repetition, or a later one in a running session.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from dataclasses import replace as changed
from typing import Any

import pytest

from gpuops.errors import GpuopsError, NotTrusted
from gpuops.model.vcenter.target import Secret, Target
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.wire.handler import Incoming, Outgoing
from gpuops.vsphere.reading.tags import with_tags
from gpuops.vsphere.session import Session
from gpuops.vsphere.transport import network
from tests.wire.connection.shown_certificates import Shown, make

CANARY = "Cn4ry-of-the-password"

RENEWED, FORGED = "renewed after the first connection", "forged before the login"
SHOWN = ["good", "self-signed", "expired", "wrong name", RENEWED, FORGED]
PINS = ["no pin", "right pin", "wrong pin"]
CALLS = ["first call", "retry", "reconnect"]

ACCEPTED = {("good", "no pin"), ("good", "right pin"), (RENEWED, "no pin")}


@dataclass
class Watched:
    """Between a simulated vCenter and its clients: what it received, and when it shows another certificate."""

    server: SimServer
    of: dict[str, Shown]
    received: list[bytes] = field(default_factory=list)
    swap: tuple[str, str] | None = None
    """After this request, new connections see that certificate."""

    def __post_init__(self) -> None:
        http: Any = self.server._http
        self._endpoint, http.endpoint = http.endpoint, self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._endpoint, name)

    def show(self, name: str) -> None:
        self.server._http.use_certificates(self.of[name].context)

    def serve(self, incoming: Incoming) -> Outgoing:
        self.received.append(incoming.body)
        reply: Outgoing = self._endpoint.serve(incoming)
        awaited_call, name = self.swap or ("", "")
        if self.swap and (awaited_call in incoming.target or awaited_call.encode() in incoming.body):
            self.swap = None
            self.server._http._context = self.of[name].context  # open connections end by themselves
            return changed(reply, headers={**reply.headers, "Connection": "close"})
        return reply

    @property
    def saw_the_password(self) -> bool:
        return any(CANARY.encode() in body for body in self.received)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Shown]:
    return make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def one_server(certificates: dict[str, Shown]) -> Iterator[Watched]:
    with SimServer(build("lab"), password=CANARY, server_certificates=certificates["good"].made) as server:
        yield Watched(server, certificates)


@pytest.fixture
def watched_server(one_server: Watched) -> Watched:
    one_server.show("good")
    one_server.received.clear()
    one_server.swap = None
    return one_server


def target_of(watched_server: Watched, pin: str | None) -> Target:
    server = watched_server.server
    return Target(
        "127.0.0.1", server.username, Secret(CANARY), port=server.port, ca_files=(str(server.ca_file),), pin=pin
    )


def _pin(watched_server: Watched, pin: str, rightful: str) -> str | None:
    return {"no pin": None, "right pin": watched_server.of[rightful].sha256, "wrong pin": "0" * 64}[pin]


def _open(target: Target) -> None:
    with Session(target):
        pass


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("pin", PINS)
@pytest.mark.parametrize("certificate", SHOWN)
def test_the_password_reaches_the_rightful_server_only(
    watched_server: Watched, certificate: str, pin: str, call: str
) -> None:
    accepted = (certificate, pin) in ACCEPTED
    calls: dict[str, Callable[[Watched, str, str], bool]] = {
        "first call": _first_call,
        "retry": _retry,
        "reconnect": _reconnect,
    }
    assert calls[call](watched_server, certificate, pin) is accepted
    assert watched_server.saw_the_password is accepted


def _begin(watched_server: Watched, certificate: str) -> str:
    """Shows what is to be shown, now or at its time; the certificate that the right pin is of."""
    swaps = {
        RENEWED: ("vimServiceVersions", "renewed"),
        FORGED: ("<RetrieveServiceContent", "self-signed"),
    }
    watched_server.swap = swaps.get(certificate)
    if watched_server.swap is not None:
        return "good"
    watched_server.show(certificate)
    return certificate


def _accepts(target: Target) -> bool:
    try:
        _open(target)
    except NotTrusted:
        return False
    return True


def _first_call(watched_server: Watched, certificate: str, pin: str) -> bool:
    rightful = _begin(watched_server, certificate)
    return _accepts(target_of(watched_server, _pin(watched_server, pin, rightful)))


def _retry(watched_server: Watched, certificate: str, pin: str) -> bool:
    """Once more by the same target, after whatever came of the first."""
    rightful = _begin(watched_server, certificate)
    target = target_of(watched_server, _pin(watched_server, pin, rightful))
    first = _accepts(target)
    second = _accepts(target)
    assert first == second
    return second


def _reconnect(watched_server: Watched, certificate: str, pin: str) -> bool:
    """A session begun with the rightful server; then the connections break, and another one answers."""
    target = target_of(watched_server, _pin(watched_server, pin, "good"))
    try:
        session = Session(target)
    except NotTrusted:
        return False
    becomes = {RENEWED: "renewed", FORGED: "self-signed"}
    with session:
        session.read(session.instance.CurrentTime)
        watched_server.received.clear()
        watched_server.show(becomes.get(certificate, certificate))
        try:
            session.read(session.instance.CurrentTime)  # pyVmomi's way
            typed = True
        except NotTrusted:
            typed = False
        try:
            session.login_again(session.logins)  # ours, with the password
        except NotTrusted:
            assert not typed
            return False
        assert typed
        return True


def test_another_certificate_is_named_and_what_to_do(watched_server: Watched) -> None:
    with pytest.raises(NotTrusted, match=f"its SHA-256 is {watched_server.of['good'].sha256}") as raised:
        _open(target_of(watched_server, "0" * 64))
    assert raised.value.exit_code == 5
    assert raised.value.hint


def test_a_pin_holds_where_verification_is_switched_off(watched_server: Watched) -> None:
    watched_server.show("self-signed")
    pinned = changed(target_of(watched_server, watched_server.of["self-signed"].sha256), verify=False)
    _open(pinned)
    watched_server.received.clear()
    with pytest.raises(NotTrusted):
        _open(changed(pinned, pin="0" * 64))
    assert not watched_server.saw_the_password


def test_a_pin_without_tls_is_refused(watched_server: Watched) -> None:
    with pytest.raises(NotTrusted, match="over http, so its certificate cannot be pinned"):
        _open(changed(target_of(watched_server, "0" * 64), tls=False))
    assert watched_server.received == []


@pytest.mark.long
def test_tags_are_asked_of_the_pinned_server_only(watched_server: Watched) -> None:
    from gpuops.vsphere.reading import collect

    with Session(target_of(watched_server, watched_server.of["good"].sha256)) as session:
        inventory = collect.inventory(session)
        with_tags(session, inventory)
        watched_server.received.clear()
        watched_server.show("renewed")
        with pytest.raises(NotTrusted, match="pinned"):
            with_tags(session, inventory)
        assert watched_server.received == []
        watched_server.show("good")


@contextmanager
def _contexts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ssl.SSLContext]]:
    contexts: list[ssl.SSLContext] = []
    make_one = network.tls_context

    def keep_context(target: Target) -> ssl.SSLContext | None:
        context = make_one(target)
        contexts.extend([context] if context is not None else [])
        return context

    monkeypatch.setattr(network, "tls_context", keep_context)
    yield contexts


def test_every_connection_verifies_with_a_context_of_its_own(
    watched_server: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _contexts(monkeypatch) as contexts, Session(target_of(watched_server, None)) as session:
        session.read(session.instance.CurrentTime)
    assert len(contexts) == 2  # the session's own calls, of which the version is the first, and pyVmomi
    assert len({id(context) for context in contexts}) == len(contexts)
    assert {context.verify_mode for context in contexts} == {ssl.CERT_REQUIRED}
    assert all(context.check_hostname for context in contexts)


def test_a_redirect_is_not_followed(watched_server: Watched) -> None:
    """Neither by ours nor by the library that reads tags: that one would follow, and send the password again."""
    from gpuops.vsphere.reading import collect

    def elsewhere(incoming: Incoming) -> Outgoing:
        if incoming.target.startswith("/api"):
            watched_server.received.append(incoming.body)
            return Outgoing(307, headers={"Location": f"https://127.0.0.1:{watched_server.server.port}/elsewhere"})
        if incoming.target.startswith("/elsewhere"):
            watched_server.received.append(incoming.body)
        return Watched.serve(watched_server, incoming)

    with Session(target_of(watched_server, None)) as session:
        inventory = collect.inventory(session)
        http: Any = watched_server.server._http
        watched_server.received.clear()
        http.endpoint = _Elsewhere(watched_server, elsewhere)
        try:
            with pytest.raises(GpuopsError) as raised:
                with_tags(session, inventory)
        finally:
            http.endpoint = watched_server
        assert raised.value.exit_code == 5
        assert len(watched_server.received) == 1


class _Elsewhere:
    def __init__(self, watched_server: Watched, serve: Callable[[Incoming], Outgoing]) -> None:
        self._watched, self.serve = watched_server, serve

    def __getattr__(self, name: str) -> Any:
        return getattr(self._watched, name)
