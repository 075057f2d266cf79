"""Power states and tasks: the same script, by plain pyvmomi, has the same outcomes on our simulator and on vcsim.

Nobody here wrote vcsim: where the two agree, our reading of the API is not our only witness. It knows no GPUs, so the
VMs of this script have none. Where vcsim is known to differ from vCenter, the difference stands in `KNOWN`.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from pyVim.connect import Disconnect, SmartConnect
from pyVmomi import vim, vmodl

from gpuops.sim.scenario.build import build_declared
from gpuops.sim.scenario.scenario_file import ScenarioFile
from gpuops.sim.server import SimServer

from .conftest import _endpoint
from .processes import Endpoint, running_vcsim

pytestmark = pytest.mark.peer

CALLS: Final = ("PowerOnVM_Task", "PowerOffVM_Task", "SuspendVM_Task", "ResetVM_Task", "ShutdownGuest", "RebootGuest",
                "rename", "annotate", "stale change", "destroy")  # fmt: skip
LASTING: Final = ("ShutdownGuest", "RebootGuest", "destroy")
"""What goes on after the answer, or leaves nothing behind: on a VM of its own."""
STATES: Final = ("poweredOff", "poweredOn", "suspended")

_VERSION = "vcsim takes any changeVersion (vSphere API, VirtualMachineConfigSpec.changeVersion: ConcurrentAccess)"
KNOWN: Final[dict[tuple[str, str], str]] = {
    **{(state, "stale change"): _VERSION for state in STATES},
    ("suspended", "ResetVM_Task"): "vcsim boots it (vSphere API, ResetVM_Task: InvalidPowerState unless it is on)",
    ("poweredOn", "RebootGuest"): "vcsim's VMs run no VMware Tools, which its ShutdownGuest does not ask for",
}
"""(state, call) -> why vcsim is not vCenter there."""


def on(vm: Any, state: str) -> None:
    """Bring the VM into this state, by whatever way there is."""
    if vm.runtime.powerState == state:
        return
    if state != "poweredOff" and vm.runtime.powerState != "poweredOn":
        ended(vm.PowerOnVM_Task(None))
    if state == "suspended":
        ended(vm.SuspendVM_Task())
    if state == "poweredOff":
        ended(vm.PowerOffVM_Task())


def ended(task: Any) -> None:
    """Returns when the task has ended. Raises the fault that it ended in."""
    query = vmodl.query.PropertyCollector
    spec = query.FilterSpec(
        objectSet=[query.ObjectSpec(obj=task)],
        propSet=[query.PropertySpec(type=vim.Task, pathSet=["info.state", "info.error"])],
    )
    collector = vim.ServiceInstance("ServiceInstance", task._stub).content.propertyCollector
    told: dict[str, Any] = {}
    while told.get("info.state") not in ("success", "error"):  # vcsim does not tell a waiting client of every end
        [found] = collector.RetrievePropertiesEx([spec], query.RetrieveOptions()).objects
        told = {each.name: each.val for each in found.propSet}
    if told["info.state"] == "error":
        raise told["info.error"]


def outcome(vm: Any, call: str) -> tuple[str, str]:
    """(`done`, or the fault and whether the call or its task ended in it; the power state afterwards)."""
    try:
        task = begin(vm, call)
    except vmodl.MethodFault as fault:
        return f"call: {type(fault).__name__}", power(vm)
    if task is None:
        return "done", "" if call in ("ShutdownGuest", "RebootGuest") else power(vm)
    try:
        ended(task)
    except vmodl.MethodFault as fault:
        return f"task: {type(fault).__name__}", power(vm)
    return "done", "" if call == "destroy" else power(vm)


def begin(vm: Any, call: str) -> Any:
    match call:
        case "PowerOnVM_Task":
            return vm.PowerOnVM_Task(None)
        case "rename":
            return vm.Rename_Task(f"{vm.name}+")
        case "annotate":
            return vm.ReconfigVM_Task(vim.vm.ConfigSpec(annotation="seen"))
        case "stale change":
            return vm.ReconfigVM_Task(vim.vm.ConfigSpec(annotation="seen", changeVersion="long ago"))
        case "destroy":
            return vm.Destroy_Task()
        case _:
            return getattr(vm, call)()


def power(vm: Any) -> str:
    return str(vm.runtime.powerState)


@contextmanager
def session(endpoint: Endpoint) -> Iterator[Any]:
    trust = ssl.create_default_context(cafile=str(endpoint.ca_file))
    where = urlsplit(endpoint.url)
    found = SmartConnect(
        host=where.hostname, port=where.port, user=endpoint.username, pwd=endpoint.password, sslContext=trust
    )
    try:
        yield found
    finally:
        Disconnect(found)


def table(endpoint: Endpoint) -> dict[tuple[str, str], tuple[str, str]]:
    """What each call comes to in each state, each on a VM of its own."""
    with session(endpoint) as found:
        content = found.RetrieveContent()
        view = content.viewManager.CreateContainerView(content.rootFolder, [vim.VirtualMachine], True)
        plain = [vm for vm in view.view if not vm.config.template and not passthrough(vm)]
        told = {}
        shared, *others = plain
        for state in STATES:
            for call in CALLS:
                vm = others.pop() if call in LASTING else shared
                on(vm, state)
                told[state, call] = outcome(vm, call)
        return told


def passthrough(vm: Any) -> bool:
    return any(isinstance(device, vim.vm.device.VirtualPCIPassthrough) for device in vm.config.hardware.device)


@pytest.fixture
def plain_site() -> Iterator[Endpoint]:
    """Our simulator with VMs without GPUs."""
    declared = ScenarioFile.model_validate(
        {
            "description": "plain VMs", "start": "2026-11-02T18:00:00Z", "datacenter": "dc", "networks": ["VM Network"],
            "models": {"server": {"vendor": "Dell", "model": "R750", "cpu": "Xeon", "cores_per_socket": 32,
                                  "cpu_mhz": 2000, "memory_gib": 512}},
            "guests": {"linux": {"id": "ubuntu64Guest", "name": "Ubuntu"}},
            "datastores": [{"name": "ds", "capacity_gib": 4096, "free_gib": 2048}],
            "clusters": [{"name": "c", "hosts": [{"name": "esx-{:02}", "count": 2, "group": "all",
                                                  "model": "server"}]}],
            "vms": [{"name": "plain-{:02}", "count": 12, "folder": "plain", "on": "all", "guest": "linux", "cpus": 1,
                     "memory_gib": 1, "disk_gib": 10}],
        }
    )  # fmt: skip
    with SimServer(build_declared(declared)) as server:
        yield _endpoint(server)
        assert server.world.bugs == []


@pytest.fixture
def plain_vcsim(tmp_path: Path, govc: object) -> Iterator[Endpoint]:
    """vcsim with its own inventory: VMs without GPUs."""
    with running_vcsim(tmp_path, "-vm=12") as endpoint:
        yield endpoint


def test_power_and_tasks_have_the_same_outcomes(plain_site: Endpoint, plain_vcsim: Endpoint) -> None:
    ours, theirs = table(plain_site), table(plain_vcsim)
    assert set(ours) == set(theirs) == {(state, call) for state in STATES for call in CALLS}
    differences = [key for key in ours if ours[key] != theirs[key]]
    told = [f"{key}: ours {ours[key]}, vcsim {theirs[key]}" for key in differences]
    assert set(differences) == set(KNOWN), "\n".join(told)
