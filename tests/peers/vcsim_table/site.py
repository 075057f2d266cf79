"""One simulated vCenter as the operations of the table see it: its objects by name, and a VM of their own for each."""

from __future__ import annotations

import itertools
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import urlsplit

from pyVim.connect import Connect, Disconnect
from pyVmomi import SoapStubAdapter, vim, vmodl

from gpuops.sim.scenario.scenario_file import ScenarioFile
from tests.peers.processes import Endpoint

VERSION: Final = "vim.version.v8_0_3_0"
"""Of the API; vcsim announces 6.5, and answers in any."""
VMS: Final = 4
SETTLED_S: Final = 60.0
FLAGS: Final = ("-cluster=1", "-host=3", "-standalone-host=0", f"-vm={VMS}", "-ds=2", "-pg=1")


class TaskFailed(Exception):
    """A task ended in this fault."""

    def __init__(self, fault: Any) -> None:
        super().__init__(str(fault))
        self.fault = fault


def like_vcsim() -> ScenarioFile:
    """The inventory that vcsim makes with `FLAGS`, as a scenario: names and counts are the same."""
    return ScenarioFile.of(
        {
            "description": "the inventory of vcsim", "start": "2026-11-02T18:00:00Z", "datacenter": "DC0",
            "networks": ["VM Network"],
            "models": {"server": {"vendor": "VMware, Inc.", "model": "VMware Virtual Platform", "cpu": "Xeon",
                                  "sockets": 1, "cores_per_socket": 32, "cpu_mhz": 2294, "memory_gib": 512}},
            "guests": {"other": {"id": "otherGuest", "name": "Other", "tools": False}},
            "datastores": [{"name": f"LocalDS_{number}", "capacity_gib": 4096, "free_gib": 2048}
                           for number in range(2)],
            "clusters": [{"name": "DC0_C0", "drs": "fullyAutomated", "hosts": [
                {"name": "DC0_C0_H{}", "first": 0, "count": 3, "group": "all", "model": "server"}]}],
            "vms": [{"name": "DC0_C0_RP0_VM{}", "first": 0, "count": VMS, "folder": "", "on": "all", "guest": "other",
                     "cpus": 1, "memory_gib": 1, "disk_gib": 10, "power": "on"}],
        }
    )  # fmt: skip


