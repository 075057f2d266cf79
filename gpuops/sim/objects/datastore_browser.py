"""HostDatastoreBrowser: what a host, a cluster or a datastore can be browsed for; the files themselves are not kept."""

from __future__ import annotations

from typing import Any

from gpuops.sim.managed_object import ManagedObject, prop
from gpuops.sim.objects.managed_entity import ManagedEntity


class HostDatastoreBrowser(ManagedObject):
    """The browser of one entity."""

    wsdl_name = "HostDatastoreBrowser"

    def __init__(self, entity: ManagedEntity) -> None:
        super().__init__(entity.world, f"datastoreBrowser-{entity.moid}")
        self.entity = entity
        entity.world.register(self)

    @prop("datastore")
    def _datastores(self) -> Any:
        return [self.entity] if self.entity.wsdl_name == "Datastore" else self.entity.read("datastore")
