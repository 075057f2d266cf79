"""A scenario while it is built: the tree, datastores and networks first, then its clusters and VMs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from gpuops.errors import PolicyError
from gpuops.sim.inventory.managed_entity import new_moid
from gpuops.sim.objects.datastore import Network, VmfsDatastore
from gpuops.sim.objects.environment import HostDatastoreBrowser
from gpuops.sim.objects.folder import Folder, new_datacenter

if TYPE_CHECKING:
    from gpuops.sim.objects.folder import Datacenter
    from gpuops.sim.objects.host_system import HostSystem
    from gpuops.sim.scenario.declared import GuestDeclared, ModelDeclared
    from gpuops.sim.scenario.scenario_file import ScenarioFile
    from gpuops.sim.world import World


Declared = TypeVar("Declared")

ROOT: Final = "group-d1"


@dataclass(slots=True)
class ScenarioSite:
    """The world, what is declared of it, and what stands already."""

    world: World
    declared: ScenarioFile
    parameters: dict[str, int]
    datacenter: Datacenter
    datastores: list[VmfsDatastore] = field(default_factory=list)
    networks: list[Network] = field(default_factory=list)
    hosts: dict[str, list[HostSystem]] = field(default_factory=dict)
    """By group, and by own name."""

    def hosts_of(self, group: str) -> list[HostSystem]:
        """The hosts of a group, or the one of that name. Raises PolicyError."""
        hosts = self.hosts.get(group)
        if not hosts:
            raise PolicyError(f"the scenario has no hosts {group!r}", hint=f"it has {', '.join(self.hosts)}")
        return hosts

    def model(self, name: str) -> ModelDeclared:
        """The server model of that name. Raises PolicyError."""
        return self._declaration_named(self.declared.models, "server model", name)

    def guest(self, name: str) -> GuestDeclared:
        """The guest system of that name. Raises PolicyError."""
        return self._declaration_named(self.declared.guests, "guest", name)

    def _declaration_named(self, declared: Mapping[str, Declared], kind_text: str, name: str) -> Declared:
        if name not in declared:
            raise PolicyError(
                f"the scenario has no {kind_text} {name!r:.80}", hint=f"it has {', '.join(declared)[:200]}"
            )
        return declared[name]


def new_site(world: World, declared: ScenarioFile, parameters: dict[str, int]) -> ScenarioSite:
    """The site without clusters and VMs."""
    site = ScenarioSite(world, declared, parameters, _tree(world, declared))
    _add_storage(site)
    _add_networks(site)
    return site


def _tree(world: World, declared: ScenarioFile) -> Datacenter:
    """The root folder and the datacenter with its four folders."""
    root = Folder(world, ROOT, "Datacenters", None, "root")
    world.register(root)
    datacenter = new_datacenter(world, declared.datacenter, root.moid)
    root.add(datacenter)
    return datacenter


def _add_storage(site: ScenarioSite) -> None:
    folder = site.datacenter.folders["datastore"]
    for store in site.declared.datastores:
        moid = store.moid or new_moid(site.world, "datastore")
        free_mib = (store.free_gib << 10) if store.free_mib is None else store.free_mib
        datastore = VmfsDatastore(site.world, moid, store.name, folder.moid, store.capacity_gib << 10, free_mib)
        site.world.register(datastore)
        HostDatastoreBrowser(datastore)
        folder.add(datastore)
        site.datastores.append(datastore)


def _add_networks(site: ScenarioSite) -> None:
    folder = site.datacenter.folders["network"]
    for name in site.declared.networks:
        network = Network(site.world, new_moid(site.world, "network"), name, folder.moid)
        site.world.register(network)
        folder.add(network)
        site.networks.append(network)
