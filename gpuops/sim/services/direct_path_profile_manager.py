"""The DirectPathProfileManager of vCenter 9.0 and newer: profiles, and their capacity on hosts and in clusters.

A profile is for a vGPU type, a device group or whole devices (Dynamic DirectPath I/O); one for a DVX device is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vim, vmodl

from gpuops.sim.core.managed_object import ManagedObject, method
from gpuops.sim.inventory import faults
from gpuops.sim.operations.reserved_capacity import TypeCapacity, capacity, capacity_at_host
from gpuops.sim.state.direct_path import DirectPathConfig, DirectPathProfileState

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.world import World

MOID: Final = "DirectPathProfileMgr"
"""The moid that a vCenter 9.0.1 has."""
VENDOR: Final = "NVIDIA"
_LONGEST_NAME: Final = 80
_LONGEST_DESCRIPTION: Final = 255
_KIND: Final = vim.DirectPathProfileManager


class DirectPathProfileManager(ManagedObject):
    """Profiles by id."""

    wsdl_name = "DirectPathProfileManager"
    world: World

    @method
    def DirectPathProfileManagerCreate(self, call: Call, spec: Any) -> str:
        """Create a profile and return its id. Raises AlreadyExists, and InvalidArgument for a wrong name or device."""
        config = _config_of(spec.deviceConfig)
        profile = DirectPathProfileState(f"dpp-{self.world.next_number()}", spec.name, spec.description or "", config)
        self._store_profile(call, profile, None)
        return profile.id

    @method
    def DirectPathProfileManagerUpdate(self, call: Call, id: str, spec: Any) -> None:
        """Change name or description of a profile; None keeps them. Raises NotFound, AlreadyExists."""
        profile = self._profile_by_id(id)
        name = profile.name if spec.name is None else spec.name
        description = profile.description if spec.description is None else spec.description
        self._store_profile(call, replace(profile, name=name, description=description), profile)

    @method
    def DirectPathProfileManagerDelete(self, call: Call, id: str) -> None:
        """Delete a profile. Raises NotFound, and ResourceInUse while capacity of it is reserved."""
        profile = self._profile_by_id(id)
        if any(reservation.config == profile.config for reservation in self.world.direct_path.reservations):
            raise vim.fault.ResourceInUse(msg=f"Capacity of {profile.name} is reserved.", type=_KIND, name=id)
        del self.world.direct_path.profiles[id]
        self.world.ledger.record(call, self, before={id: profile.name}, after={})

    @method
    def DirectPathProfileManagerList(self, call: Call, filterSpec: Any) -> list[Any]:
        """Return the profiles that match ids and names, and that a host of the clusters can run."""
        profiles = [
            profile
            for profile in self.world.direct_path.profiles.values()
            if (not filterSpec.ids or profile.id in filterSpec.ids)
            and (not filterSpec.names or profile.name in filterSpec.names)
        ]
        clusters = [self.world.get(cluster) for cluster in filterSpec.clusters]
        hosts = [host for cluster in clusters for host in cluster.hosts()]
        return [_info(profile) for profile in profiles if not clusters or capacity(profile.config, hosts, ()).max]

    @method
    def DirectPathProfileManagerQueryCapacity(self, call: Call, target: Any, querySpec: list[Any]) -> list[Any]:
        """Return a result for each query in order; without queries, for each profile. Raises InvalidArgument."""
        count = self._capacity_function(target)
        specs = querySpec or [_KIND.CapacityQueryById(id=profile_id) for profile_id in self.world.direct_path.profiles]
        return [self._capacity_result(spec, count) for spec in specs]

    def _capacity_function(self, target: Any) -> Callable[[DirectPathConfig], TypeCapacity]:
        """Return the function that counts a configuration's capacity on the target, a cluster or a host."""
        reserved = self.world.direct_path.reservations
        if isinstance(target, _KIND.TargetCluster):
            cluster = self.world.get(target.cluster)
            place_reservations = [reservation for reservation in reserved if reservation.place == cluster.moid]
            return lambda config: capacity(config, cluster.hosts(), place_reservations)
        if isinstance(target, _KIND.TargetHost):
            host = self.world.get(target.host)
            place = host.compute_resource()
            place_reservations = [reservation for reservation in reserved if reservation.place == place.moid]
            other_hosts = [other_host for other_host in place.hosts() if other_host is not host]
            return lambda config: capacity_at_host(config, host, other_hosts, place_reservations)
        raise faults.wrong_argument("target")

    def _capacity_result(self, spec: Any, count: Callable[[DirectPathConfig], TypeCapacity]) -> Any:
        """Return the CapacityInfo of a query, or CapacityUnknown with the fault of a query that names no profile."""
        try:
            profile = self._profile_of_query(spec)
        except vmodl.MethodFault as fault:
            return _KIND.CapacityUnknown(querySpec=spec, faultList=[fault])
        capacity_count = count(profile.config)
        return _KIND.CapacityInfo(
            profile=_info(profile),
            consumed=capacity_count.consumed,
            remaining=capacity_count.remaining,
            max=capacity_count.max,
            unusedReservation=capacity_count.unused_reservation,
        )

    def _profile_of_query(self, spec: Any) -> DirectPathProfileState:
        """Return the profile of a query; for a configuration without one, an unnamed profile. Raises NotFound."""
        profiles = self.world.direct_path.profiles
        if isinstance(spec, _KIND.CapacityQueryById):
            return self._profile_by_id(spec.id)
        if isinstance(spec, _KIND.CapacityQueryByName):
            return _first_profile((profile for profile in profiles.values() if profile.name == spec.name), spec.name)
        config = _config_of(spec.deviceConfig)
        matching_profiles = (profile for profile in profiles.values() if profile.config == config)
        return next(matching_profiles, DirectPathProfileState("", "", "", config))

    def _profile_by_id(self, id: str) -> DirectPathProfileState:
        return _first_profile((profile for profile in self.world.direct_path.profiles.values() if profile.id == id), id)

    def _store_profile(
        self, call: Call, profile: DirectPathProfileState, before: DirectPathProfileState | None
    ) -> None:
        """Add or replace a profile and record it. Raises InvalidArgument, or AlreadyExists for the name."""
        if not 0 < len(profile.name) <= _LONGEST_NAME:
            raise faults.wrong_argument("name")
        if len(profile.description) > _LONGEST_DESCRIPTION:
            raise faults.wrong_argument("description")
        other_profiles = (
            profile_state
            for profile_state in self.world.direct_path.profiles.values()
            if profile_state.id != profile.id
        )
        if any(profile_state.name == profile.name for profile_state in other_profiles):
            raise vim.fault.AlreadyExists(msg=f"A profile {profile.name} already exists.", name=profile.name)
        self.world.direct_path.profiles[profile.id] = profile
        facts_before = {} if before is None else {profile.id: before.name}
        self.world.ledger.record(call, self, before=facts_before, after={profile.id: profile.name})


