"""The catalogue of faults, each as a real client meets it: pyVmomi where a call is meant, bare TLS where the wire is.

A function per id, called `sees_<id>`; the first test says so of every id in the catalogue.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.parsers.expat import ExpatError

import pytest
from pyVmomi import vim, vmodl

from gpuops.errors import UsageError
from gpuops.sim.core.object_store import OTHER_USER
from gpuops.sim.fault_injection.catalogue import catalogue, rules_of
from gpuops.sim.fault_injection.rule import Effect, Phase, Rule
from gpuops.sim.outside_events.fault_file import read
from gpuops.sim.server import SimServer
from gpuops.sim.state.board import GpuMode
from tests.sim.guests import nvidia_smi
from tests.sim.lab import Lab, Q, served

OPENED: list[http.client.HTTPConnection] = []
BROKEN = (OSError, http.client.HTTPException, ExpatError)


@pytest.fixture
def lab() -> Iterator[Lab]:
    with served() as lab:
        yield lab
    while OPENED:
        OPENED.pop().close()


def give(lab: Lab, fault_id: str, **changes: Any) -> None:
    """Have a fault of the catalogue in store."""
    for rule in rules_of(fault_id, changes):
        lab.world.injector.add(rule)


def effects(lab: Lab, method: str = "*") -> list[str]:
    """The ledger's methods, of this client only."""
    return [entry.method for entry in lab.world.ledger if entry.user != OTHER_USER and method in ("*", entry.method)]


def ledger_of_others(lab: Lab) -> list[tuple[str, str]]:
    return [(entry.method, entry.name) for entry in lab.world.ledger if entry.user == OTHER_USER]


# --- transport ------------------------------------------------------------------------------------------------------


def sees_T1(lab: Lab) -> None:
    give(lab, "T1")
    with pytest.raises(BROKEN):
        lab.vm("vdi-01").SuspendVM_Task()
    assert lab.world.tasks.unfinished() == []


def sees_T2(lab: Lab) -> None:
    give(lab, "T2")
    with pytest.raises(BROKEN):
        lab.vm("vdi-01").SuspendVM_Task()
    lab.let_pass(600)
    assert effects(lab) == ["SuspendVM_Task"]


def sees_T3(lab: Lab) -> None:
    give(lab, "T3")
    connection = bare(lab)
    assert asked(connection)[0] == 200
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        asked(connection)


def sees_T4(lab: Lab) -> None:
    give(lab, "T4", method="*")
    with pytest.raises((http.client.IncompleteRead, ssl.SSLEOFError)):
        asked(bare(lab))


def sees_T5(lab: Lab) -> None:
    give(lab, "T5", method="*")
    status, body = asked(bare(lab))
    assert status == 200
    assert b"</soapenv:Envelope>" not in body


def sees_T6(lab: Lab) -> None:
    give(lab, "T6", method="Retrieve*")
    assert asked(bare(lab)) == (200, b"<html><body>It works!</body></html>")


def sees_T7(lab: Lab) -> None:
    give(lab, "T7", method="Retrieve*")
    with pytest.raises(TimeoutError):
        asked(bare(lab, timeout_s=0.3))


def sees_T8(lab: Lab) -> None:
    give(lab, "T8", delay_s=0.2)
    connection = bare(lab, timeout_s=5)
    post(connection)
    response = connection.getresponse()
    assert [len(response.read1(100)), len(response.read1(100))] == [1, 1]


def sees_T9(lab: Lab) -> None:
    give(lab, "T9")
    connection = bare(lab)
    assert [asked(connection)[0] for _ in range(4)] == [503, 503, 503, 200]


def sees_T10(lab: Lab) -> None:
    give(lab, "T10")
    assert asked(bare(lab))[0] == 429


def sees_T11(lab: Lab) -> None:
    before = lab.si.CurrentTime()
    give(lab, "T11", method="CurrentTime")
    assert (lab.si.CurrentTime() - before).total_seconds() >= 60


def sees_T12(lab: Lab) -> None:
    give(lab, "T12")
    task = lab.vm("vdi-01").SuspendVM_Task()
    tries = 0
    while True:
        try:
            lab.si.CurrentTime()
            break
        except BROKEN:
            tries += 1
    assert tries == 29  # ten seconds each, until five minutes are over
    assert task.info.state == "success"


