"""A folder of the inventory, as operations see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuops.sim.inventory.managed_entity import ManagedEntity

if TYPE_CHECKING:
    from gpuops.sim.world import World


class FolderEntity(ManagedEntity):
    """A folder of one kind: `root`, `vm`, `host`, `datastore` or `network`."""

    def __init__(self, world: World, moid: str, name: str, parent: str | None, kind: str) -> None:
        super().__init__(world, moid, name, parent)
        self.kind = kind
        self.children: dict[str, ManagedEntity] = {}

    def add(self, child: ManagedEntity) -> None:
        """Add a child."""
        self.children[child.moid] = child
        self.touch("childEntity")

    def remove(self, child: ManagedEntity) -> None:
        """Remove a child."""
        self.children.pop(child.moid, None)
        self.touch("childEntity")
