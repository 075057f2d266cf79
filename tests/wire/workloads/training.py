"""The scenario `training` at the other end of the wire, and a site in which clusters are made and removed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyVmomi import vim

from gpuops.api import Site
from gpuops.extras.clusters.answers import ClusterMade
from gpuops.extras.clusters.cluster_file import load_cluster
from gpuops.extras.clusters.creating import create_cluster
from gpuops.extras.clusters.existing import delete_cluster
from gpuops.model.vcenter.task import TaskRef
from gpuops.model.vcenter.vm import Guest
from gpuops.model.workloads.cluster import Arrangement, ClusterWish, RdmaKind
from gpuops.sim.fault_injection.rule import Rule
from gpuops.sim.server import SimServer

TEMPLATE = Path(__file__).parents[3] / "templates" / "cluster.yaml"
PVRDMA = replace(load_cluster(TEMPLATE), nodes=2)
SRIOV = replace(PVRDMA, rdma=RdmaKind.SRIOV, port_group="sriov-vm", placement=Arrangement.SPREAD)
WHOLE = replace(PVRDMA, rdma=RdmaKind.DIRECTPATH, port_group=None, device="15b3:101d")
DECLARED = ["old-trainer", "trainer"]


@dataclass
class Training:
    """The scenario, and a site that reaches it."""

    server: SimServer
    site: Site

    def create(self, wish: ClusterWish, *, apply: bool = True, keep: bool = False) -> ClusterMade:
        return create_cluster(wish, self.site, apply=apply, keep=keep, consent=lambda plan: None)

    def delete(self) -> None:
        assert delete_cluster("train", self.site, apply=True).left == ()

    def vms(self) -> list[Any]:
        with self.server.world.lock:
            return sorted(self.server.world.by_type("VirtualMachine"), key=lambda vm: vm.name)

    def names(self) -> list[str]:
        return [vm.name for vm in self.vms()]

    def reconfigure(self, ref: str, **values: Any) -> None:
        """Somebody changes a VM without gpuops."""
        task = self.site.vcenter.vm(ref).ReconfigVM_Task(vim.vm.ConfigSpec(**values))  # type: ignore[attr-defined]
        assert [end.error for end in self.site.vcenter.wait([TaskRef(task._moId)], 600.0)] == [None]

    def replace_notes(self, ref: str, notes: str) -> str:
        """What its notes said before they say this."""
        before = str(self.site.vcenter.vm(ref).config.annotation)  # type: ignore[attr-defined]
        self.reconfigure(ref, annotation=notes)
        return before

    def fails(self, rule: Rule) -> None:
        self.server.world.injector.add(rule)


@dataclass
class SilentGuests:
    """The same vCenter, whose guests tell nothing."""

    real: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def wait_for_guest(self, vm: str, timeout_s: float, *, address: bool) -> Guest:
        return Guest(None, None)