def sees_T13(lab: Lab) -> None:
    give(lab, "T13", method="Retrieve*")
    with SimServer(lab.world) as server:
        trusting = ssl.create_default_context(cafile=server.ca_file)
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=trusting, timeout=5)
        with pytest.raises(BROKEN):
            asked(connection)
        connection.close()
        with pytest.raises(ssl.SSLCertVerificationError):
            asked(connection)


# --- sessions -------------------------------------------------------------------------------------------------------


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
    assert [(each.path, type(each.fault)) for each in content.missingSet] == [
        ("runtime.powerState", vim.fault.NotAuthenticated)
    ]
    [again] = powers(lab, "vdi-01")
    assert not again.missingSet


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


# --- tasks ----------------------------------------------------------------------------------------------------------


def sees_A1(lab: Lab) -> None:
    give(lab, "A1", target="vdi-01")
    powers(lab, "vdi-01")
    own = lab.vm("vdi-01").SuspendVM_Task()
    first, last = lab.vm("vdi-01").recentTask
    assert (first.info.state, first.info.reason.userName) == ("running", OTHER_USER)
    assert (last, own.info.state) == (own, "queued")


def sees_A2(lab: Lab) -> None:
    give(lab, "A2")
    with pytest.raises(vim.fault.ConcurrentAccess):
        lab.vm("ml-07").ReconfigVM_Task(vim.vm.ConfigSpec(annotation="x"))


def sees_A3(lab: Lab) -> None:
    give(lab, "A3", fault="GenericVmConfigFault", method="SuspendVM_Task")
    task = lab.vm("vdi-01").SuspendVM_Task()
    lab.let_pass(9)
    assert isinstance(task.info.error, vim.fault.GenericVmConfigFault)
    assert lab.power("vdi-01") == "poweredOn"


def sees_A4(lab: Lab) -> None:
    give(lab, "A4")
    task = lab.vm("vdi-01").SuspendVM_Task()
    lab.let_pass(1500)
    assert (task.info.state, lab.power("vdi-01")) == ("running", "poweredOn")


def sees_A5(lab: Lab) -> None:
    give(lab, "A5")
    task = lab.vm("vdi-01").SuspendVM_Task()
    lab.let_pass(600)
    with pytest.raises(vmodl.fault.ManagedObjectNotFound):
        task.info  # noqa: B018 - a read over the wire
    assert lab.power("vdi-01") == "suspended"


def sees_A6(lab: Lab) -> None:
    give(lab, "A6")
    lab.run(lab.vm("vdi-01").SuspendVM_Task())
    assert lab.power("vdi-01") == "poweredOn"
    lab.let_pass(31)
    assert lab.power("vdi-01") == "suspended"


def sees_A7(lab: Lab) -> None:
    give(lab, "A7")
    task = lab.vm("vdi-01").SuspendVM_Task()
    lab.let_pass(500)
    assert (task.info.state, task.info.startTime) == ("queued", None)
    lab.let_pass(200)
    assert task.info.state == "success"


def sees_A8(lab: Lab) -> None:
    give(lab, "A8")
    off = lab.vm("vdi-06")
    result = lab.run(lab.datacenter().PowerOnMultiVM_Task([off]))
    assert [(each.vm, type(each.fault)) for each in result.notAttempted] == [(off, vim.fault.NoCompatibleHost)]


def sees_A9(lab: Lab) -> None:
    give(lab, "A9")
    vm = lab.vm("vdi-06")
    task = vm.PowerOnVM_Task()
    lab.let_pass(600)
    asked_of = vm.runtime.question
    assert (task.info.state, asked_of.id) == ("running", "msg.hbacommon.outofspace")
    vm.AnswerVM(asked_of.id, "0")
    lab.let_pass(10)
    assert (task.info.state, lab.power("vdi-06")) == ("success", "poweredOn")


def sees_A10(lab: Lab) -> None:
    give(lab, "A10")
    [content] = powers(lab, "vdi-01")
    assert [each.name for each in content.propSet] == ["name"]
    assert not content.missingSet


def sees_A11(lab: Lab) -> None:
    assert lab.power("vdi-01") == "poweredOn"
    give(lab, "A11", target="vdi-01")
    task = lab.vm("vdi-01").SuspendVM_Task()
    lab.let_pass(60)
    assert (task.info.state, lab.power("vdi-01")) == ("success", "poweredOn")
    lab.let_pass(60)
    assert lab.power("vdi-01") == "suspended"


