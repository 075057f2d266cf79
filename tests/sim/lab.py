"""A scenario served over HTTP, and unmodified pyVmomi to use it with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyVim.connect import Disconnect, SmartConnect
from pyVmomi import vim, vmodl

from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.world import World

Q = vmodl.query.PropertyCollector
P = vim.vm.device.VirtualPCIPassthrough


def connect(server: SimServer, **options: Any) -> Any:
    """A ServiceInstance of a server, verified against its own authority."""
    return SmartConnect(**{**server.login, **options})


def category_spec(name: str, *types: str, cardinality: str = "MULTIPLE") -> dict[str, Any]:
    """What a tag category is made with, as a client of the vSphere Automation API sends it."""
    return {"name": name, "description": "", "cardinality": cardinality, "associable_types": list(types)}


class Lab:
    """One simulated vCenter as a client sees it, and as its ledger does."""

    def __init__(self, world: World, si: Any) -> None:
        self.world = world
        self.si = si

    def vm(self, name: str) -> Any:
        """The VM of that name; the first of several."""
        return self._object_named("VirtualMachine", vim.VirtualMachine, name)

    def host(self, name: str) -> Any:
        return self._object_named("HostSystem", vim.HostSystem, name)

    def cluster(self) -> Any:
        return self._first("ClusterComputeResource", vim.ClusterComputeResource)

    def datacenter(self) -> Any:
        return self._first("Datacenter", vim.Datacenter)

    def _object_named(self, wsdl_name: str, kind: Any, name: str) -> Any:
        moid = next(obj.moid for obj in self.world.by_type(wsdl_name) if obj.name == name)
        return kind(moid, self.si._stub)

    def _first(self, wsdl_name: str, kind: Any) -> Any:
        return kind(next(self.world.by_type(wsdl_name)).moid, self.si._stub)

    def run(self, task: Any) -> Any:
        """The result of a task, waited for; raises the fault it ended in."""
        collector = self.si.content.propertyCollector
        state_spec = Q.PropertySpec(type=vim.Task, pathSet=["info.state"])
        watching = collector.CreateFilter(Q.FilterSpec(objectSet=[Q.ObjectSpec(obj=task)], propSet=[state_spec]), False)
        version = ""
        while True:
            update = collector.WaitForUpdatesEx(version, Q.WaitOptions(maxWaitSeconds=3600))
            version = update.version
            if task.info.state in ("success", "error"):
                break
        watching.Destroy()
        if task.info.error is not None:
            raise task.info.error
        return task.info.result

    def let_pass(self, seconds: float) -> None:
        """Let virtual time go by."""
        with self.world.lock:
            self.world.clock.advance(seconds)

    def gpus(self, host: str) -> dict[str, list[str]]:
        """PCI id -> names of the VMs that the host says run on it."""
        return {
            gpu.pciId: sorted(self.world.get(vm).name for vm in gpu.vm) for gpu in self.host(host).config.graphicsInfo
        }

    def seats(self, name: str) -> list[tuple[str, str, int | None]]:
        """(GPU, profile, start) of each running vGPU of a VM, as the last ledger entry that tells says."""
        seats_shown = [
            change.after["gpus"] for change in self.world.ledger if change.name == name and "gpus" in change.after
        ]
        return [(seat["gpu"], seat["profile"], seat["start"]) for seat in seats_shown[-1]]

    def passthrough(self, name: str) -> list[Any]:
        """The passthrough devices of a VM."""
        return [device for device in self.vm(name).config.hardware.device if isinstance(device, P)]

    def attach(self, name: str, *profiles: str, **spec: Any) -> None:
        """Give a VM vGPUs and the full memory reservation they need."""
        added = [
            vim.vm.device.VirtualDeviceSpec(
                operation="add", device=P(key=-1 - number, backing=P.VmiopBackingInfo(vgpu=profile))
            )
            for number, profile in enumerate(profiles)
        ]
        options = {"memoryReservationLockedToMax": True, "deviceChange": added, **spec}
        self.run(self.vm(name).ReconfigVM_Task(vim.vm.ConfigSpec(**options)))

    def power_on(self, name: str, host: str | None = None) -> None:
        self.run(self.vm(name).PowerOnVM_Task(self.host(host) if host else None))

    def power_off(self, name: str) -> None:
        self.run(self.vm(name).PowerOffVM_Task())

    def power(self, name: str) -> str:
        return str(self.vm(name).runtime.powerState)

    def events(self, name: str) -> list[str]:
        """Kinds of the events about a VM, oldest first."""
        posted = [event for event in self.world.events if event.subject == self.vm(name)._moId]
        return [event.kind for event in posted]


@contextmanager
def serve_lab(scenario: str = "lab", **options: Any) -> Iterator[Lab]:
    """A scenario on a socket; when it ends the simulator must have had no bug of its own."""
    world = build(scenario, **options)
    with SimServer(world, tls=False) as server:
        si = connect(server)
        yield Lab(world, si)
        Disconnect(si)
    assert world.bugs == []
