"""Makes the World of a declared inventory, or a new one with the service objects that every vCenter has."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final
from uuid import NAMESPACE_URL, uuid5

import msgspec
from pyVmomi import VmomiSupport

from gpuops.errors import PolicyError
from gpuops.sim.core.managed_object import ManagedObject
from gpuops.sim.core.sim_clock import VIRTUAL_START, ClockMode
from gpuops.sim.managers import of_hosts, of_vcenter
from gpuops.sim.objects.compute_resource import VirtualMachineCompatibilityChecker, VirtualMachineProvisioningChecker
from gpuops.sim.objects.host_system import HostProfileManager
from gpuops.sim.outside_events.fault_file import OUTSIDE_EVENTS
from gpuops.sim.scenario import scenario_file
from gpuops.sim.scenario.counter_values import measure
from gpuops.sim.scenario.declared import DirectPathProfileDeclared
from gpuops.sim.scenario.saved_state import restore, save
from gpuops.sim.scenario.scenario_file import ScenarioFile, moids_read
from gpuops.sim.scenario.scenario_hosts import add_clusters, add_switches, new_host_maker, new_site
from gpuops.sim.scenario.scenario_vms import add_vms
from gpuops.sim.services.authorization_manager import AuthorizationManager, SessionManager
from gpuops.sim.services.direct_path_profile_manager import MOID as DIRECT_PATH_MOID
from gpuops.sim.services.direct_path_profile_manager import DirectPathProfileManager
from gpuops.sim.services.guest_managers import (
    GuestAuthManager,
    GuestFileManager,
    GuestOperationsManager,
    GuestProcessManager,
)
from gpuops.sim.services.history_collector import EventManager, TaskManager
from gpuops.sim.services.option_manager import VCENTER_MOID, CustomFieldsManager, OptionManager
from gpuops.sim.services.performance_manager import PerformanceManager
from gpuops.sim.services.service_instance import SearchIndex, ServiceInstance, managers_of
from gpuops.sim.services.view_manager import ViewManager
from gpuops.sim.state.desktop_people import DesktopPoolState
from gpuops.sim.state.direct_path import DirectPathConfig, DirectPathProfileState, DirectPathState, ReservationState
from gpuops.sim.world import API_VERSION, World

if TYPE_CHECKING:
    from gpuops.sim.scenario.scenario_hosts import ScenarioSite


_SERVICES: Final[tuple[tuple[type[ManagedObject], str], ...]] = (
    (SessionManager, "SessionManager"),
    (ViewManager, "ViewManager"),
    (SearchIndex, "SearchIndex"),
    (TaskManager, "TaskManager"),
    (EventManager, "EventManager"),
    (CustomFieldsManager, "CustomFieldsManager"),
    (AuthorizationManager, "AuthorizationManager"),
    (PerformanceManager, "PerfMgr"),
    (HostProfileManager, "HostProfileManager"),
    (GuestOperationsManager, "guestOperationsManager"),
    (GuestProcessManager, "guestOperationsProcessManager"),
    (GuestAuthManager, "guestOperationsAuthManager"),
    (GuestFileManager, "guestOperationsFileManager"),
)
"""Types and the moids that every vCenter gives them."""


def build(
    spelled: str, *, seed: int = 0, clock: ClockMode = ClockMode.STEPPED, api_version: str | None = None
) -> World:
    """Return the world of a scenario: a name (`lab`, `vdi`, `fleet:hosts=200,vms=2000`), a YAML file or a bundle.

    The same name and seed give the same world, ids included. By default only requests and waits move its time; see
    `clock`. It has the vSphere API version `api_version`, or else the one of the scenario. Raises PolicyError for a
    scenario that is unknown or malformed, has VMs that its hosts refuse to run, or names an API version that pyVmomi
    does not know.
    """
    declared, parameters = scenario_file.read(spelled)

    def build_again() -> World:
        return build_declared(declared, parameters, seed=seed, clock=clock, api_version=api_version)

    world = build_again()
    # Each scenario and seed has its own uuid: clients store journals and locks by it, and must not mix two vCenters up.
    world.get("ServiceInstance").instance_uuid = str(uuid5(NAMESPACE_URL, f"gpuops-sim:{spelled}:{seed}"))
    world.state_hooks = (
        lambda: save(world, spelled, seed, build_again),
        lambda saved: restore(world, spelled, seed, saved),
    )
    return world


def build_declared(
    declared: ScenarioFile,
    parameters: dict[str, int] | None = None,
    *,
    seed: int = 0,
    clock: ClockMode = ClockMode.STEPPED,
    api_version: str | None = None,
) -> World:
    """Return the world of a parsed scenario; `parameters` replace its own. Raises PolicyError as `build` does."""
    version = api_version or declared.api_version or API_VERSION
    if f"vim25/{version}" not in VmomiSupport.versionMap:
        raise PolicyError(
            f"there is no vSphere API version {version!r}", hint="use 8.0.2.0, 8.0.3.0, 9.0.0.0 or 9.1.0.0"
        )
    real_guest = next((name for name, guest in declared.guests.items() if guest.processes == "real"), None)
    if real_guest is not None and not declared.guests[real_guest].linux:
        raise PolicyError(
            f"guest {real_guest!r}: only a Linux guest can run real processes",
            hint="set `linux: true`, or remove `processes`",
        )
    if real_guest is not None and clock is ClockMode.STEPPED:
        raise PolicyError(
            f"guest {real_guest!r} runs real processes, which take real time", hint="use the clock `virtual` or `real`"
        )
    world = new_world(seed=seed, clock=clock, start=declared.start, api_version=version)
    world.options.update(declared.options)
    world.tasks.queues = declared.busy == "queue"
    world.number_from(_first_free_number(declared))  # new ids must differ from those of the scenario
    site = new_site(world, declared, dict(declared.parameters if parameters is None else parameters))
    add_switches(site)
    add_clusters(site)
    world.new_host = new_host_maker(site)
    add_direct_path(site)
    add_vms(site)
    world.counters = measure
    world.desktop_pools = tuple(DesktopPoolState(**msgspec.structs.asdict(pool)) for pool in declared.desktop_pools)
    return world


def _first_free_number(declared: ScenarioFile) -> int:
    """Return the first number for new ids: higher than that of each id that was read from a vCenter."""
    ids = (moid.rpartition("-")[2] for _, moid in moids_read(declared))
    numbers = [int(number) for number in ids if number.isdecimal()]
    return max(numbers, default=0) + 1


def new_world(
    *,
    seed: int = 0,
    clock: ClockMode = ClockMode.STEPPED,
    start: datetime = VIRTUAL_START,
    api_version: str = API_VERSION,
) -> World:
    """Return a vCenter with an empty inventory: its service objects and the outside events of fault rules."""
    world = World(seed=seed, clock=clock, start=start, api_version=api_version, outside_events=OUTSIDE_EVENTS)
    world.register(ServiceInstance(world))
    for kind, moid in _SERVICES:
        world.register(kind(world, moid))
    world.register(OptionManager(world, VCENTER_MOID, world.options))
    world.register(VirtualMachineCompatibilityChecker(world, "CompatChecker"))
    world.register(VirtualMachineProvisioningChecker(world, "ProvChecker"))
    if DIRECT_PATH_MOID in (moid for _, moid in managers_of(api_version).values()):
        world.register(DirectPathProfileManager(world, DIRECT_PATH_MOID))
    of_vcenter.offer(world)
    of_hosts.offer(world)
    return world


def add_direct_path(site: ScenarioSite) -> None:
    """Add the declared DirectPath profiles and reservations.

    Raises PolicyError for an unknown cluster, a reservation without a profile, or a profile that does not name exactly
    one of vgpu, group and devices.
    """
    declared = site.declared
    profiles = [
        DirectPathProfileState(f"dpp-{number}", profile.name, "", _config(profile))
        for number, profile in enumerate(declared.direct_path_profiles, 1)
    ]
    clusters = {cluster.name: cluster.moid for cluster in site.world.by_type("ClusterComputeResource")}
    reservations = []
    for reservation in declared.reservations:
        name = reservation.vgpu or reservation.profile
        if reservation.on not in clusters:
            raise PolicyError(
                f"reservation of {name}: the scenario has no cluster {reservation.on!r}",
                hint=f"its clusters: {', '.join(clusters) or 'none'}",
            )
        matching_configs = (
            profile.config
            for profile in profiles
            if name == (profile.config.vgpu if reservation.vgpu else profile.name)
        )
        config = next(matching_configs, None)
        if config is None:
            raise PolicyError(
                f"reservation of {name}: no DirectPath profile is declared for it",
                hint="add one to `direct_path_profiles`",
            )
        reservations.append(ReservationState(config, reservation.units, clusters[reservation.on], reservation.vms))
    site.world.direct_path = DirectPathState({profile.id: profile for profile in profiles}, tuple(reservations))


def _config(declared: DirectPathProfileDeclared) -> DirectPathConfig:
    """Return the configuration of a declared DirectPath profile. Raises PolicyError."""
    if sum(map(bool, (declared.vgpu, declared.group, declared.devices))) != 1:
        raise PolicyError(f"DirectPath profile {declared.name}: declare exactly one of vgpu, group and devices")
    ids = []
    for text in declared.devices:
        vendor, _, device = text.partition(":")
        try:
            ids.append((int(vendor, 16), int(device, 16)))
        except ValueError:
            raise PolicyError(
                f"DirectPath profile {declared.name}: {text!r} is not VENDOR:DEVICE, such as 10de:26b9"
            ) from None
    return DirectPathConfig(declared.vgpu, declared.group, tuple(ids), declared.label)