def _first_profile(profiles: Iterable[DirectPathProfileState], requested: str) -> DirectPathProfileState:
    profile = next(iter(profiles), None)
    if profile is None:
        raise faults.not_found(f"There is no DirectPath profile {requested}.")
    return profile


def _config_of(config: Any) -> DirectPathConfig:
    """Return the configuration of a DirectPathConfig. Raises InvalidArgument for a kind that is not simulated."""
    if isinstance(config, _KIND.VmiopDirectPathConfig):
        return DirectPathConfig(vgpu=config.vgpuProfile)
    if isinstance(config, _KIND.VirtualDeviceGroupDirectPathConfig):
        return DirectPathConfig(group=config.deviceGroupName)
    if isinstance(config, _KIND.DynamicDirectPathConfig):
        backing = config.dynamicDirectPathBacking
        allowed = tuple((allowed_device.vendorId, allowed_device.deviceId) for allowed_device in backing.allowedDevice)
        return DirectPathConfig(devices=allowed, label=backing.customLabel or None)
    raise faults.wrong_argument("deviceConfig", f"The simulated vCenter does not support {type(config).__name__}.")


def _info(profile: DirectPathProfileState) -> Any:
    return _KIND.DirectPathProfileInfo(
        id=profile.id,
        name=profile.name,
        description=profile.description or None,
        vendorName=VENDOR,
        deviceConfig=_render_config(profile.config),
    )


def _render_config(config: DirectPathConfig) -> Any:
    if config.vgpu:
        return _KIND.VmiopDirectPathConfig(vgpuProfile=config.vgpu)
    if config.group:
        return _KIND.VirtualDeviceGroupDirectPathConfig(deviceGroupName=config.group)
    passthrough = vim.vm.device.VirtualPCIPassthrough
    allowed = [passthrough.AllowedDevice(vendorId=vendor, deviceId=device) for vendor, device in config.devices]
    backing = passthrough.DynamicBackingInfo(deviceName="", allowedDevice=allowed, customLabel=config.label)
    return _KIND.DynamicDirectPathConfig(dynamicDirectPathBacking=backing)
