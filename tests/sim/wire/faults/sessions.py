"""Faults of sessions (N): they end, come and go, are refused, and lose their rights."""

from __future__ import annotations

from typing import Any

import pytest
from pyVmomi import SoapStubAdapter, vim, vmodl

from tests.sim.lab import Lab
from tests.sim.wire.faults.clients import BROKEN, give, powers, wait


def sees_N1(lab: Lab) -> None:
    give(lab, "N1", method="CurrentTime")
    with pytest.raises(vim.fault.NotAuthenticated):
        lab.si.CurrentTime()
    with pytest.raises(vim.fault.NotAuthenticated):
        lab.vm("vdi-01").SuspendVM_Task()


def sees_N2(lab: Lab) -> None:
    give(lab, "N2")
    [content] = powers(lab, "vdi-01")
    assert content.propSet[0].name == "name"
    assert [(missing.path, type(missing.fault)) for missing in content.missingSet] == [
        ("runtime.powerState", vim.fault.NotAuthenticated)
    ]
    [second_content] = powers(lab, "vdi-01")
    assert not second_content.missingSet


def sees_N3(lab: Lab) -> None:
    give(lab, "N3")
    with pytest.raises(vmodl.fault.RequestCanceled):
        wait(lab)
    with pytest.raises(vim.fault.NotAuthenticated):
        wait(lab)


def sees_N4(lab: Lab) -> None:
    give(lab, "N4")
    with pytest.raises(vmodl.query.InvalidCollectorVersion):
        wait(lab)
    wait(lab)


def sees_N5(lab: Lab) -> None:
    give(lab, "N5", method="CurrentTime")
    heard = []
    for _ in range(4):
        try:
            lab.si.CurrentTime()
            heard.append("time")
        except vim.fault.NotAuthenticated:
            heard.append("no")
    assert heard == ["no", "time", "no", "time"]


def sees_N6(lab: Lab) -> None:
    give(lab, "N6")
    manager = lab.si.content.sessionManager
    for _ in range(2):
        with pytest.raises(vim.fault.InvalidLogin):
            manager.Login("administrator@vsphere.local", "x")


def sees_N7(lab: Lab) -> None:
    give(lab, "N7")
    task = lab.vm("vdi-01").SuspendVM_Task()
    with pytest.raises(BROKEN):
        lab.si.CurrentTime()
    lab.let_pass(600)
    with pytest.raises(vim.fault.NotAuthenticated):
        lab.vm("vdi-01").runtime  # noqa: B018 - a read over the wire
    assert lab.world.find(task._moId) is None
    assert lab.world.get(lab.vm("vdi-01")._moId).state.power == "suspended"


def sees_N8(lab: Lab) -> None:
    give(lab, "N8")
    lab.run(lab.vm("vdi-01").SuspendVM_Task())
    with pytest.raises(vim.fault.NoPermission):
        lab.vm("vdi-01").PowerOnVM_Task()
    assert lab.power("vdi-01") == "suspended"


def sees_N9(lab: Lab) -> None:
    give(lab, "N9", for_s=600)
    [(username, password)] = lab.world.sessions.passwords.items()
    host, port = lab.si._stub.host.split(":")
    stub = SoapStubAdapter(host, -int(port), version=lab.si._stub.version)  # a negative port: without TLS
    manager: Any = vim.SessionManager(lab.si.content.sessionManager._moId, stub)
    manager.Login(username, password)
    manager.Logout()
    lab.run(lab.vm("vdi-01").SuspendVM_Task())
    with pytest.raises(vim.fault.InvalidLogin):
        manager.Login(username, password)
    assert lab.power("vdi-01") == "suspended"
    lab.let_pass(600)
    manager.Login(username, password)
    manager.Logout()
    stub.DropConnections()


def sees_N10(lab: Lab) -> None:
    give(lab, "N10")
    vm, before = lab.vm("vdi-07"), lab.si.content.about.instanceUuid
    lab.vm("vdi-01").SuspendVM_Task()
    with pytest.raises(vim.fault.NotAuthenticated):
        lab.si.CurrentTime()
    content_after = lab.si.RetrieveContent()
    assert content_after.about.instanceUuid != before
    vms = {vm.name: vm for vm in lab.world.by_type("VirtualMachine")}
    assert vms["vdi-07"].moid != vm._moId
    assert (vms["vdi-07"].attributes, vms["vdi-07"].state.power) == ({}, "poweredOn")
