"""The pod of a gated night: a simulated Horizon pod that remembers who had which session when, and whose each
maintenance is.

Half of the users who come by the broker show in nothing but its list of sessions: they read, and use no CPU. Users who
come by RDP straight to the guest show only in vCenter.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from gpuops.model.desktops.evidence import SessionCount
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.horizon_server import Pod, PodSession
from gpuops.sim.outside_events import vm_events
from gpuops.sim.state.vm_state import Power

if TYPE_CHECKING:
    from gpuops.sim.state.desktop_people import DesktopPoolState

OURS: Final = "gpuops"
ADMIN: Final = "an admin"
BOTH: Final = "both"
"""An admin asked for it when a night had it already: gpuops cannot tell the two apart, and the manual says so."""
_NOTHING: Final = Rule(Effect.HAPPEN)
_IDLE_MHZ: Final = 60


@dataclass
class Stay:
    """A user at a desktop, from when to when; None = still there."""

    moid: str
    since: datetime
    shown_at: datetime
    """From when on the broker's list has the session; of a user by RDP, when the guest shows it."""
    by_rdp: bool
    until: datetime | None = None

    def there(self, at: datetime) -> bool:
        return self.shown_at <= at and (self.until is None or at < self.until)


@dataclass
class MaintenanceChange:
    """A machine went into maintenance, or out of it, by whom."""

    at: datetime
    moid: str
    enter: bool


@dataclass(slots=True)
class NightPod(Pod):
    """Callers hold the world's lock."""

    stays: list[Stay] = field(default_factory=list)
    by_session: dict[str, Stay] = field(default_factory=dict)
    changes: list[MaintenanceChange] = field(default_factory=list)
    owners: dict[str, str] = field(default_factory=dict)
    """VM (ref) -> whose its maintenance is."""
    doubtful: set[str] = field(default_factory=set)
    """VMs (refs) whose gate is a night's for all that gpuops can know: an admin has opened it, or whether a request to
    close it arrived is not known. A maintenance that an admin begins after that is BOTH."""
    wrongly_opened: list[tuple[str, datetime]] = field(default_factory=list)
    """(VM, when) where an admin's own maintenance was ended by a night."""

    # --- users ----------------------------------------------------------------------------------------------------

    def log_in(self, pool: DesktopPoolState, vm: Any, shown_in_s: float = 0.0) -> PodSession | None:
        """As the pod's own; `shown_in_s`: the broker has given the machine, and its list has the session later."""
        session = Pod.log_in(self, pool, vm)
        if session is None:
            return None
        if self._rng.random() < 0.5 and not self._is_used_by_rdp(vm):
            self._uses(vm, _IDLE_MHZ)
        now = self.world.clock.now()
        self.by_session[session.id] = stay = Stay(vm.moid, now, now + timedelta(seconds=shown_in_s), by_rdp=False)
        self.stays.append(stay)
        return session

    def log_off(self, pool: DesktopPoolState, session: PodSession) -> None:
        stay = self.by_session.get(session.id)
        if stay is not None and stay.until is None:
            stay.until = self.world.clock.now()
        Pod.log_off(self, pool, session)
        if session.vm.is_registered and self._is_used_by_rdp(session.vm):
            vm_events.use_desktop(session.vm, _NOTHING)

    def _is_used_by_rdp(self, vm: Any) -> bool:
        now = self.world.clock.now()
        return any(stay.by_rdp and stay.moid == vm.moid and stay.there(now) for stay in self.stays)

    def come_by_rdp(self, vm: Any, stays_s: float) -> bool:
        """Somebody logs in to the guest itself; whether it runs."""
        if vm.state.power is not Power.ON or not vm.is_registered or self.session_of(vm) is not None:
            return False
        now = self.world.clock.now()
        stay = Stay(vm.moid, now, now, by_rdp=True)
        self.stays.append(stay)
        vm_events.use_desktop(vm, _NOTHING)

        def leave() -> None:
            stay.until = self.world.clock.now()
            if vm.is_registered and self.session_of(vm) is None and not self._is_used_by_rdp(vm):
                self._uses(vm, _IDLE_MHZ)

        self.world.clock.schedule(stays_s, leave, background=True)
        return True

    def _uses(self, vm: Any, mhz: int) -> None:
        vm.state.cpu_usage_mhz, vm.state.guest_users = mhz, ()
        vm.touch("summary")

    # --- maintenance ----------------------------------------------------------------------------------------------

    def change_maintenance(self, vm: Any, *, enter: bool, by: str = OURS, requested_at: datetime | None = None) -> None:
        """`asked`: when the request was sent that comes now; None = just now."""
        before, owner = self.in_maintenance(vm), self.owners.get(vm.moid)
        if enter and before:
            self.owners[vm.moid] = BOTH if owner not in (by, None) and by == ADMIN else owner or by
        elif enter:
            self.owners[vm.moid] = BOTH if by == ADMIN and vm.moid in self.doubtful else by
        else:
            begun = max((change.at for change in self.changes if change.moid == vm.moid), default=None)
            unknown_to_us = (
                requested_at is not None and begun is not None and begun > requested_at
            )  # it cannot be taken back
            if before and by == OURS and owner == ADMIN and not unknown_to_us:
                self.wrongly_opened.append((vm.moid, self.world.clock.now()))
            if before and by == ADMIN and owner == OURS:
                self.doubtful.add(vm.moid)
            self.owners.pop(vm.moid, None)
        Pod.change_maintenance(self, vm, enter=enter)
        if before is not enter:
            self.changes.append(MaintenanceChange(self.world.clock.now(), vm.moid, enter))

    def was_in_maintenance(self, vm: Any, at: datetime) -> bool:
        """Whether it was at that moment."""
        later = [change for change in self.changes if change.moid == vm.moid and change.at > at]
        return self.in_maintenance(vm) if not later else not later[0].enter

    def was_ever_in_maintenance(self, vm: Any, since: datetime, until: datetime) -> bool:
        """Whether it was at some moment from the one to the other."""
        entered = (change.enter and change.moid == vm.moid and since <= change.at <= until for change in self.changes)
        return self.was_in_maintenance(vm, since) or any(entered)

    def shown_sessions(self, at: datetime) -> list[tuple[str, Stay]]:
        """Those that the broker had in its list at that moment, by their ids."""
        return [(identity, stay) for identity, stay in self.by_session.items() if stay.there(at)]


class RdpWatch:
    """Implements `SessionSource`: an operator's own command that sees who is in a guest, by whichever way they came."""

    def __init__(self, pod: NightPod) -> None:
        self._pod = pod

    def sessions(self, vms: Sequence[Vm], inventory: Inventory) -> Mapping[str, SessionCount]:
        now = self._pod.world.clock.now()
        connected_vms = {stay.moid for stay in self._pod.stays if stay.by_rdp and stay.there(now)}
        return {
            vm.ref: SessionCount(int(vm.ref in connected_vms), vm.ref in connected_vms, inventory.taken_at)
            for vm in vms
        }


def pod_of(world: Any, seed: int) -> NightPod:
    """The pod of a world. Users who are there in the evening stay for a while, each for a time of their own."""
    return NightPod(world, random.Random(f"{seed}:pod").randrange(1 << 30))
