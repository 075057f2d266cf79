"""The pools, machines and sessions of a simulated Horizon pod, whose machines are VMs of the simulated vCenter.

Users come at moments drawn from the seed, on the simulator's clock; no user gets a machine in maintenance. A user
whose desktop is suspended or off has it resumed, as Horizon does, and is sent away where vCenter refuses that. Machines
of a pool that is always powered on are powered on again within a minute, unless they are in maintenance, and so are as
many of a pool with spare machines that so many run unused; an instant clone is deleted and made anew when its user logs
off.

A record is as vCenter has the VM, unless the pool, or the test for one VM, declares another form. All forms are of
public reports about tools that join both by names, or follow from the fields that a record has.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final
from uuid import NAMESPACE_URL, UUID, uuid5

from gpuops.sim.core.inventory_tree import unescaped
from gpuops.sim.core.object_store import somebody
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.outside_events import vms as vm_events
from gpuops.sim.state.desktop_people import RecordForm
from gpuops.sim.state.vm_state import Power

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import VmEntity
    from gpuops.sim.state.desktop_people import DesktopPoolState
    from gpuops.sim.world import World


class VcenterList(StrEnum):
    """How a pod tells which vCenters it has."""

    WITH_UUIDS = "with-uuids"
    WITHOUT_UUIDS = "without-uuids"
    FORBIDDEN = "forbidden"
    """The account may not read them."""
    OLD_UUID = "old-uuid"
    """The vCenter was rebuilt: the pod knows it by the uuid that it had before."""
    COPIED = "copied"
    """The second vCenter is a copy of the first, with its uuid."""


@dataclass(frozen=True, slots=True)
class MachineRecord:
    """What the server's list has of a machine, but for its state."""

    id: str
    name: str
    path: str | None
    vcenter: str | None
    """Id of its vCenter."""
    pool: DesktopPoolState
    vm: VmEntity | None
    """None = its VM is in another vCenter, or is gone."""
    managed: bool = True


def record_of(form: RecordForm, identity: str, pool: DesktopPoolState, vm: VmEntity, vcenter: str) -> MachineRecord:
    """Return the pod's record of a machine, with the deviation from vCenter that `form` names."""
    name, path = vm.name, inventory_path(vm)
    folder = path.rpartition("/")[0]
    match form:
        case RecordForm.NO_PATH:
            return MachineRecord(identity, name, None, vcenter, pool, vm)
        case RecordForm.OTHER_CASE:
            return MachineRecord(identity, name.upper(), path.upper(), vcenter, pool, vm)
        case RecordForm.UNESCAPED:
            return MachineRecord(identity, unescaped(name), unescaped(path), vcenter, pool, vm)
        case RecordForm.RENAMED:
            return MachineRecord(identity, f"{name}-earlier", f"{folder}/{name}-earlier", vcenter, pool, vm)
        case RecordForm.MOVED:
            return MachineRecord(identity, name, f"{folder}/earlier/{name}", vcenter, pool, vm)
        case RecordForm.NO_VCENTER:
            return MachineRecord(identity, name, path, None, pool, vm)
        case RecordForm.UNMANAGED:
            return MachineRecord(identity, f"{name}.vdi.test", None, None, pool, vm, managed=False)
        case _:
            return MachineRecord(identity, name, path, vcenter, pool, vm)


def inventory_path(vm: VmEntity) -> str:
    """Its inventory path, from the datacenter down."""
    parts, at = [vm.name], vm.world.find(vm.parent or "")
    while at is not None and getattr(at, "parent", None):
        parts.append(at.display_name)
        at = vm.world.find(str(getattr(at, "parent", "")))
    return "/" + "/".join(reversed(parts))


ALWAYS_ON: Final = "ALWAYS_POWERED_ON"
POWER_CHECK_S: Final = 60.0
"""How often the power policy is looked to (our own figure)."""
STAYS_S: Final = (300.0, 7200.0)
USER_PREFIX: Final = "S-1-5-21-1111111111-2222222222-3333333333-"
_EMPTY_RULE: Final = Rule(Effect.HAPPEN)
"""For outside events that the pod causes itself, without a fault rule."""


@dataclass(slots=True)
class PodSession:
    """A user at a machine."""

    id: str
    vm: VmEntity
    user: str
    started_at: datetime
    disconnected_at: datetime | None = None


