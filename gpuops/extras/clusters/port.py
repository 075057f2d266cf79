"""The methods of a vCenter that only the commands for clusters need."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable

from gpuops.errors import Refused
from gpuops.execute.site import Site
from gpuops.model.devices.rdma import Networks
from gpuops.model.vcenter.login import ObjectKind


@runtime_checkable
class ClusterPort(Protocol):
    """A vCenter in which clusters are made and removed."""

    def networks(self) -> Networks:
        """Return the distributed switches and the RDMA devices of the hosts."""
        ...

    def guest_id(self, vm: str) -> str:
        """Return the guest OS type of the VM, for example `ubuntu64Guest`; empty if it cannot be read."""
        ...

    def lacking_on_objects(
        self, needed: Mapping[ObjectKind, Mapping[str, Collection[str]]]
    ) -> Mapping[str, Collection[str]]:
        """Return the needed privileges that this login lacks, by object; empty if vCenter does not report them."""
        ...


def cluster_port(site: Site) -> ClusterPort:
    """Return the vCenter of the site as a ClusterPort. Raises Refused for a saved inventory."""
    vcenter = site.vcenter
    if not isinstance(vcenter, ClusterPort):
        raise Refused("a saved inventory makes no VMs", hint="use --vcenter")
    return vcenter
