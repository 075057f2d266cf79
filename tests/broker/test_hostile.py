"""A Connection Server that sends what none would: one clear error of a known kind, and nothing of it is used."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import pytest

from gpuops import clock
from gpuops.broker import horizon
from gpuops.broker.horizon import Horizon
from gpuops.errors import (
    BrokerUnreachable,
    GpuopsError,
    LoginRefused,
    NoPermission,
    OutcomeUnknown,
    ProtocolError,
    Refused,
)
from gpuops.model.vcenter.target import BrokerTarget, Secret, Target

ACCESS: Final = "access-canary"
REFRESH: Final = "refresh-canary"
PASSWORD: Final = "password-canary"


class Scripted(BaseHTTPRequestHandler):
    """Answers a login well, and everything else as `script` says."""

    protocol_version = "HTTP/1.1"
    script: Callable[[Scripted], None] = staticmethod(lambda handler: None)
    login: bytes = json.dumps({"access_token": ACCESS, "refresh_token": REFRESH}).encode()

    def do_GET(self) -> None:
        type(self).script(self)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/rest/login":
            self.reply(200, type(self).login)
        elif self.path == "/rest/logout":
            self.reply(200, b"")
        elif self.path == "/rest/refresh":
            self.reply(200, json.dumps({"access_token": ACCESS}).encode())
        else:
            type(self).script(self)

    def reply(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("__", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


class Quiet(ThreadingHTTPServer):
    """A client that leaves is no news."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing."""


@pytest.fixture(scope="module")
def listener() -> Iterator[ThreadingHTTPServer]:
    server = Quiet(("127.0.0.1", 0), Scripted)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def target(listener: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch) -> BrokerTarget:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")  # the environment's proxies are not used
    monkeypatch.setattr(clock, "pause", lambda seconds: None)
    monkeypatch.setattr(horizon, "SILENCE_S", 1.5)
    monkeypatch.setattr(horizon, "REQUEST_S", 4.0)
    monkeypatch.setattr(horizon, "LARGEST_REPLY", 1 << 20)
    port = int(listener.server_address[1])
    return BrokerTarget(Target("127.0.0.1", "gpuops", Secret(PASSWORD), port=port, tls=False), "EXAMPLE")


def sends(status: int, body: bytes, **headers: str) -> Callable[[Scripted], None]:
    return lambda handler: handler.reply(status, body, **headers)


def answer_with_list(*records: object) -> Callable[[Scripted], None]:
    return sends(200, json.dumps(records).encode())


def session(**fields: object) -> dict[str, object]:
    return {"id": "1", "machine_id": "2", "session_state": "CONNECTED", **fields}


def endless(handler: Scripted) -> None:
    number = handler.path.partition("page=")[2].partition("&")[0]
    body = json.dumps([session(id=number)]).encode()
    handler.reply(200, body, HAS_MORE_RECORDS="TRUE")


def dripping(handler: Scripted) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    stopped = threading.Event()
    try:
        while not stopped.wait(0.05):
            handler.wfile.write(b" ")
            handler.wfile.flush()
    except OSError:
        return


def silent(handler: Scripted) -> None:
    threading.Event().wait(30.0)
    handler.close_connection = True