class Site:
    """The objects of one vCenter. `running` is a VM to look at; operations that change one make one of their own."""

    def __init__(self, service: Any, endpoint: Endpoint, wait: Callable[[], None]) -> None:
        self.service = service
        self.endpoint = endpoint
        self._wait = wait
        self.content = service.RetrieveContent()
        self.collector = self.content.propertyCollector
        self.datacenter = self._entity_named(vim.Datacenter, "DC0")
        self.cluster = self._entity_named(vim.ClusterComputeResource, "DC0_C0")
        self.datastore = self._entity_named(vim.Datastore, "LocalDS_0")
        self.network = self._entity_named(vim.Network, "VM Network")
        self.pool = self.cluster.resourcePool
        self.hosts = sorted(self.cluster.host, key=lambda host: str(host.name))
        self.host = self.hosts[0]
        self.folder = self.datacenter.vmFolder
        self.running = self._entity_named(vim.VirtualMachine, "DC0_C0_RP0_VM1")
        self._numbers = itertools.count(1)
        self._counters: dict[str, int] = {}
        self.kept: Any = None
        """What the call of an operation leaves for its reading."""
        self.wanted: Any = None
        """What its reading compares with."""

    def _all(self, kind: Any) -> list[Any]:
        view = self.content.viewManager.CreateContainerView(self.content.rootFolder, [kind], True)
        try:
            return list(view.view)
        finally:
            view.Destroy()

    def _entity_named(self, kind: Any, name: str) -> Any:
        return next(entity for entity in self._all(kind) if entity.name == name)

    def keep(self, entity: Any) -> Any:
        """The same, for the reading of this operation too."""
        self.kept = entity
        return entity

    def counters(self) -> dict[str, int]:
        """The keys of the performance counters by name, such as `cpu.usage.average`."""
        if not self._counters:
            for counter in self.content.perfManager.perfCounter:
                self._counters[f"{counter.groupInfo.key}.{counter.nameInfo.key}.{counter.rollupType}"] = counter.key
        return self._counters

    def vm(self, state: str = "poweredOff") -> Any:
        """A new VM with a disk and a network card, in this power state; it is kept."""
        spec = vim.vm.ConfigSpec(
            name=f"row-{next(self._numbers)}", guestId="otherGuest", numCPUs=1, memoryMB=1024,
            files=vim.vm.FileInfo(vmPathName=f"[{self.datastore.name}]"),
            deviceChange=[vim.vm.device.VirtualDeviceSpec(operation="add", device=device) for device in _hardware()],
        )  # fmt: skip
        spec.deviceChange[1].fileOperation = "create"
        vm = self.keep(self.ended(self.folder.CreateVM_Task(spec, self.pool)))
        if state != "poweredOff":
            self.ended(vm.PowerOnVM_Task(None))
        if state == "suspended":
            self.ended(vm.SuspendVM_Task())
        return vm

    def template(self) -> Any:
        """A template; it is kept."""
        vm = self.vm()
        vm.MarkAsTemplate()
        return vm

    def snapshotted(self, state: str = "poweredOff") -> Any:
        """A VM with the snapshot `first`; it is kept."""
        vm = self.vm(state)
        self.ended(vm.CreateSnapshot_Task("first", "the first", False, False))
        return vm

    def made(self, name: str) -> Any:
        """A new folder of VMs; it is kept."""
        return self.keep(self.folder.CreateFolder(name))

    def ended(self, task: Any) -> Any:
        """The result of a task that has ended. Raises TaskFailed with the fault that it ended in."""
        query = vmodl.query.PropertyCollector
        spec = query.FilterSpec(
            objectSet=[query.ObjectSpec(obj=task)],
            propSet=[query.PropertySpec(type=vim.Task, pathSet=["info.state", "info.error", "info.result"])],
        )
        while True:
            [task_content] = self.collector.RetrievePropertiesEx([spec], query.RetrieveOptions()).objects
            properties = {prop.name: prop.val for prop in task_content.propSet}
            if properties["info.state"] == "success":
                return properties.get("info.result")
            if properties["info.state"] == "error":
                raise TaskFailed(properties["info.error"])
            self._wait()

    def settled(self, read: Callable[[], Any], expected: Any) -> Any:
        """What is read once it is what is wanted; else as it is after SETTLED_S, for what ends after its call did."""
        until = time.monotonic() + SETTLED_S
        while (reading := read()) != expected and time.monotonic() < until:
            self._wait()
        return reading

    @contextmanager
    def another_session(self, *, login: bool = True) -> Iterator[Any]:
        """A service instance with a session of its own, or with none."""
        yield from _service(self.endpoint, login=login)


def _hardware() -> list[Any]:
    """The devices of a new VM."""
    kinds = vim.vm.device
    controller = kinds.ParaVirtualSCSIController(key=-101, busNumber=0, sharedBus="noSharing")
    backing = kinds.VirtualDisk.FlatVer2BackingInfo(diskMode="persistent", thinProvisioned=True, fileName="")
    disk = kinds.VirtualDisk(key=-102, controllerKey=-101, unitNumber=0, capacityInKB=1 << 21, backing=backing)
    network = kinds.VirtualEthernetCard.NetworkBackingInfo(deviceName="VM Network")
    return [controller, disk, kinds.VirtualVmxnet3(key=-103, backing=network, addressType="generated")]


@contextmanager
def connect_site(endpoint: Endpoint, wait: Callable[[], None]) -> Iterator[Site]:
    """The site behind an endpoint, with a session for as long as the block; `wait` lets its time pass for a task."""
    for service in _service(endpoint, login=True):
        yield Site(service, endpoint, wait)


def _service(endpoint: Endpoint, *, login: bool) -> Iterator[Any]:
    where = urlsplit(endpoint.url)
    trust = ssl.create_default_context(cafile=str(endpoint.ca_file))
    if not login:
        stub = SoapStubAdapter(host=where.hostname, port=where.port, version=VERSION, sslContext=trust, path="/sdk")
        try:
            yield vim.ServiceInstance("ServiceInstance", stub)
        finally:
            stub.DropConnections()
        return
    service = Connect(
        host=where.hostname, port=where.port, user=endpoint.username, pwd=endpoint.password, version=VERSION,
        sslContext=trust,
    )  # fmt: skip
    try:
        yield service
    finally:
        with suppress(OSError, HTTPException):  # a call may have ended the server
            Disconnect(service)
        service._stub.DropConnections()