def sees_A12(lab: Lab) -> None:
    give(lab, "A12", target="vdi-12")
    lab.world.page_limit = 5
    view = lab.si.content.viewManager.CreateContainerView(lab.si.content.rootFolder, [vim.VirtualMachine], True)
    walk = Q.TraversalSpec(type=vim.view.ContainerView, path="view")
    names = Q.PropertySpec(type=vim.VirtualMachine, pathSet=["name"])
    spec = Q.FilterSpec(objectSet=[Q.ObjectSpec(obj=view, skip=True, selectSet=[walk])], propSet=[names])
    collector = lab.si.content.propertyCollector
    page = collector.RetrievePropertiesEx([spec], Q.RetrieveOptions())
    found = []
    while page is not None:
        found += [content.propSet[0].val for content in page.objects if content.propSet]
        page = collector.ContinueRetrievePropertiesEx(page.token) if page.token else None
    assert "vdi-12" not in found
    assert {"vdi-01", "ml-07", "twin"} <= set(found)


# --- VMs, GPUs, cluster ---------------------------------------------------------------------------------------------


def sees_V1(lab: Lab) -> None:
    give(lab, "V1")
    with pytest.raises(vim.fault.NoDiskSpace):
        lab.run(lab.vm("vdi-01").SuspendVM_Task())
    assert lab.power("vdi-01") == "poweredOn"


def sees_V2(lab: Lab) -> None:
    give(lab, "V2")
    with pytest.raises(vmodl.fault.NotSupported):
        lab.vm("vdi-01").SuspendVM_Task()


def sees_V3(lab: Lab) -> None:
    give(lab, "V3")
    slow = lab.vm("vdi-01").SuspendVM_Task()
    lab.let_pass(100)
    assert slow.info.state == "running"
    lab.let_pass(100)
    assert slow.info.state == "success"


def sees_V4(lab: Lab) -> None:
    give(lab, "V4", target="vdi-11")
    old = lab.vm("vdi-11")
    before = old.config.instanceUuid
    lab.vm("vdi-01").SuspendVM_Task()
    with pytest.raises(vmodl.fault.ManagedObjectNotFound):
        old.runtime  # noqa: B018 - a read over the wire
    new = lab.vm("vdi-11")
    assert (new.config.instanceUuid == before, lab.power("vdi-11")) == (False, "poweredOff")
    assert ledger_of_others(lab)[-2:] == [("Destroy_Task", "vdi-11"), ("CreateVM_Task", "vdi-11")]


def sees_V5(lab: Lab) -> None:
    give(lab, "V5", target="vdi-02", for_s=100)
    lab.vm("vdi-01").SuspendVM_Task()
    assert lab.vm("vdi-02").runtime.connectionState == "inaccessible"
    lab.let_pass(101)
    assert lab.vm("vdi-02").runtime.connectionState == "connected"


def sees_V6(lab: Lab) -> None:
    give(lab, "V6", target="vdi-02")
    vm = lab.vm("vdi-02")
    lab.vm("vdi-01").SuspendVM_Task()
    assert vm.name == vm.config.name == "vdi-02-renamed"


def sees_V7(lab: Lab) -> None:
    give(lab, "V7", target="vdi-11")
    assert lab.power("vdi-11") == "suspended"
    lab.vm("vdi-01").SuspendVM_Task()
    assert lab.power("vdi-11") == "poweredOff"
    assert ledger_of_others(lab) == [("PowerOffVM_Task", "vdi-11")]


def sees_V8(lab: Lab) -> None:
    give(lab, "V8", target="vdi-11")
    with pytest.raises(vim.fault.GenericVmConfigFault):
        lab.run(lab.vm("vdi-11").PowerOnVM_Task())
    assert lab.power("vdi-11") == "suspended"


def sees_V10(lab: Lab) -> None:
    give(lab, "V10", target="vdi-02")
    vm = lab.vm("vdi-02")
    before = vm.parent.name
    lab.vm("vdi-01").SuspendVM_Task()
    assert vm.parent.name != before


def sees_V11(lab: Lab) -> None:
    give(lab, "V11", target="vdi-11")
    assert lab.power("vdi-11") == "suspended"
    lab.vm("vdi-01").SuspendVM_Task()
    assert lab.power("vdi-11") == "poweredOff"
    assert ledger_of_others(lab) == [("RevertToSnapshot_Task", "vdi-11")]


