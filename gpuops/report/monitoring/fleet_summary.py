"""The summary that `gpuops inventory` prints of a large fleet: clusters, their GPUs, and problems of hosts.

A GPU is in use if a VM holds it or a part of it now, and free if none does; if the host does not report its holders, it
is neither. A tree of a hundred hosts has 1,500 lines: for more than twenty hosts, trees need `--hosts` or a filter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from gpuops.model.devices.gpu import PhysicalGpu
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.rejection import some_names
from gpuops.plan.core.scope import cluster_name
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.monitoring.fleet import Fleet, holders, reboot_pending
from gpuops.report.monitoring.inventory import heading, without_gpus
from gpuops.report.text import count

MOST_HOSTS: Final = 20
"""Up to so many hosts with GPUs, each has a tree by default."""


def summary_text(fleet: Fleet) -> Iterator[Shown]:
    """Yield the heading, a table of clusters, a line for each problem of a cluster, and the options that show more."""
    yield heading(fleet.inventory, len(fleet.gpu_hosts), sum(len(host.gpus) for host in fleet.gpu_hosts))
    clusters: dict[str, list[Host]] = {}
    for host in fleet.gpu_hosts:
        clusters.setdefault(cluster_name(host, fleet.inventory) or "standalone", []).append(host)
    rows = (row for name, hosts in sorted(clusters.items()) for row in _rows(name, hosts, fleet.inventory))
    yield TextTable("cluster", "hosts", "GPU", "GPUs", "in use", "free", right=(1, 3, 4, 5), rows=rows)
    for name, hosts in sorted(clusters.items()):
        for text in _host_problems(hosts, fleet.inventory):
            yield Text(f"{name}: {text}", "yellow")
    yield from without_gpus(fleet)
    yield Text("each host: --hosts; a part of them: --cluster, --host, --profile, --holder, --free, --limit", "dim")


def _rows(name: str, hosts: Sequence[Host], inventory: Inventory) -> Iterator[tuple[str, ...]]:
    """Yield a row for each GPU model; the first one also has the cluster and its number of hosts."""
    gpus, used, free = Counter[str](), Counter[str](), Counter[str]()
    for host, gpu in _gpus(hosts):
        vms = holders(gpu, host, inventory)
        gpus[gpu.name] += 1
        used[gpu.name] += bool(vms)
        free[gpu.name] += vms == ()
    cluster_cells = (name, str(len(hosts)))
    for model in sorted(gpus):
        yield (*cluster_cells, model, str(gpus[model]), str(used[model]), str(free[model]))
        cluster_cells = ("", "")


def _gpus(hosts: Iterable[Host]) -> Iterator[tuple[Host, PhysicalGpu]]:
    return ((host, gpu) for host in hosts for gpu in host.gpus)


def _host_problems(hosts: Sequence[Host], inventory: Inventory) -> Iterator[str]:
    """Yield each problem with the hosts that have it."""
    hosts_by_problem = {
        "not connected": [host for host in hosts if host.connected is False],
        "in maintenance": [host for host in hosts if host.in_maintenance],
        "not read in full": [host for host in hosts if host.unreadable],
        "with a reboot pending for a GPU": [host for host in hosts if any(map(reboot_pending, host.gpus))],
        "with GPUs whose holders are unknown": [
            host for host in hosts if any(holders(gpu, host, inventory) is None for gpu in host.gpus)
        ],
    }
    for problem, affected_hosts in hosts_by_problem.items():
        if affected_hosts:
            names = some_names([host.name for host in affected_hosts])
            yield f"{count(len(affected_hosts), 'host')} {problem}: {names}"
