"""One simulated vCenter as the operations of the table see it: its objects by name, and a VM of their own for each."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
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
VMS: Final = 64
"""Enough for every operation that wants a VM of its own."""
FLAGS: Final = ("-cluster=1", "-host=3", "-standalone-host=0", f"-vm={VMS}", "-ds=2", "-pg=1")
POLL_S: Final = 0.005


class TaskFailed(Exception):
    """A task ended in this fault."""

    def __init__(self, fault: Any) -> None:
        super().__init__(str(fault))
        self.fault = fault


def like_vcsim() -> ScenarioFile:
    """The inventory that vcsim makes with `FLAGS`, as a scenario: names, counts and sizes are the same."""
    return ScenarioFile.model_validate(
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
    """The objects of one vCenter. Operations that change a VM take one that no other has had."""

    def __init__(self, service: Any, endpoint: Endpoint) -> None:
        self.service = service
        self.endpoint = endpoint
        self.content = service.RetrieveContent()
        self.collector = self.content.propertyCollector
        self.datacenter = self._named(vim.Datacenter, "DC0")
        self.cluster = self._named(vim.ClusterComputeResource, "DC0_C0")
        self.datastore = self._named(vim.Datastore, "LocalDS_0")
        self.network = self._named(vim.Network, "VM Network")
        self.pool = self.cluster.resourcePool
        self.hosts = sorted(self.cluster.host, key=lambda host: str(host.name))
        self.host = self.hosts[0]
        self.folder = self.datacenter.vmFolder
        self._vms = sorted(self._all(vim.VirtualMachine), key=lambda vm: (len(vm._moId), vm._moId), reverse=True)
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

    def _named(self, kind: Any, name: str) -> Any:
        return next(found for found in self._all(kind) if found.name == name)

    def keep(self, kept: Any) -> Any:
        """The same, for the reading of this operation too."""
        self.kept = kept
        return kept

    def vm(self, state: str = "poweredOff") -> Any:
        """A VM that no operation has had, in this power state; it is kept."""
        vm = self.keep(self._vms.pop())
        self.bring(vm, state)
        return vm

    def bring(self, vm: Any, state: str) -> None:
        """Bring a VM that is on into a power state."""
        if state == "suspended":
            self.ended(vm.SuspendVM_Task())
        elif state == "poweredOff":
            self.ended(vm.PowerOffVM_Task())

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
            [found] = self.collector.RetrievePropertiesEx([spec], query.RetrieveOptions()).objects
            told = {each.name: each.val for each in found.propSet}
            if told["info.state"] == "success":
                return told.get("info.result")
            if told["info.state"] == "error":
                raise TaskFailed(told["info.error"])
            time.sleep(POLL_S)

    @contextmanager
    def another_session(self, *, login: bool = True) -> Iterator[Any]:
        """A service instance with a session of its own, or with none."""
        yield from _service(self.endpoint, login=login)


@contextmanager
def connected(endpoint: Endpoint) -> Iterator[Site]:
    """The site behind an endpoint, with a session for as long as the block."""
    for service in _service(endpoint, login=True):
        yield Site(service, endpoint)


def _service(endpoint: Endpoint, *, login: bool) -> Iterator[Any]:
    where = urlsplit(endpoint.url)
    trust = ssl.create_default_context(cafile=str(endpoint.ca_file))
    if not login:
        stub = SoapStubAdapter(host=where.hostname, port=where.port, version=VERSION, sslContext=trust, path="/sdk")
        yield vim.ServiceInstance("ServiceInstance", stub)
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