def sees_V12(lab: Lab) -> None:
    give(lab, "V12", target="vdi-02")
    assert lab.vm("vdi-02").config.managedBy is None
    lab.vm("vdi-01").SuspendVM_Task()
    managed = lab.vm("vdi-02").config.managedBy
    assert (managed.extensionKey, managed.type) == ("com.vmware.vcenter.wcp", "VirtualMachine")
    assert ledger_of_others(lab) == [("ReconfigVM_Task", "vdi-02")]


def sees_V9(lab: Lab) -> None:
    give(lab, "V9", target="vdi-02")
    vm = lab.vm("vdi-02")
    assert vm.summary.quickStats.overallCpuUsage < 500
    lab.vm("vdi-01").SuspendVM_Task()
    assert vm.summary.quickStats.overallCpuUsage == 5200
    assert vm.runtime.numMksConnections == 0


def sees_G1(lab: Lab) -> None:
    give(lab, "G1", target="vdi-06")
    lab.vm("vdi-12").PowerOnVM_Task()
    lab.let_pass(30)
    assert "vdi-06" in {vm for on_it in lab.gpus("esx-01.lab").values() for vm in on_it}
    assert ledger_of_others(lab) == [("PowerOnVM_Task", "vdi-06")]


def sees_G2(lab: Lab) -> None:
    give(lab, "G2")
    with pytest.raises(vim.fault.InsufficientGraphicsResourcesFault):
        lab.run(lab.vm("vdi-06").PowerOnVM_Task())


def sees_G4(lab: Lab) -> None:
    lab.power_on("ml-06", "esx-02.lab")  # takes the other A40 there
    give(lab, "G4", target="vdi-07")
    for name in ("vdi-07", "vdi-08", "vdi-09", "vdi-10"):
        lab.run(lab.vm(name).SuspendVM_Task())
    lab.attach("ml-07", "nvidia_a40-48c")
    with pytest.raises(vim.fault.InsufficientGraphicsResourcesFault):
        lab.power_on("ml-07", "esx-02.lab")
    lab.let_pass(300)
    lab.power_on("ml-07", "esx-02.lab")


def sees_G5(lab: Lab) -> None:
    give(lab, "G5", target="esx-02.lab")
    assert "0000:3b:00.0" in lab.gpus("esx-02.lab")
    lab.vm("vdi-01").SuspendVM_Task()
    assert "0000:3b:00.0" not in lab.gpus("esx-02.lab")
    assert lab.power("vdi-07") == "poweredOff"


def sees_G6(lab: Lab) -> None:
    lab.run(lab.vm("vdi-07").SuspendVM_Task())
    [crash, refusal] = rules_of("G6")
    lab.world.injector.add(replace(crash, target="esx-02.lab"))
    lab.world.injector.add(refusal)
    lab.vm("vdi-01").SuspendVM_Task()
    lab.let_pass(120)
    assert lab.host("esx-02.lab").runtime.connectionState == "connected"
    for _ in range(2):
        with pytest.raises(vim.fault.GenericVmConfigFault):
            lab.run(lab.vm("vdi-07").PowerOnVM_Task())
    assert lab.power("vdi-07") == "suspended"


def sees_G3(lab: Lab) -> None:
    give(lab, "G3")
    with pytest.raises(vim.fault.InsufficientGraphicsResourcesFault):
        lab.power_on("ml-07", "esx-02.lab")
    lab.power_on("ml-07", "esx-02.lab")


def sees_G8(lab: Lab) -> None:
    give(lab, "G8", target="esx-02.lab")
    assert not lab.host("esx-02.lab").summary.rebootRequired
    lab.vm("vdi-01").SuspendVM_Task()
    assert lab.host("esx-02.lab").summary.rebootRequired
    assert list(lab.world.ledger)[-1].after == {"module_options": "NVreg_RegistryDwords=RmPVMRL=0x11"}


def sees_G10(lab: Lab) -> None:
    [host] = [each for each in lab.world.by_type("HostSystem") if each.name == "esx-02.lab"]
    for gpu in host.state.gpus:
        gpu.mode = GpuMode.MIXED_SIZE
    host.graphics_changed()
    give(lab, "G10", target="esx-02.lab")
    lab.vm("vdi-01").SuspendVM_Task()
    assert lab.host("esx-02.lab").runtime.connectionState == "notResponding"
    lab.let_pass(61)
    assert {gpu.vgpuMode for gpu in lab.host("esx-02.lab").config.graphicsInfo} == {"sameSize"}


