"""Logging in over real TLS, being refused, losing the session, and always logging out."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pytest_mock import MockerFixture
from pyVmomi import vim

from gpuops.errors import GpuopsError, LoginRefused, NotTrusted, OutcomeUnknown, ProtocolError, VcenterUnreachable
from gpuops.model.vcenter.target import Secret, Target
from gpuops.sim.fault_injection.rule import Effect, Phase, Rule
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.wire import certificates
from gpuops.vsphere.reading.collect import inventory
from gpuops.vsphere.session import Session
from gpuops.vsphere.transport import network


def test_a_session_verifies_negotiates_and_logs_out(lab: SimServer, lab_target: Target) -> None:
    with Session(lab_target) as session:
        assert session.api_version == "8.0.3.0"
        assert session.stub._pop_connection()._context.verify_mode is ssl.CERT_REQUIRED
        assert len(list(lab.world.sessions)) == 1
    assert list(lab.world.sessions) == []


def test_an_exception_logs_out_too(lab: SimServer, lab_target: Target) -> None:
    with pytest.raises(ZeroDivisionError), Session(lab_target):
        raise ZeroDivisionError
    assert list(lab.world.sessions) == []


@contextmanager
def serve_expired_certificate(tmp_path: Path) -> Iterator[SimServer]:
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    expired_certificates = certificates.create(tmp_path, now=long_ago, validity=timedelta(days=1))
    with SimServer(build("lab"), server_certificates=expired_certificates) as server:
        yield server


def test_an_expired_certificate_is_refused_before_the_password_is_sent(tmp_path: Path) -> None:
    with serve_expired_certificate(tmp_path) as server:
        target = Target("127.0.0.1", "u", Secret("p"), port=server.port, ca_files=(str(server.ca_file),))
        with pytest.raises(NotTrusted, match="has expired"):
            Session(target)
        assert list(server.world.sessions) == []


def test_a_certificate_made_out_to_another_name_is_refused() -> None:
    with SimServer(build("lab"), host="127.0.0.2") as server:
        target = Target("127.0.0.2", "u", Secret("p"), port=server.port, ca_files=(str(server.ca_file),))
        with pytest.raises(NotTrusted, match="issued for another name"):
            Session(target)
        assert list(server.world.sessions) == []


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"password": Secret("wrong")}, LoginRefused, "user name or password refused"),
        ({"ca_files": ()}, NotTrusted, "issuer that is not trusted"),
        ({"ca_files": ("/nowhere/ca.pem",)}, NotTrusted, "/nowhere/ca.pem"),
        ({"tls": False}, GpuopsError, "127.0.0.1"),
        ({"host": "no-such-host.invalid"}, VcenterUnreachable, r"no address for no-such-host\.invalid"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_barred_door_says_why_and_what_next(
    lab_target: Target, change: dict[str, object], error: type[GpuopsError], words: str
) -> None:
    with pytest.raises(error, match=words) as raised:
        Session(replace(lab_target, **change))  # type: ignore[arg-type]
    assert raised.value.hint
    assert raised.value.exit_code == 5
    assert lab_target.password.reveal() not in str(raised.value)


def test_nothing_listening_is_unreachable() -> None:
    with socket.socket() as unused_port:
        unused_port.bind(("127.0.0.1", 0))
        with pytest.raises(VcenterUnreachable, match=os.strerror(errno.ECONNREFUSED)):
            Session(Target("127.0.0.1", "u", Secret("p"), port=unused_port.getsockname()[1], tls=False))


def test_a_server_that_is_no_vcenter_is_a_protocol_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ProtocolError, match="is not a vCenter"):
            Session(Target("127.0.0.1", "u", Secret("p"), port=listener.getsockname()[1], tls=False))
        thread.join()


def test_a_read_whose_session_ended_logs_in_once_more(lab: SimServer, lab_target: Target) -> None:
    with Session(lab_target) as session:
        lab.world.injector.add(Rule(Effect.EXPIRE, method="CurrentTime"))
        assert session.read(session.instance.CurrentTime).tzinfo is not None
        assert session.logins == 2


def test_a_session_that_ends_every_time_is_given_up(lab: SimServer, lab_target: Target) -> None:
    with Session(lab_target) as session:
        lab.world.injector.add(Rule(Effect.EXPIRE, method="CurrentTime", times=None))
        with pytest.raises(LoginRefused):
            session.read(session.instance.CurrentTime)
        assert session.logins == 2


def _vm(session: Session, name: str) -> vim.VirtualMachine:
    vm: vim.VirtualMachine = session.content.searchIndex.FindByInventoryPath(f"/lab-dc/vm/vdi/{name}")
    return vm


@pytest.mark.parametrize("effect", [Effect.RESET, Effect.CUT])
def test_a_change_whose_reply_is_lost_is_sent_once_and_unknown(
    lab: SimServer, lab_target: Target, effect: Effect
) -> None:
    with Session(lab_target) as session:
        vm = _vm(session, "vdi-01")
        lab.world.injector.add(Rule(effect, method="SuspendVM_Task", phase=Phase.AFTER, times=None))
        with pytest.raises(OutcomeUnknown, match="vdi-01"):
            session.change(vm.SuspendVM_Task, subject="vdi-01", op_id="op-1")
        assert len(lab.world.tasks.unfinished()) == 1


def test_the_operation_id_travels_with_the_change(lab: SimServer, lab_target: Target) -> None:
    with Session(lab_target) as session:
        session.change(_vm(session, "vdi-01").SuspendVM_Task, subject="vdi-01", op_id="night-7")
        lab.world.clock.advance(600)
    assert [change.operation_id for change in lab.world.ledger if change.method == "SuspendVM_Task"] == ["night-7"]


def test_a_single_host_is_not_taken_for_a_vcenter(
    lab: SimServer, lab_target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = lab.world.get(vim.ServiceInstance("ServiceInstance"))
    answer = instance.RetrieveServiceContent

    def of_a_host(*arguments: object, **keywords: object) -> object:
        content = answer(*arguments, **keywords)
        content.about.apiType = "HostAgent"
        return content

    monkeypatch.setattr(instance, "RetrieveServiceContent", of_a_host, raising=False)
    with pytest.raises(ProtocolError, match="is a single ESXi host, not a vCenter"):
        Session(lab_target)
    assert list(lab.world.sessions) == []


def test_reads_one_after_another_share_one_connection(
    lab: SimServer, lab_target: Target, mocker: MockerFixture
) -> None:
    opened = mocker.spy(network, "open_connection")
    with Session(lab_target) as session:
        connections = opened.call_count
        for _ in range(3):
            inventory(session)
        assert opened.call_count == connections


def test_two_at_once_have_a_connection_each(lab_target: Target) -> None:
    with Session(lab_target) as session, session.wire() as first, session.wire() as second:
        assert first is not second


def test_a_connection_that_idled_for_long_or_ended_badly_is_made_anew(
    lab_target: Target, mocker: MockerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = mocker.spy(network, "open_connection")
    with Session(lab_target) as session:
        connections = opened.call_count
        monkeypatch.setattr(network, "IDLE_CONNECTION_S", -1)
        inventory(session)
        assert opened.call_count == connections + 1
        monkeypatch.undo()
        with pytest.raises(ZeroDivisionError), session.wire():
            raise ZeroDivisionError
        inventory(session)
        assert opened.call_count == connections + 2


def test_a_connection_that_vcenter_dropped_meanwhile_is_made_anew(lab: SimServer, lab_target: Target) -> None:
    with Session(lab_target) as session:
        before = inventory(session)
        lab.drop_connections()
        assert inventory(session).vms == before.vms
