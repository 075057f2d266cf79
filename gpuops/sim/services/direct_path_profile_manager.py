"""The DirectPathProfileManager of a vCenter 9.0 and newer: profiles, and what hosts and clusters have of them.

Profiles of vGPU types are counted; those of device groups are kept and named, and their capacity is not known here. A
profile of another kind is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vim, vmodl

from gpuops.sim.core.managed_object import ManagedObject, method
from gpuops.sim.inventory import faults
from gpuops.sim.operations.reserved_capacity import TypeCapacity, at_host, capacity
from gpuops.sim.state.direct_path import DirectPathProfileState

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
        vgpu, group = _config_of(spec.deviceConfig)
        made = DirectPathProfileState(f"dpp-{self.world.next_number()}", spec.name, spec.description or "", vgpu, group)
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
        if any(each.vgpu == known.vgpu for each in self.world.direct_path.reservations):
            raise vim.fault.ResourceInUse(msg=f"TypeCapacity of {known.name} is reserved.", type=_KIND, name=id)
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
        return [_info(each) for each in found if not clusters or capacity(each.vgpu, hosts, ()).max]

    @method
    def DirectPathProfileManagerQueryCapacity(self, call: Call, target: Any, querySpec: list[Any]) -> list[Any]:
        """An answer for each query, in their order; without queries, of all profiles. Raises InvalidArgument."""
        count = self._counting(target)
        specs = querySpec or [_KIND.CapacityQueryById(id=each) for each in self.world.direct_path.profiles]
        return [self._answer(spec, count) for spec in specs]

    def _counting(self, target: Any) -> Callable[[str], TypeCapacity]:
        """How a vGPU type is counted on the target."""
        reserved = self.world.direct_path.reservations
        if isinstance(target, _KIND.TargetCluster):
            cluster = self.world.get(target.cluster)
            own = [each for each in reserved if each.place == cluster.moid]
            return lambda vgpu: capacity(vgpu, cluster.hosts(), own)
        if isinstance(target, _KIND.TargetHost):
            host = self.world.get(target.host)
            place = host.compute_resource()
            own = [each for each in reserved if each.place == place.moid]
            others = [each for each in place.hosts() if each is not host]
            return lambda vgpu: at_host(vgpu, host, others, own)
        raise faults.wrong_argument("target")

    def _answer(self, spec: Any, count: Callable[[str], TypeCapacity]) -> Any:
        try:
            profile = self._meant(spec)
            if not profile.vgpu:
                raise vmodl.fault.NotSupported(msg="The capacity of device groups is not simulated.")
        except vmodl.MethodFault as fault:
            return _KIND.CapacityUnknown(querySpec=spec, faultList=[fault])
        found = count(profile.vgpu)
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
        vgpu, group = _config_of(spec.deviceConfig)
        like = (each for each in profiles.values() if (each.vgpu, each.group) == (vgpu, group))
        return next(like, DirectPathProfileState("", "", "", vgpu, group))

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


def _config_of(config: Any) -> tuple[str, str]:
    """(vGPU type, device group): one of them is empty. Raises InvalidArgument for a device that is not simulated."""
    if isinstance(config, _KIND.VmiopDirectPathConfig):
        return config.vgpuProfile, ""
    if isinstance(config, _KIND.VirtualDeviceGroupDirectPathConfig):
        return "", config.deviceGroupName
    raise faults.wrong_argument("deviceConfig", f"The simulated vCenter keeps no {type(config).__name__}.")


def _info(profile: DirectPathProfileState) -> Any:
    config = (
        _KIND.VmiopDirectPathConfig(vgpuProfile=profile.vgpu)
        if profile.vgpu
        else _KIND.VirtualDeviceGroupDirectPathConfig(deviceGroupName=profile.group)
    )
    return _KIND.DirectPathProfileInfo(
        id=profile.id,
        name=profile.name,
        description=profile.description or None,
        vendorName=VENDOR,
        deviceConfig=config,
    )
