"""Which hosts that are meant for paravirtual RDMA lack something of it: what `gpuops doctor` says of them.

A host is meant for it where it is a member of a distributed switch on which some host's VMkernel adapter is tagged: an
RDMA adapter alone may be there for storage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuops.model.devices.rdma import DistributedSwitch, HostRdma, Networks
from gpuops.model.vcenter.host import Host
from gpuops.plan.cluster.prerequisites import Prerequisite, pvrdma_rows


def pvrdma_obstacles(hosts: Sequence[Host], networks: Networks) -> Iterator[Prerequisite]:
    """The rows of these hosts that do not pass; of a host whose network cannot be read none."""
    for switch in networks.switches:
        if not any(_tagged_on(each, switch) for each in networks.hosts.values()):
            continue
        for host in hosts:
            rdma, uplinks = networks.hosts.get(host.ref), switch.uplinks.get(host.ref, ())
            if rdma is not None and uplinks:
                yield from (row for row in pvrdma_rows(host, rdma, uplinks, switch) if not row.passed)


def _tagged_on(rdma: HostRdma, switch: DistributedSwitch) -> bool:
    return any(each.name == rdma.tagged and each.switch == switch.uuid for each in rdma.adapters)