@dataclass(slots=True)
class Pod:
    """A simulated pod. The caller holds the world's lock."""

    world: World
    seed: int = 0
    sessions: dict[str, PodSession] = field(default_factory=dict)
    maintenance: set[str] = field(default_factory=set)
    """Instance uuids of the VMs whose machines are in maintenance."""
    without_agent: set[str] = field(default_factory=set)
    """Moids of the VMs whose agent does not answer, although they run."""
    refused_logins: list[str] = field(default_factory=list)
    """Names of the machines that a user did not get."""
    down: bool = False
    """It answers 503 from now on (fault H5)."""
    forms: dict[str, RecordForm] = field(default_factory=dict)
    """How the records of these VMs (moids) name them, where it is not as their pool declares."""
    vcenter_list: VcenterList = VcenterList.WITH_UUIDS
    second_vcenter: bool = False
    """Whether the pod has another vCenter, with the same folders, and a machine for each of these names there."""
    _pool_names: dict[str, str] = field(default_factory=dict)
    """The pool of each VM (moid) that has been a machine: one that is renamed stays in its pool."""
    _chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)  # noqa: S311 - reproducible choices, no secrets
        for pool, vm in list(self.machines()):
            if vm.state.power is Power.ON and (vm.state.cpu_usage_mhz >= 1000 or vm.state.console_connections):
                self.log_in(pool, vm)
        for pool in self.world.desktop_pools:
            if pool.logins_per_hour:
                self._await_user(pool)
            if pool.power_policy == ALWAYS_ON or pool.spare_machines:
                self._await_power_check(pool)

    def machines(self) -> Iterator[tuple[DesktopPoolState, VmEntity]]:
        """Each VM that is a machine of a pool, with the first pool that has it."""
        for vm in self.world.by_type("VirtualMachine"):
            pool_name = self._pool_names.get(vm.moid)
            pool = next(
                (pool for pool in self.world.desktop_pools if pool.name == pool_name or pool.has(unescaped(vm.name))),
                None,
            )
            if pool is not None:
                self._pool_names[vm.moid] = pool.name
                yield pool, vm

    def records(self) -> Iterator[MachineRecord]:
        """Yield the server's records of machines in all vCenters of the pod; `vm` is None if it is not in this one."""
        for pool, vm in self.machines():
            form, identity = self.forms.get(vm.moid, pool.records), self.machine_id(vm)
            yield record_of(form, identity, pool, vm, self.vcenter_id(1))
            if form is RecordForm.TWICE:
                left_over = self._id("left-over", vm.state.instance_uuid)
                yield replace(record_of(form, left_over, pool, vm, self.vcenter_id(1)), vm=None)
            if self.second_vcenter or pool.second_vcenter:
                second_id = self._id("second", vm.state.instance_uuid)
                record = record_of(RecordForm.AS_IN_VCENTER, second_id, pool, vm, self.vcenter_id(2))
                yield replace(record, vm=None)

    def vcenters(self) -> Iterator[tuple[str, str, str | None]]:
        """Yield (id, name, instance uuid or None) of each vCenter of the pod, as the server lists them."""
        instance_uuid = self.world.get("ServiceInstance").instance_uuid
        other_uuid = self._id("uuid", "other")
        uuids = {
            VcenterList.OLD_UUID: (self._id("uuid", "earlier"), other_uuid),
            VcenterList.COPIED: (instance_uuid, instance_uuid),
        }
        first, second = uuids.get(self.vcenter_list, (instance_uuid, other_uuid))
        has_uuids = self.vcenter_list is not VcenterList.WITHOUT_UUIDS
        yield self.vcenter_id(1), "vc-1", first if has_uuids else None
        if self.second_vcenter or any(pool.second_vcenter for pool in self.world.desktop_pools):
            yield self.vcenter_id(2), "vc-2", second if has_uuids else None

    def vcenter_id(self, number: int) -> str:
        return self._id("vcenter", str(number))

    def pool_id(self, pool: DesktopPoolState) -> str:
        """As Horizon has it: the same in every run."""
        return self._id("pool", pool.name)

    def machine_id(self, vm: VmEntity) -> str:
        return self._id("machine", self._identity(vm))

    def _identity(self, vm: VmEntity) -> str:
        """What a machine is known by: its VM, so that one that is provisioned anew is another machine."""
        by_name = "broker-new-machine" in self.world.deviations  # assumption: broker-new-machine
        return vm.name if by_name else vm.state.instance_uuid

    def machine(self, identity: str) -> VmEntity | None:
        """The VM of a machine's id."""
        return next((vm for _, vm in self.machines() if self.machine_id(vm) == identity), None)

    def session_of(self, vm: VmEntity) -> PodSession | None:
        return next((session for session in self.sessions.values() if session.vm is vm), None)

    def shown_session(self, vm: VmEntity) -> PodSession | None:
        """The session that the lists of machines and sessions have: also while the agent does not answer."""
        # assumption: broker-no-agent
        hidden = "broker-no-agent" in self.world.deviations and vm.moid in self.without_agent
        return None if hidden else self.session_of(vm)

    def in_maintenance(self, vm: VmEntity) -> bool:
        return self._identity(vm) in self.maintenance

    # --- users ----------------------------------------------------------------------------------------------------

    def log_in(self, pool: DesktopPoolState, vm: VmEntity) -> PodSession | None:
        """Log a user in to the machine and return the session.

        None = the login is refused: the machine is in maintenance, in use, or not powered on. In the last case it is
        started for a later login.
        """
        if self.in_maintenance(vm) or self.session_of(vm) is not None:
            self.refused_logins.append(vm.name)
            return None
        if vm.state.power is not Power.ON:
            vm_events.power_on(vm, _EMPTY_RULE)  # the task takes time, and vCenter may refuse it
            self.refused_logins.append(vm.name)
            return None
        number = self._chance.randrange(1000, 10_000)
        session = PodSession(self._uuid(), vm, f"{USER_PREFIX}{number}", self.world.clock.now())
        self.sessions[session.id] = session
        vm_events.use_desktop(vm, _EMPTY_RULE)
        self.world.clock.schedule(self._chance.uniform(*STAYS_S), lambda: self.log_off(pool, session), background=True)
        return session

    def disconnect(self, session: PodSession) -> None:
        """The user has closed the client; the session stays."""
        session.disconnected_at = self.world.clock.now()

    def log_off(self, pool: DesktopPoolState, session: PodSession) -> None:
        """The session ends, and with it an instant clone."""
        if self.sessions.pop(session.id, None) is None or not session.vm.is_registered:
            return
        session.vm.state.cpu_usage_mhz, session.vm.state.guest_users = 60, ()
        session.vm.touch("summary")
        if pool.source == "INSTANT_CLONE":
            vm_events.recreate(session.vm, _EMPTY_RULE)

    def _await_user(self, pool: DesktopPoolState) -> None:
        def come() -> None:
            free = [vm for machine_pool, vm in self.machines() if machine_pool is pool and self.session_of(vm) is None]
            if free:
                self.log_in(pool, self._chance.choice(free))
            self._await_user(pool)

        self.world.clock.schedule(self._chance.expovariate(pool.logins_per_hour / 3600.0), come, background=True)

    # --- the power policy -----------------------------------------------------------------------------------------

    def _await_power_check(self, pool: DesktopPoolState) -> None:
        """Schedule the next check. It starts all machines of an ALWAYS_ON pool, else enough to have the spare ones."""

        def check() -> None:
            vms_of_pool = [
                vm for machine_pool, vm in self.machines() if machine_pool is pool and not self.in_maintenance(vm)
            ]
            spares = sum(vm.state.power is Power.ON and self.session_of(vm) is None for vm in vms_of_pool)
            for vm in vms_of_pool:
                can_start = vm.state.power is not Power.ON and self.world.tasks.running(vm) is None
                if can_start and (pool.power_policy == ALWAYS_ON or spares < pool.spare_machines):
                    vm_events.power_on(vm, _EMPTY_RULE)
                    spares += 1
            self._await_power_check(pool)

        self.world.clock.schedule(POWER_CHECK_S, check, background=True)

    # --- maintenance ----------------------------------------------------------------------------------------------

    def change_maintenance(self, vm: VmEntity, *, enter: bool) -> None:
        """Puts the machine into maintenance, or takes it out; the ledger has it."""
        before, identity = self.in_maintenance(vm), self._identity(vm)
        (self.maintenance.add if enter else self.maintenance.discard)(identity)
        if before is not enter:
            call = somebody(self.world, "enter-maintenance" if enter else "exit-maintenance")
            self.world.ledger.record(call, vm, before={"gated": before}, after={"gated": enter})

    def _id(self, kind: str, name: str) -> str:
        return str(uuid5(NAMESPACE_URL, f"gpuops-sim-horizon:{kind}:{name}"))

    def _uuid(self) -> str:
        return str(UUID(int=self._chance.getrandbits(128), version=4))
