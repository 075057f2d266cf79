"""A fault raises whatever HTTP status it has: some proxies answer 200 for every reply that has a body."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyVmomi import vim, vmodl

from gpuops.errors import GpuopsError
from gpuops.model.vcenter.target import Secret, Target
from gpuops.vsphere.session import Session
from tests.wire.hostile.hostile_replies import CLOSE, OPEN, XML, Hostile
from tests.wire.hostile.hostile_server import HostileServer

FAULT = (
    "<soapenv:Fault><faultcode>ServerFaultCode</faultcode><faultstring>not here</faultstring><detail>"
    '<NotSupportedFault xmlns="urn:vim25" xsi:type="NotSupported"/></detail></soapenv:Fault>'
)
METHODS = ["CurrentTime", "Fetch", "PowerOffVM_Task", "MarkAsTemplate"]


@pytest.fixture
def session() -> Iterator[Session]:
    with HostileServer() as server:
        honest = server.honest
        with Session(
            Target("127.0.0.1", honest.username, Secret(honest.password), port=server.port, tls=False)
        ) as session:
            _ = session.content
            server.strikes = dict.fromkeys(METHODS, Hostile(f"{XML}{OPEN}{FAULT}{CLOSE}".encode()))
            yield session


def call(session: Session, method: str) -> object:
    vm = vim.VirtualMachine("vm-1", session.stub)
    match method:
        case "CurrentTime":
            return session.instance.CurrentTime()
        case "Fetch":
            return vm.name
        case _:
            return getattr(vm, method)()


@pytest.mark.parametrize("method", METHODS)
def test_a_fault_with_status_200_raises(session: Session, method: str) -> None:
    with pytest.raises(vmodl.fault.NotSupported, match="not here"):
        call(session, method)


def test_a_read_fails_by_it(session: Session) -> None:
    with pytest.raises(GpuopsError, match="not here"):
        session.read(session.instance.CurrentTime)


def test_a_change_fails_by_it(session: Session) -> None:
    power_off = vim.VirtualMachine("vm-1", session.stub).PowerOffVM_Task
    with pytest.raises(GpuopsError, match="not here"):
        session.change(power_off, subject="vm-1", op_id="test")