READS: dict[str, tuple[Callable[[Scripted], None], type[GpuopsError], str]] = {
    "garbage": (sends(200, b"<html>canary</html>"), ProtocolError, "sends what no Connection Server sends"),
    "empty": (sends(200, b""), ProtocolError, "sends what no Connection Server sends"),
    "not a list": (sends(200, b'{"access_token": "canary"}'), ProtocolError, "it is not a list of objects"),
    "deep": (sends(200, b"[" * 100_000), ProtocolError, "nested too deep"),
    "long number": (sends(200, b"[" + b"9" * 50_000 + b"]"), ProtocolError, "a number of 50000 digits"),
    "bytes": (sends(200, b"\xff\xfe"), ProtocolError, "sends what no Connection Server sends"),
    "huge": (sends(200, b" " * (1 << 21)), ProtocolError, "a reply of more than"),
    "packed": (sends(200, b"x", Content__Encoding="gzip"), ProtocolError, "a compressed reply"),
    "no id": (answer_with_list({"machine_id": "2"}), ProtocolError, "id is missing"),
    "a number as id": (answer_with_list(session(id=7)), ProtocolError, "id is not of type str"),
    "a truth as a time": (answer_with_list(session(start_time=True)), ProtocolError, "start_time is not of type int"),
    "a time before time": (answer_with_list(session(start_time=-5)), ProtocolError, "start_time is not a time"),
    "a time after time": (answer_with_list(session(start_time=10**17)), ProtocolError, "start_time is not a time"),
    "a long name": (answer_with_list(session(id="x" * 5000)), ProtocolError, "id has more than 1024 characters"),
    "endless pages": (endless, ProtocolError, "sends more than 5 pages"),
    "one page again and again": (
        sends(200, json.dumps([session()]).encode(), HAS_MORE_RECORDS="TRUE"),
        ProtocolError,
        "repeats an earlier one",
    ),
    "never authorised": (sends(401, b""), LoginRefused, "does not accept its own session of"),
    "forbidden": (sends(403, b""), NoPermission, r"EXAMPLE\\gpuops may not use /inventory/v1/sessions"),
    "not there": (sends(404, b""), ProtocolError, "with status 404"),
    "elsewhere": (sends(302, b"", Location="http://elsewhere/"), ProtocolError, "with status 302"),
    "refused": (sends(400, b""), Refused, "refuses /inventory/v1/sessions"),
    "away": (sends(503, b""), BrokerUnreachable, "overloaded or starting"),
    "dripping": (dripping, BrokerUnreachable, "did not end within"),
    "silent": (silent, BrokerUnreachable, "did not answer within"),
}


@pytest.mark.parametrize("case", READS)
def test_a_read_ends_in_one_clear_error(target: BrokerTarget, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    script, kind, words = READS[case]
    monkeypatch.setattr(Scripted, "script", staticmethod(script))
    monkeypatch.setattr(horizon, "MOST_PAGES", 5)
    monkeypatch.setattr(horizon, "PAUSES_S", ())
    with Horizon(target) as broker, pytest.raises(kind, match=words) as caught:
        broker.sessions()
    assert "canary" not in f"{caught.value.line}{caught.value!r}", "neither secrets nor what was sent"
    assert "\n" not in caught.value.line


LOGINS: dict[str, bytes] = {
    "no token": b"{}",
    "a list": b"[]",
    "a token of two lines": json.dumps({"access_token": "a\nb", "refresh_token": REFRESH}).encode(),
    "a number": json.dumps({"access_token": 5, "refresh_token": REFRESH}).encode(),
}


@pytest.mark.parametrize("case", LOGINS)
def test_a_login_without_a_token_is_none(target: BrokerTarget, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.setattr(Scripted, "login", LOGINS[case])
    with pytest.raises(ProtocolError, match="in reply to /login") as caught:
        Horizon(target)
    assert "canary" not in caught.value.line


CHANGES: dict[str, tuple[Callable[[Scripted], None], type[GpuopsError], str]] = {
    "no reply": (silent, OutcomeUnknown, "whether the machines changed is not known"),
    "broken": (sends(500, b""), OutcomeUnknown, "whether the machines changed is not known"),
    "garbage": (sends(200, b"canary"), OutcomeUnknown, "whether the machines changed is not known"),
    "another machine": (answer_with_list({"id": "9", "status_code": 200}), OutcomeUnknown, "was not in the request"),
    "refused": (sends(409, b""), Refused, "nothing was changed"),
    "forbidden": (sends(403, b""), NoPermission, "may not use"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_change_is_sent_once(target: BrokerTarget, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    script, kind, words = CHANGES[case]
    sent: list[str] = []

    def counted(handler: Scripted) -> None:
        sent.append(handler.path)
        script(handler)

    monkeypatch.setattr(Scripted, "script", staticmethod(counted))
    with Horizon(target) as broker, pytest.raises(kind, match=words):
        broker.enter_maintenance(["1"])
    assert sent == ["/rest/inventory/v1/machines/action/enter-maintenance"]


def test_a_machine_of_which_nothing_is_said_is_not_gated(target: BrokerTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    status = {"id": "2", "status_code": 400, "error_messages": ["it is provisioning"]}
    monkeypatch.setattr(Scripted, "script", staticmethod(answer_with_list({"id": "1", "status_code": 200}, status)))
    with Horizon(target) as broker:
        assert broker.enter_maintenance(["1", "2", "3"]) == {
            "2": "it is provisioning",
            "3": "the broker did not report a result for it",
        }
