"""The DirectPathProfileManager of a vCenter 9.0 and newer: profiles, and what hosts and clusters have of them.

Profiles are of vGPU types, of device groups and of whole devices (Dynamic DirectPath I/O); one of a DVX device is
refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vim, vmodl

from gpuops.sim.core.managed_object import ManagedObject, method
from gpuops.sim.inventory import faults
from gpuops.sim.operations.admission.reserved_capacity import TypeCapacity, at_host, capacity
from gpuops.sim.state.direct_path import DirectPathConfig, DirectPathProfileState

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.world import World

MOID: Final = "DirectPathProfileMgr"
"""As a vCenter 9.0.1 answered."""
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
        """Raises AlreadyExists for a name that is taken, InvalidArgument for one or a configuration that cannot be."""
        config = _config_of(spec.deviceConfig)
        made = DirectPathProfileState(f"dpp-{self.world.next_number()}", spec.name, spec.description or "", config)
        self._put(call, made, None)
        return made.id

    @method
    def DirectPathProfileManagerUpdate(self, call: Call, id: str, spec: Any) -> None:
        """Raises NotFound, AlreadyExists."""
        known = self._known(id)
        name = known.name if spec.name is None else spec.name
        description = known.description if spec.description is None else spec.description
        self._put(call, replace(known, name=name, description=description), known)

    @method
    def DirectPathProfileManagerDelete(self, call: Call, id: str) -> None:
        """Raises NotFound, and ResourceInUse while capacity of it is reserved."""
        known = self._known(id)
        if any(each.config == known.config for each in self.world.direct_path.reservations):
            raise vim.fault.ResourceInUse(msg=f"Capacity of {known.name} is reserved.", type=_KIND, name=id)
        del self.world.direct_path.profiles[id]
        self.world.ledger.record(call, self, before={id: known.name}, after={})

    @method
    def DirectPathProfileManagerList(self, call: Call, filterSpec: Any) -> list[Any]:
        """Profiles with one of the ids and one of the names; of clusters, those that one of their hosts can run."""
        found = [
            each
            for each in self.world.direct_path.profiles.values()
            if (not filterSpec.ids or each.id in filterSpec.ids)
            and (not filterSpec.names or each.name in filterSpec.names)
        ]
        clusters = [self.world.get(cluster) for cluster in filterSpec.clusters]
        hosts = [host for cluster in clusters for host in cluster.hosts()]
        return [_info(each) for each in found if not clusters or capacity(each.config, hosts, ()).max]

    @method
    def DirectPathProfileManagerQueryCapacity(self, call: Call, target: Any, querySpec: list[Any]) -> list[Any]:
        """An answer for each query, in their order; without queries, of all profiles. Raises InvalidArgument."""
        count = self._counting(target)
        specs = querySpec or [_KIND.CapacityQueryById(id=each) for each in self.world.direct_path.profiles]
        return [self._answer(spec, count) for spec in specs]

    def _counting(self, target: Any) -> Callable[[DirectPathConfig], TypeCapacity]:
        """How a configuration is counted on the target."""
        reserved = self.world.direct_path.reservations
        if isinstance(target, _KIND.TargetCluster):
            cluster = self.world.get(target.cluster)
            own = [each for each in reserved if each.place == cluster.moid]
            return lambda config: capacity(config, cluster.hosts(), own)
        if isinstance(target, _KIND.TargetHost):
            host = self.world.get(target.host)
            place = host.compute_resource()
            own = [each for each in reserved if each.place == place.moid]
            others = [each for each in place.hosts() if each is not host]
            return lambda config: at_host(config, host, others, own)
        raise faults.wrong_argument("target")

    def _answer(self, spec: Any, count: Callable[[DirectPathConfig], TypeCapacity]) -> Any:
        try:
            profile = self._meant(spec)
        except vmodl.MethodFault as fault:
            return _KIND.CapacityUnknown(querySpec=spec, faultList=[fault])
        found = count(profile.config)
        return _KIND.CapacityInfo(
            profile=_info(profile),
            consumed=found.consumed,
            remaining=found.remaining,
            max=found.max,
            unusedReservation=found.unused_reservation,
        )

    def _meant(self, spec: Any) -> DirectPathProfileState:
        """The profile that a query means; one of a configuration need not exist. Raises NotFound, InvalidArgument."""
        profiles = self.world.direct_path.profiles
        if isinstance(spec, _KIND.CapacityQueryById):
            return self._known(spec.id)
        if isinstance(spec, _KIND.CapacityQueryByName):
            return _found((each for each in profiles.values() if each.name == spec.name), spec.name)
        config = _config_of(spec.deviceConfig)
        like = (each for each in profiles.values() if each.config == config)
        return next(like, DirectPathProfileState("", "", "", config))

    def _known(self, id: str) -> DirectPathProfileState:
        return _found((each for each in self.world.direct_path.profiles.values() if each.id == id), id)

    def _put(self, call: Call, profile: DirectPathProfileState, before: DirectPathProfileState | None) -> None:
        if not 0 < len(profile.name) <= _LONGEST_NAME:
            raise faults.wrong_argument("name")
        if len(profile.description) > _LONGEST_DESCRIPTION:
            raise faults.wrong_argument("description")
        others = (each for each in self.world.direct_path.profiles.values() if each.id != profile.id)
        if any(each.name == profile.name for each in others):
            raise vim.fault.AlreadyExists(msg=f"There is a profile {profile.name}.", name=profile.name)
        self.world.direct_path.profiles[profile.id] = profile
        was = {} if before is None else {profile.id: before.name}
        self.world.ledger.record(call, self, before=was, after={profile.id: profile.name})


def _found(profiles: Iterable[DirectPathProfileState], asked: str) -> DirectPathProfileState:
    found = next(iter(profiles), None)
    if found is None:
        raise vim.fault.NotFound(msg=f"There is no DirectPath profile {asked}.")
    return found


def _config_of(config: Any) -> DirectPathConfig:
    """Raises InvalidArgument for a device that is not simulated."""
    if isinstance(config, _KIND.VmiopDirectPathConfig):
        return DirectPathConfig(vgpu=config.vgpuProfile)
    if isinstance(config, _KIND.VirtualDeviceGroupDirectPathConfig):
        return DirectPathConfig(group=config.deviceGroupName)
    if isinstance(config, _KIND.DynamicDirectPathConfig):
        backing = config.dynamicDirectPathBacking
        allowed = tuple((each.vendorId, each.deviceId) for each in backing.allowedDevice)
        return DirectPathConfig(devices=allowed, label=backing.customLabel or None)
    raise faults.wrong_argument("deviceConfig", f"The simulated vCenter keeps no {type(config).__name__}.")


def _info(profile: DirectPathProfileState) -> Any:
    return _KIND.DirectPathProfileInfo(
        id=profile.id,
        name=profile.name,
        description=profile.description or None,
        vendorName=VENDOR,
        deviceConfig=_shown(profile.config),
    )


def _shown(config: DirectPathConfig) -> Any:
    if config.vgpu:
        return _KIND.VmiopDirectPathConfig(vgpuProfile=config.vgpu)
    if config.group:
        return _KIND.VirtualDeviceGroupDirectPathConfig(deviceGroupName=config.group)
    passthrough = vim.vm.device.VirtualPCIPassthrough
    allowed = [passthrough.AllowedDevice(vendorId=vendor, deviceId=device) for vendor, device in config.devices]
    backing = passthrough.DynamicBackingInfo(deviceName="", allowedDevice=allowed, customLabel=config.label)
    return _KIND.DynamicDirectPathConfig(dynamicDirectPathBacking=backing)
