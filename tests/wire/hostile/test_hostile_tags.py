"""What is no answer of the vSphere Automation API, at /api: a ProtocolError that says so, within bytes and seconds."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from gpuops.console.failure import run_guarded
from gpuops.errors import ProtocolError, VcenterUnreachable
from gpuops.model.vcenter.inventory import Inventory
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.wire.automation import rest
from gpuops.sim.wire.automation.services import VapiServices
from gpuops.vsphere.reading import collect
from gpuops.vsphere.reading.tags import with_tags
from gpuops.vsphere.session import Session
from gpuops.vsphere.transport import automation
from gpuops.vsphere.transport.exchange import HttpReply
from tests.sample import mostly_long
from tests.wire.conftest import target_of

pytestmark = pytest.mark.long

NAN = b'{"jsonrpc": "2.0", "id": "%s", "result": {"output": NaN}}'
ANSWER = b'{"jsonrpc": "2.0", "id": "%%s", "result": {"output": %b}}'
REPLIES = {
    "HTML": b"<html><body>Log in to the network</body></html>",
    "nothing": b"",
    "not UTF-8": b"\xff\xfe{}",
    "NaN": b"NaN",
    "NaN within": NAN,
    "a list": b"[]",
    "a list of lists": b"[[[]]]",
    "null": b"null",
    "a number": b"1e999",
    "many digits": b"9" * 5000,
    "text": b'"text"',
    "empty": b"{}",
    "no result": b'{"jsonrpc": "2.0", "id": "%s"}',
    "result is a list": b'{"jsonrpc": "2.0", "id": "%s", "result": []}',
    "result is null": b'{"jsonrpc": "2.0", "id": "%s", "result": null}',
    "error is a text": b'{"jsonrpc": "2.0", "id": "%s", "error": "no"}',
    "error of its own": b'{"jsonrpc": "2.0", "id": "%s", "result": {"error": {"ERROR": {"x": {}}}}}',
    "nested": b"[" * 100_000 + b"]" * 100_000,
    "nested mappings": b'{"a":' * 60_000 + b"1" + b"}" * 60_000,
    "nested within": ANSWER % (b"[" * 50_000 + b"]" * 50_000),
    "many mappings": b"[" + b"{}," * 2_500_000 + b"{}]",
    "too large": b'"' + b"x" * 9 * 1024**2 + b'"',
    "another output": ANSWER % b'{"STRUCTURE": {"a.b": {"c": 1}}}',
    "a structure without fields": ANSWER % b'{"STRUCTURE": 5}',
    "an unknown type": ANSWER % b'{"WHAT": 5}',
}


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """One session for all of these tests: each logs in to the vSphere Automation API anew."""
    with SimServer(build("lab")) as server:
        with Session(target_of(server)) as opened:
            yield opened
        assert (server.world.bugs, list(server.world.sessions)) == ([], [])


@pytest.fixture(scope="module")
def inventory(session: Session) -> Inventory:
    return collect.inventory(session)


def strike(monkeypatch: pytest.MonkeyPatch, reply: bytes, *, service: str) -> None:
    """From here on calls of this service are answered so."""
    honest = rest.answer_rpc

    def answer(services: VapiServices, body: bytes) -> tuple[int, bytes]:
        request = json.loads(body)
        if service not in request["params"]["serviceId"]:
            return honest(services, body)
        return 200, reply.replace(b"%s", str(request["id"]).encode())

    monkeypatch.setattr(rest, "answer_rpc", answer)


@pytest.mark.parametrize(
    ("service", "name"),
    mostly_long(
        product(("session", "tag_association"), REPLIES),
        [
            *(("tag_association", name) for name in REPLIES),
            *(("session", name) for name in ("HTML", "nothing", "result is null", "nested within", "another output")),
        ],
    ),
)
def test_it_is_refused(
    session: Session,
    inventory: Inventory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    service: str,
) -> None:
    strike(monkeypatch, REPLIES[name], service=service)
    before_s = time.process_time()
    assert run_guarded(lambda: with_tags(session, inventory)) == 5
    assert time.process_time() - before_s < 5
    line = capsys.readouterr().err
    assert line.startswith("error: 127.0.0.1:")
    assert len(line) < 500


def test_many_mappings_take_no_memory(session: Session, inventory: Inventory, monkeypatch: pytest.MonkeyPatch) -> None:
    with_tags(session, inventory)
    strike(monkeypatch, ANSWER % (b"[" + b"{}," * (automation.MOST_VALUES // 2) + b"{}]"), service="tag_association")
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ProtocolError):
        with_tags(session, inventory)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 256 * 1024


def test_all_calls_together_have_a_time(
    session: Session, inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, bodies_sent = rest.answer_rpc, []

    def late(services: VapiServices, body: bytes) -> tuple[int, bytes]:
        bodies_sent.append(body)
        time.sleep(0.3)
        return honest(services, body)

    monkeypatch.setattr(rest, "answer_rpc", late)
    monkeypatch.setattr(automation, "DEADLINE_S", 0.4)
    with pytest.raises(VcenterUnreachable):
        with_tags(session, inventory)
    assert len(bodies_sent) <= 2, "the login, and a part of the first answer"


def test_a_redirect_is_refused_before_anything_is_sent_elsewhere(
    session: Session, inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(*_: Any, **__: Any) -> HttpReply:
        return HttpReply(302, "Found", b"", ())

    monkeypatch.setattr(automation, "exchange", elsewhere)
    with pytest.raises(ProtocolError, match="redirect"):
        with_tags(session, inventory)