def rebooted(lab: Lab) -> Any:
    """The host esx-02.lab, twenty-five minutes after it was asked to reboot."""
    lab.run(lab.host("esx-02.lab").RebootHost_Task(force=True))
    lab.let_pass(1500)
    return lab.host("esx-02.lab")


def sees_B1(lab: Lab) -> None:
    give(lab, "B1", target="esx-02.lab")
    assert rebooted(lab).runtime.connectionState == "notResponding"


def sees_B2(lab: Lab) -> None:
    give(lab, "B2", target="esx-02.lab")
    modules = lab.host("esx-02.lab").configManager.kernelModuleSystem
    modules.UpdateModuleOptionString("nvidia", "NVreg_RegistryDwords=RmPVMRL=0x01")
    assert rebooted(lab).runtime.connectionState == "connected"
    assert modules.QueryConfiguredModuleOptionString("nvidia") == ""


def sees_B3(lab: Lab) -> None:
    give(lab, "B3", target="esx-02.lab")
    listed = {gpu.pciId for gpu in lab.host("esx-02.lab").config.graphicsInfo}
    assert listed
    found = rebooted(lab)
    assert found.runtime.connectionState == "connected"
    assert not {gpu.pciId for gpu in found.config.graphicsInfo or ()} & listed


def sees_B4(lab: Lab) -> None:
    give(lab, "B4", target="esx-02.lab")
    [host] = [each for each in lab.world.by_type("HostSystem") if each.name == "esx-02.lab"]
    assert nvidia_smi.answer(host, "nvidia-smi -i 0000:86:00.0 -mig 1")[1] == 0
    assert rebooted(lab).runtime.connectionState == "connected"
    modes = {gpu.pciId: gpu.vgpuMode for gpu in lab.host("esx-02.lab").config.graphicsInfo}
    assert modes["0000:86:00.0"] == "sameSize"


def sees_C1(lab: Lab) -> None:
    give(lab, "C1", target="esx-02.lab")
    lab.vm("vdi-01").SuspendVM_Task()
    assert lab.host("esx-02.lab").runtime.connectionState == "notResponding"
    lab.let_pass(601)
    assert lab.host("esx-02.lab").runtime.connectionState == "connected"
    assert lab.power("vdi-07") == "poweredOff"


def sees_C2(lab: Lab) -> None:
    give(lab, "C2", target="esx-02.lab")
    lab.vm("vdi-01").SuspendVM_Task()
    [entering] = [task for task in lab.world.tasks.unfinished() if task.name == "EnterMaintenanceMode_Task"]
    assert entering.entity.display_name == "esx-02.lab"
    assert not lab.host("esx-02.lab").runtime.inMaintenanceMode


def sees_C3(lab: Lab) -> None:
    give(lab, "C3", target="vdi-01")
    lab.vm("vdi-02").SuspendVM_Task()
    assert lab.vm("vdi-01").runtime.host.name == "esx-02.lab"
    assert "vdi-01" in {vm for on_it in lab.gpus("esx-02.lab").values() for vm in on_it}


def sees_C4(lab: Lab) -> None:
    give(lab, "C4", target="vdi-11")
    lab.vm("vdi-01").SuspendVM_Task()
    assert (lab.power("vdi-11"), lab.vm("vdi-11").runtime.host.name) == ("suspended", "esx-01.lab")


def sees_C5(lab: Lab) -> None:
    give(lab, "C5")
    with pytest.raises(vim.fault.NoDiskSpace):
        lab.run(lab.vm("vdi-01").SuspendVM_Task())
    assert lab.vm("vdi-01").datastore[0].summary.freeSpace == 0


def sees_C6(lab: Lab) -> None:
    give(lab, "C6")
    with pytest.raises(vim.fault.NoCompatibleHost):
        lab.run(lab.vm("vdi-06").PowerOnVM_Task())


def sees_K7(lab: Lab) -> None:
    before = lab.si.CurrentTime()
    give(lab, "K7", method="CurrentTime")
    assert (lab.si.CurrentTime() - before).total_seconds() > 3599


CASES: dict[str, Callable[[Lab], None]] = {
    name.removeprefix("sees_"): case for name, case in list(globals().items()) if name.startswith("sees_")
}


def test_every_fault_of_the_catalogue_is_seen_by_a_client() -> None:
    assert sorted(CASES) == sorted(catalogue())


@pytest.mark.parametrize("fault", catalogue())
def test_a_client_sees(fault: str, lab: Lab) -> None:
    CASES[fault](lab)
    assert all(struck for _, struck in lab.world.injector.struck())


