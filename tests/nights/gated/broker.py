"""The Connection Server of a gated night, without a wire: what gpuops sees of it, with whatever is wrong just then.

It answers as `gpuops.broker.horizon.Horizon` would: a read that fails is `BrokerUnreachable` after the time that three
tries take; a change whose reply is lost is `OutcomeUnknown`.

A list is wrong only in ways that can be detected: a list of sessions is old or incomplete while the record of the
machine names its session, or a list of machines is old or incomplete. If both were wrong in the same way, at the same
time and about the same desktop, no reader could detect it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from gpuops.errors import BrokerUnreachable, LoginRefused, OutcomeUnknown, ProtocolError
from gpuops.model.desktops.broker import (
    AfterLogoff,
    BrokerVcenter,
    DesktopMachine,
    DesktopPool,
    DesktopPowerPolicy,
    DesktopSession,
    PoolKind,
    SessionState,
)
from gpuops.sim.horizon_server import ALWAYS_ON, MachineRecord, VcenterList
from tests.nights.gated.pod import ADMIN, NightPod, Stay
from tests.nights.gated.schedule import Trouble
from tests.nights.world.worlds import EVENING

CALL_S: Final = 0.2
AWAY_S: Final = 12.0
"""What a read costs that is asked three times."""
SLOW_S: Final = 9.0


class NightBroker:
    """The server, which outlives the processes of a night."""

    def __init__(self, pod: NightPod, troubles: Collection[Trouble], boundary: Callable[[str], None]) -> None:
        self.pod = pod
        self._boundary = boundary
        self._left = list(troubles)
        """What has not struck yet."""
        self._lying: list[tuple[Trouble, datetime]] = []
        """What is wrong for a while, and until when."""
        self._chance = random.Random(pod.seed)
        self.struck: Counter[str] = Counter()
        self.looked_at: datetime | None = None
        """When the list of sessions was last read by gpuops."""
        self.calm = False

    # --- what gpuops calls ----------------------------------------------------------------------------------------

    def opened(self) -> NightBroker:
        """A login. Raises NotConnected."""
        self._arrive()
        if self._strikes("login refused"):
            raise LoginRefused("the broker refuses the login")
        return self

    def pools(self) -> tuple[DesktopPool, ...]:
        self._arrive()
        return tuple(
            DesktopPool(
                self.pod.pool_id(pool),
                pool.name,
                PoolKind.AUTOMATED,
                DesktopPowerPolicy.ALWAYS_ON if pool.power_policy == ALWAYS_ON else DesktopPowerPolicy.NONE,
                AfterLogoff.NOTHING,
                enabled=True,
                spare_machines=pool.spare_machines,
            )
            for pool in self.pod.world.desktop_pools
        )

    def vcenters(self) -> tuple[BrokerVcenter, ...]:
        self._arrive()
        if self.pod.vcenter_list is VcenterList.FORBIDDEN:
            return ()
        return tuple(BrokerVcenter(*vcenter) for vcenter in self.pod.vcenters())

    def machines(self) -> tuple[DesktopMachine, ...]:
        self._arrive()
        machines = self._list_machines(self._old_s("stale machines", "stale lists"))
        if self._lies("partial machines"):
            machines = [machine for machine in machines if self._chance.random() < 0.6]
        answer = tuple(machines)
        self._after("admin closes after a look")
        return answer

    def machine(self, identity: str) -> DesktopMachine | None:
        """One machine, as it is now: a record that is asked for by itself is no list."""
        self._arrive()
        return next((machine for machine in self._list_machines(0.0) if machine.id == identity), None)

    def sessions(self) -> tuple[DesktopSession, ...]:
        self._arrive()
        self.looked_at = self.pod.world.clock.now()
        at = self.looked_at - timedelta(seconds=self._old_s("stale sessions", "stale lists"))
        vms = {vm.moid: vm for _, vm in self.pod.machines()}
        sessions = [
            self._session(identity, stay, vms[stay.moid])
            for identity, stay in self.pod.shown_sessions(at)
            if stay.moid in vms
        ]
        if self._lies("partial sessions"):
            sessions = [session for session in sessions if self._chance.random() < 0.5]
        answer = tuple(sessions)
        for kind in ("logon after a look", "rdp after a look"):
            self._after(kind)
        return answer

    def enter_maintenance(self, machines: Collection[str]) -> Mapping[str, str]:
        return self._change(machines, enter=True)

    def exit_maintenance(self, machines: Collection[str]) -> Mapping[str, str]:
        return self._change(machines, enter=False)

    # --- how it answers -------------------------------------------------------------------------------------------

    def _arrive(self) -> None:
        clock = self.pod.world.clock
        clock.advance(SLOW_S if self._lies("slow") else CALL_S)
        if self._lies("away"):
            clock.advance(AWAY_S)
            raise BrokerUnreachable("the broker does not answer")
        if self._lies("server error"):
            raise ProtocolError("the broker answers with status 500")

    def _list_machines(self, old_s: float) -> list[DesktopMachine]:
        at = self.pod.world.clock.now() - timedelta(seconds=old_s)
        sessions = {stay.moid: identity for identity, stay in self.pod.shown_sessions(at)}
        return [self._machine(record, sessions, at) for record in self.pod.records()]

    def _machine(self, record: MachineRecord, sessions: Mapping[str, str], at: datetime) -> DesktopMachine:
        session = sessions.get(record.vm.moid) if record.vm is not None else None
        gated = record.vm is not None and self.pod.was_in_maintenance(record.vm, at)
        state = "MAINTENANCE" if gated else "CONNECTED" if session else "AVAILABLE"
        return DesktopMachine(
            record.id, record.name, self.pod.pool_id(record.pool), path=record.path, state=state, in_maintenance=gated,
            session=session, vcenter=record.vcenter, managed=record.managed,
        )  # fmt: skip

    def _session(self, identity: str, stay: Stay, vm: Any) -> DesktopSession:
        return DesktopSession(identity, self.pod.machine_id(vm), SessionState.CONNECTED, stay.since)

    def _change(self, machines: Collection[str], *, enter: bool) -> Mapping[str, str]:
        word = "close" if enter else "open"
        vms = {self.pod.machine_id(vm): vm for _, vm in self.pod.machines()}
        names = " ".join(vms[machine].name for machine in machines if machine in vms)
        unsure = {vms[machine].moid for machine in machines if machine in vms and enter} - self.pod.doubtful
        self.pod.doubtful |= unsure
        self._boundary(f"before {word} {names}")
        try:
            refusals = self._change_machines({machine: vms.get(machine) for machine in machines}, word, enter=enter)
            self.pod.doubtful -= unsure
            return refusals
        finally:
            self._boundary(f"after {word} {names}")

    def _change_machines(self, vms_by_machine: Mapping[str, Any], word: str, *, enter: bool) -> Mapping[str, str]:
        try:
            self._arrive()
        except (BrokerUnreachable, ProtocolError) as error:
            raise OutcomeUnknown(f"{error.message}; whether the machines changed is not known") from error
        if enter:
            self._after("slow logon before a gate", [vm for vm in vms_by_machine.values() if vm is not None])
        if self._strikes("refused"):
            return dict.fromkeys(vms_by_machine, "the broker says no")
        if self._strikes(f"unheard {word}"):
            raise OutcomeUnknown("the request did not arrive")
        late = self._strikes(f"late {word}")
        if late is not None:
            for vm in vms_by_machine.values():
                comes = partial(self._apply, vm, enter=enter, requested_at=self.pod.world.clock.now())
                self.pod.world.clock.schedule(late.for_s, comes, background=True)
            raise OutcomeUnknown("the reply was lost")
        refused = {
            identity: "no such machine" for identity, vm in vms_by_machine.items() if not self._apply(vm, enter=enter)
        }
        if self._strikes(f"lost {word}"):
            raise OutcomeUnknown("the reply was lost")
        return refused

    def _apply(self, vm: Any, *, enter: bool, requested_at: datetime | None = None) -> bool:
        if vm is None or not vm.is_registered:
            return False
        self.pod.change_maintenance(vm, enter=enter, requested_at=requested_at)
        return True

    # --- what is wrong --------------------------------------------------------------------------------------------

    def _due(self, kind: str) -> Trouble | None:
        passed_s = (self.pod.world.clock.now() - EVENING).total_seconds()
        return None if self.calm else next((e for e in self._left if e.kind == kind and e.at_s <= passed_s), None)

    def _strikes(self, kind: str) -> Trouble | None:
        """What strikes this call; one that is to come later has let it pass."""
        due = self._due(kind)
        if due is None:
            return None
        self._left.remove(due)
        if due.skip:
            trouble_left = Trouble(due.kind, due.at_s, due.for_s, due.target, due.skip - 1)
            self._left.append(trouble_left)
            return None
        self.struck[kind] += 1
        return due

    def _lies(self, kind: str) -> Trouble | None:
        """What is wrong for a while."""
        now = self.pod.world.clock.now()
        begun = self._strikes(kind)
        if begun is not None:
            self._lying.append((begun, now + timedelta(seconds=max(begun.for_s, 60.0 if "stale" in kind else 0.0))))
        if self.calm:
            return None
        return next((trouble for trouble, until in self._lying if trouble.kind == kind and now < until), None)

    def _old_s(self, *kinds: str) -> float:
        return max((trouble.for_s for kind in kinds if (trouble := self._lies(kind)) is not None), default=0.0)

    def _after(self, kind: str, vms: Collection[Any] = ()) -> None:
        """Somebody does something just at this call."""
        due = self._strikes(kind)
        if due is None:
            return
        pooled = [(pool, vm) for pool, vm in self.pod.machines() if not vms or vm in vms]
        if kind == "admin closes after a look":
            open_ = [vm for _, vm in pooled if vm.state.power.value == "poweredOn" and not self.pod.in_maintenance(vm)]
            if open_:
                self.pod.change_maintenance(self._chance.choice(open_), enter=True, by=ADMIN)
        elif kind == "rdp after a look":
            running = [vm for _, vm in pooled if vm.state.power.value == "poweredOn"]
            gated = [vm for vm in running if self.pod.in_maintenance(vm)]
            if running:
                self.pod.come_by_rdp(self._chance.choice(gated or running), 600.0)
        else:
            free = [(pool, vm) for pool, vm in pooled if not self.pod.in_maintenance(vm)]
            if free:
                pool, vm = self._chance.choice(free)
                self.pod.log_in(pool, vm, due.for_s if kind.startswith("slow") else 0.0)
