"""What making and removing clusters needs of a vCenter beside what any run needs."""

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
        """Distributed switches, and what the hosts have for RDMA."""
        ...

    def guest_id(self, vm: str) -> str:
        """What the VM was made for: `ubuntu64Guest`; empty = it cannot be read."""
        ...

    def lacking_on_objects(
        self, needed: Mapping[ObjectKind, Mapping[str, Collection[str]]]
    ) -> Mapping[str, Collection[str]]:
        """By object, those of the privileges needed on it that this login lacks; a vCenter that does not tell: none."""
        ...


def cluster_port(site: Site) -> ClusterPort:
    """The same vCenter, as one in which clusters are made. Raises Refused for a saved inventory."""
    vcenter = site.vcenter
    if not isinstance(vcenter, ClusterPort):
        raise Refused("a saved inventory makes no VMs", hint="use --vcenter")
    return vcenter
