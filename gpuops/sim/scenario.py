"""Scenario: a declared inventory becomes a World."""

from __future__ import annotations

from typing import Final
from uuid import NAMESPACE_URL, uuid5

from gpuops.sim import scenario_file
from gpuops.sim.clock import ClockMode
from gpuops.sim.measurement import measure
from gpuops.sim.objects.compatibility_checker import MOID as CHECKER
from gpuops.sim.objects.compatibility_checker import VirtualMachineCompatibilityChecker
from gpuops.sim.objects.datacenter import Datacenter
from gpuops.sim.objects.datastore import Datastore
from gpuops.sim.objects.datastore_browser import HostDatastoreBrowser
from gpuops.sim.objects.folder import Folder
from gpuops.sim.objects.network import Network
from gpuops.sim.registration import new_moid
from gpuops.sim.saved_state import restore, save
from gpuops.sim.scenario_file import ScenarioFile
from gpuops.sim.scenario_hosts import add_clusters
from gpuops.sim.scenario_site import Site
from gpuops.sim.scenario_vms import add_vms
from gpuops.sim.services import new_world
from gpuops.sim.world import API_VERSION, World

ROOT: Final = "group-d1"
FOLDERS: Final = ("vm", "host", "datastore", "network")


def build(
    spelled: str, *, seed: int = 0, clock: ClockMode = ClockMode.VIRTUAL, api_version: str = API_VERSION
) -> World:
    """The world of a scenario: a name (`lab`, `vdi`, `fleet:hosts=200,vms=2000`) or a YAML file.

    The same name and seed give the same world, ids included. Raises PolicyError for a scenario that cannot be had:
    unknown, malformed, or with VMs that its hosts would refuse to run.
    """
    declared, parameters = scenario_file.read(spelled)

    def afresh() -> World:
        return build_declared(declared, parameters, seed=seed, clock=clock, api_version=api_version)

    world = afresh()
    # Its own for each scenario and seed: what a client keeps by it (journals, locks) must not mix two vCenters up.
    world.get("ServiceInstance").instance_uuid = str(uuid5(NAMESPACE_URL, f"gpuops-sim:{spelled}:{seed}"))
    world.state_hooks = (
        lambda: save(world, spelled, seed, afresh),
        lambda saved: restore(world, spelled, seed, saved),
    )
    return world


def build_declared(
    declared: ScenarioFile,
    parameters: dict[str, int] | None = None,
    *,
    seed: int = 0,
    clock: ClockMode = ClockMode.VIRTUAL,
    api_version: str = API_VERSION,
) -> World:
    """The world of a parsed scenario."""
    world = new_world(seed=seed, clock=clock, start=declared.start, api_version=api_version)
    world.options.update(declared.options)
    site = Site(
        world, declared, dict(declared.parameters if parameters is None else parameters), _tree(world, declared)
    )
    _add_storage(site)
    _add_networks(site)
    add_clusters(site)
    add_vms(site)
    world.register(VirtualMachineCompatibilityChecker(world, CHECKER))
    world.counters = measure
    return world


def _tree(world: World, declared: ScenarioFile) -> Datacenter:
    """The root folder and the datacenter with its four folders."""
    root = Folder(world, ROOT, "Datacenters", None, "root")
    world.register(root)
    datacenter = Datacenter(world, new_moid(world, "datacenter"), declared.datacenter, root.moid)
    world.register(datacenter)
    root.add(datacenter)
    for kind in FOLDERS:
        folder = Folder(world, new_moid(world, f"group-{kind[0]}"), kind, datacenter.moid, kind)
        world.register(folder)
        datacenter.folders[kind] = folder
    return datacenter


def _add_storage(site: Site) -> None:
    folder = site.datacenter.folders["datastore"]
    for store in site.declared.datastores:
        moid = new_moid(site.world, "datastore")
        made = Datastore(site.world, moid, store.name, folder.moid, store.capacity_gib << 10, store.free_gib << 10)
        site.world.register(made)
        HostDatastoreBrowser(made)
        folder.add(made)
        site.datastores.append(made)


def _add_networks(site: Site) -> None:
    folder = site.datacenter.folders["network"]
    for name in site.declared.networks:
        made = Network(site.world, new_moid(site.world, "network"), name, folder.moid)
        site.world.register(made)
        folder.add(made)
        site.networks.append(made)
