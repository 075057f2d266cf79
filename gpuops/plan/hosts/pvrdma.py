"""Finds hosts for paravirtual RDMA that lack a prerequisite, for `gpuops doctor`.

A host counts as one for paravirtual RDMA if it is a member of a distributed switch on which the VMkernel adapter of
any host is tagged. An RDMA adapter alone may serve storage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuops.extras.clusters.prerequisites import Prerequisite, pvrdma_rows
from gpuops.model.devices.rdma import DistributedSwitch, HostRdma, Networks
from gpuops.model.vcenter.host import Host


def pvrdma_obstacles(hosts: Sequence[Host], networks: Networks) -> Iterator[Prerequisite]:
    """Yield the rows of these hosts that do not pass, without hosts whose network cannot be read."""
    for switch in networks.switches:
        if not any(_tagged_on(host_rdma, switch) for host_rdma in networks.hosts.values()):
            continue
        for host in hosts:
            rdma, uplinks = networks.hosts.get(host.ref), switch.uplinks.get(host.ref, ())
            if rdma is not None and uplinks:
                yield from (row for row in pvrdma_rows(host, rdma, uplinks, switch) if not row.passed)


def _tagged_on(rdma: HostRdma, switch: DistributedSwitch) -> bool:
    return any(adapter.name == rdma.tagged and adapter.switch == switch.uuid for adapter in rdma.adapters)
