"""Makes the World of a declared inventory."""

from __future__ import annotations

from uuid import NAMESPACE_URL, uuid5

from gpuops.sim.core.clock import ClockMode
from gpuops.sim.objects.environment import MOID as CHECKER
from gpuops.sim.objects.environment import VirtualMachineCompatibilityChecker
from gpuops.sim.scenario import scenario_file
from gpuops.sim.scenario.hosts import add_clusters
from gpuops.sim.scenario.measurement import measure
from gpuops.sim.scenario.new_world import new_world
from gpuops.sim.scenario.saved_state import restore, save
from gpuops.sim.scenario.scenario_file import ScenarioFile
from gpuops.sim.scenario.site import new_site
from gpuops.sim.scenario.vms import add_vms
from gpuops.sim.world import API_VERSION, World


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
    site = new_site(world, declared, dict(declared.parameters if parameters is None else parameters))
    add_clusters(site)
    add_vms(site)
    world.register(VirtualMachineCompatibilityChecker(world, CHECKER))
    world.counters = measure
    return world