# --- files ----------------------------------------------------------------------------------------------------------


def test_a_fault_file_holds_ids_aimed_ids_and_rules(tmp_path: Path) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text(
        'faults:\n  - T2\n  - {fault: V1, target: "vdi-00*", skip: 3}\n'
        "  - {effect: fault, method: PowerOnVM_Task, fault: NoCompatibleHost, times: null}\n"
    )
    assert read(path) == (
        *rules_of("T2"),
        Rule(Effect.TASK, method="SuspendVM_Task", target="vdi-00*", fault="NoDiskSpace", skip=3),
        Rule(Effect.FAULT, method="PowerOnVM_Task", fault="NoCompatibleHost", times=None),
    )
    assert rules_of("T2")[0].phase is Phase.AFTER


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("faults: [T99]", "fault 1: no fault is called 'T99'"),
        ("faults: [{fault: V1, colour: red}]", "fault 1: not a fault rule: colour"),
        ("faults: [T1, {effect: reset, every: 0}]", "fault 2: not a fault rule: every"),
        ("faults: [T1, 7]", "fault 2: 7 is neither an id nor a rule"),
        ("trouble: []", "is not one list named `faults`"),
        ("faults: [", "faults.yaml: line 1, column 10: "),
        ("faults: [T1]\nfaults: [T2]", "the key 'faults' is there twice"),
        ("faults: [{effect: fault, fault: NoSuch, method: Login}]", "fault 1: NoSuch is no fault of the vSphere API"),
        ("faults: [T1, {effect: stuck, method: PowerOnVm_Task}]", "fault 2: no method of the vSphere API is called"),
        ("faults: [{effect: happen, happening: vm.eaten}]", "fault 1: no happening is called 'vm.eaten'"),
        ("faults: [{fault: T11, delay_s: 1e999}]", "fault 1: not a fault rule: delay_s"),
    ],
)
def test_a_wrong_fault_file_is_refused_by_its_entry(written: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text(written)
    with pytest.raises(UsageError, match=said.replace("[", r"\[")) as refused:
        read(path)
    assert "\n" not in refused.value.line


def test_the_same_seed_gives_the_same_trouble() -> None:
    def night(seed: int) -> list[str]:
        with served(seed=seed) as lab:
            lab.world.injector.add(Rule(Effect.TASK, fault="NoDiskSpace", probability=0.5, times=None))
            return [ended(lab, lab.vm(f"vdi-0{number}").SuspendVM_Task()) for number in (1, 2, 3, 7, 8, 9)]

    assert night(3) == night(3)
    assert len({tuple(night(seed)) for seed in range(4)}) > 1


def ended(lab: Lab, task: Any) -> str:
    lab.let_pass(600)
    return str(task.info.state)


def powers(lab: Lab, name: str) -> list[Any]:
    """Name and power state of a VM in one bulk read."""
    wanted = Q.PropertySpec(type=vim.VirtualMachine, pathSet=["name", "runtime.powerState"])
    spec = Q.FilterSpec(objectSet=[Q.ObjectSpec(obj=lab.vm(name))], propSet=[wanted])
    found: list[Any] = lab.si.content.propertyCollector.RetrievePropertiesEx([spec], Q.RetrieveOptions()).objects
    return found


def wait(lab: Lab) -> None:
    lab.si.content.propertyCollector.WaitForUpdatesEx("", Q.WaitOptions(maxWaitSeconds=0))


def bare(lab: Lab, timeout_s: float = 5) -> http.client.HTTPConnection:
    """A connection to the served world with nothing of pyVmomi in it."""
    opened = http.client.HTTPConnection(lab.si._stub.host, timeout=timeout_s)
    OPENED.append(opened)
    return opened


def post(connection: http.client.HTTPConnection) -> None:
    body = (
        '<soapenv:Envelope xmlns:soapenv="http://schemas.xmlsoap.org/soap/envelope/"><soapenv:Body>'
        '<RetrieveServiceContent xmlns="urn:vim25"><_this type="ServiceInstance">ServiceInstance</_this>'
        "</RetrieveServiceContent>"
        "</soapenv:Body></soapenv:Envelope>"
    )
    connection.request("POST", "/sdk", body, {"SOAPAction": '"urn:vim25/8.0.3.0"'})


def asked(connection: http.client.HTTPConnection) -> tuple[int, bytes]:
    post(connection)
    response = connection.getresponse()
    return response.status, response.read()
