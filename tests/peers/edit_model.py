"""vcsim's own saved inventory, edited into one with GPUs for `vcsim -load`.

vcsim knows no GPUs, and loads what `govc object.save` wrote. So its own 4 hosts and 12 VMs are saved, given the
hardware of `gpu_model.py`, and loaded again: the VMs, ids, pools and networks stay those vcsim made, and nothing
comes from our simulator, which would otherwise be checked against itself.

    python -m tests.peers.edit_model DIRECTORY

What this cannot give: behaviour. vcsim stores GPU devices without admission, and its GPU lists never change.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.peers.edit_hosts import edit_config_target, edit_host
from tests.peers.edit_machines import edit_machine
from tests.peers.gpu_model import HOSTS, MACHINES
from tests.peers.saved_objects import SavedObject, saved_objects

API_VERSION = "8.0.3.0"


def edit(directory: Path) -> None:
    """Give the saved inventory in `directory` its GPUs; the files are changed in place."""
    drop_tasks(directory)
    for service in saved_objects(directory, "ServiceInstance"):
        edit_about(service)
    hosts = dict(zip((h.name for h in HOSTS), saved_objects(directory, "HostSystem"), strict=True))
    machines = dict(zip((m.name for m in MACHINES), saved_objects(directory, "VirtualMachine"), strict=True))
    moids = {name: document.moid for name, document in [*hosts.items(), *machines.items()]}

    for host in HOSTS:
        edit_host(hosts[host.name], host, MACHINES, moids)
    for machine in MACHINES:
        edit_machine(machines[machine.name], machine, moids)
    for cluster in saved_objects(directory, "ClusterComputeResource"):
        _edit_cluster(cluster, list(hosts.values()))
    for pool in saved_objects(directory, "ResourcePool"):
        _edit_pool(pool, sum(int(host.text("hardware.memorySize")) for host in hosts.values()))
    for answer in directory.glob("EnvironmentBrowser-*/QueryConfigTarget.xml"):
        target = SavedObject(answer)
        edit_config_target(target, HOSTS)
        target.save()
    for document in [*hosts.values(), *machines.values()]:
        document.save()


def drop_tasks(directory: Path) -> None:
    """Finished tasks of vcsim's own start-up would dangle; they go, with every reference to them."""
    for path in directory.glob("[0-9]*-Task-*.xml"):
        path.unlink()
    for path in directory.glob("[0-9]*.xml"):
        if 'type="Task"' in path.read_text(encoding="utf-8"):
            document = SavedObject(path)
            document.put_references("recentTask", "Task", [])
            document.save()


def edit_about(service: SavedObject) -> None:
    about = "content.about"
    service.put_text(f"{about}.fullName", "VMware vCenter Server 8.0.3 build-24022515")
    service.put_text(f"{about}.version", "8.0.3")
    service.put_text(f"{about}.build", "24022515")
    # pyvmomi speaks the version named here, and drops every newer field without a word.
    service.put_text(f"{about}.apiVersion", API_VERSION)
    service.save()


def _edit_cluster(cluster: SavedObject, hosts: Sequence[SavedObject]) -> None:
    def total(path: str) -> int:
        return sum(int(host.text(path)) for host in hosts)

    hardware = "summary.hardware"
    megahertz = sum(int(h.text(f"{hardware}.cpuMhz")) * int(h.text(f"{hardware}.numCpuCores")) for h in hosts)
    memory = total(f"{hardware}.memorySize")
    cluster.put_text("summary.totalCpu", megahertz)
    cluster.put_text("summary.effectiveCpu", megahertz)
    cluster.put_text("summary.totalMemory", memory)
    cluster.put_text("summary.effectiveMemory", memory // 2**20)  # MiB here, bytes in totalMemory
    cluster.put_text("summary.numCpuCores", total(f"{hardware}.numCpuCores"))
    cluster.put_text("summary.numCpuThreads", total(f"{hardware}.numCpuThreads"))
    cluster.put("configurationEx.drsConfig.defaultVmBehavior", "fullyAutomated")
    cluster.save()


def _edit_pool(pool: SavedObject, memory_bytes: int) -> None:
    """Take vcsim's 961 MB limit off the root pool: real ML VMs reserve all their memory."""
    for config in ("config", "summary.config"):
        for resource in ("cpuAllocation", "memoryAllocation"):
            pool.put(f"{config}.{resource}.reservation", 0)
            pool.put(f"{config}.{resource}.limit", -1)
            pool.put(f"{config}.{resource}.expandableReservation", True)
    for runtime in ("runtime", "summary.runtime"):
        for bound in ("unreservedForPool", "unreservedForVm", "maxUsage"):
            pool.put_text(f"{runtime}.memory.{bound}", memory_bytes)
    pool.save()


if __name__ == "__main__":
    edit(Path(sys.argv[1]))
