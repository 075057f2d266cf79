"""A gated night: the night of a seed whose desktops are kept from users by a broker's gate.

The engine, its kills and its vCenter are those of the other nights; the broker, its users and what is wrong with both
are of this package. In one night of three vCenter's own faults strike as well. Of a calm night the harvest is measured.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from gpuops.execute.journal.record import Kind
from gpuops.execute.runs import RunKind
from gpuops.execute.site.policy_reads import BrokerGates, BrokerRest, BrokerSessions
from gpuops.model.desktops.evidence import Source
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.steps import Step
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.horizon_server import ALWAYS_ON
from gpuops.sim.outside_events import vm_events
from gpuops.sim.state.vm_state import Power
from gpuops.sim.world import World
from tests.nights.faults.event import Event
from tests.nights.faults.schedule import schedule_of as vcenter_schedule_of
from tests.nights.gated.broker import NightBroker
from tests.nights.gated.pod import ADMIN, NightPod, RdpWatch, pod_of
from tests.nights.gated.schedule import FORMS, VCENTERS, Trouble, gated_site, is_calm, schedule_of
from tests.nights.gated.schedule import called_off_s as called_off_s_of
from tests.nights.playing.night import Nightly
from tests.nights.playing.place import NightPlace
from tests.nights.playing.played import Played
from tests.nights.playing.played import lines as lines_of_night
from tests.nights.world.showing import Showing
from tests.nights.world.worlds import EVENING, Site

CRON: Final = timedelta(minutes=20)
CALLS: Final = 12
"""From eight to midnight."""
POWER_CHECK_S: Final = 60.0
SPINS: Final = 300
"""So many rounds of the engine at one and the same moment, with nothing in flight, are a loop without an end."""
_NOTHING: Final = Rule(Effect.HAPPEN)


class Spins(Exception):
    """The engine goes round and round, and no time passes."""


@dataclass
class GatedPlayed:
    """A gated night that is over, for the checkers."""

    night: Played
    pod: NightPod
    troubles: tuple[Trouble, ...]
    suspends: list[tuple[str, datetime, datetime | None, datetime | None]] = field(default_factory=list)
    """(desktop, when it was asked for, when the list of sessions, and when the VM in vCenter, was last read before it)
    of each suspend of ours."""
    struck: Counter[str] = field(default_factory=Counter)
    watched: bool = False
    """Whether the target has an `idle_command`, which sees who comes past the broker."""
    spun: str = ""
    """Where the engine went round without an end; the night ended there."""
    gated_at_end: frozenset[str] = frozenset()
    """VMs (refs) in maintenance when all is over."""


class NotingShowing(Showing):
    """What vCenter shows, and when each VM was looked at last."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.looked_at: dict[str, datetime] = {}

    def observed(self, inventory: Inventory, refs: Collection[str]) -> Inventory:
        self.looked_at |= dict.fromkeys(refs, self._world.clock.now())
        return super().observed(inventory, refs)


class GatedNight(Nightly):
    """The gated night of a seed, or of its world under other troubles and events."""

    def __init__(
        self,
        seed: int,
        troubles: Sequence[Trouble] | None = None,
        events: Sequence[Event] | None = None,
        site: Site | None = None,
    ) -> None:
        site = site or gated_site(seed)
        super().__init__(seed, _events_of(seed, site) if events is None else events, site)
        self.played.busy = frozenset()  # who is there in the evening leaves at night
        desktops = sorted(name for name in self.played.names.values() if name.startswith("desktop-"))
        chosen = schedule_of(seed, desktops) if troubles is None else tuple(troubles)
        self.pod = pod_of(self.world, seed)
        self._showing = self._noting = NotingShowing(self.world)
        self.broker = NightBroker(self.pod, chosen, self._boundary)
        self.gated = GatedPlayed(self.played, self.pod, chosen, watched=seed % 2 == 1)
        self._rounds: tuple[datetime, int] = (EVENING, 0)
        for trouble in chosen:
            self._schedule(trouble)

    def play_gated(self) -> GatedPlayed:
        """The whole night, or as much of it as there is."""
        try:
            self.play()
        except Spins as spins:
            self.gated.spun = str(spins)
            return self.gated
        self.gated.struck.update(self.broker.struck)
        self.gated.gated_at_end = frozenset(vm.moid for _, vm in self.pod.machines() if self.pod.in_maintenance(vm))
        return self.gated

    def _evening(self) -> Iterable[tuple[RunKind, datetime]]:
        if is_calm(self.played.seed):  # as `gpuops help timers` has it
            yield from ((RunKind.NIGHT, EVENING + number * CRON) for number in range(CALLS))
            return
        called_off_s, called_off = called_off_s_of(self.played.seed), False
        for half, moment in super()._evening():
            yield half, moment
            if half is RunKind.NIGHT and called_off_s is not None and not called_off:
                called_off = True
                yield RunKind.DAY, moment + timedelta(seconds=called_off_s)

    # --- the broker -----------------------------------------------------------------------------------------------

    def _place(self, vcenter: Any) -> NightPlace:
        place = super()._place(vcenter)
        horizons: list[NightBroker] = []

        def open_broker() -> NightBroker:
            if not horizons:
                horizons.append(self.broker.opened())
            return horizons[0]

        place.gates = BrokerGates(open_broker, BrokerSessions(open_broker, broker_rest=BrokerRest(place.passed_s)))
        if self.gated.watched:
            place.sources = {Source.COMMAND: RdpWatch(self.pod)}
        place.in_flight = self._in_flight
        return place

    def _in_flight(self, steps: Sequence[Step]) -> None:
        now = self.world.clock.now()
        since, rounds = self._rounds
        rounds = rounds + 1 if now == since and not steps else 0
        self._rounds = now, rounds
        if rounds > SPINS:
            raise Spins(f"{rounds} rounds at {now:%H:%M:%S} with nothing in flight")

    def _boundary(self, point: str) -> None:
        if point.startswith("before SuspendVm "):
            name = point.removeprefix("before SuspendVm ")
            vm = next((vm for _, vm in self.pod.machines() if vm.name == name), None)
            if vm is not None:
                looks = self.broker.looked_at, self._noting.looked_at.get(vm.moid)
                self.gated.suspends.append((vm.moid, self.world.clock.now(), *looks))
        if point.startswith(("before close ", "before open ")):  # the broker gets no op id: only the journal has it
            intent = next(record for record in reversed(self._store.records) if record.kind is Kind.INTENT)
            self._note_request(intent.body["op"])
        super()._boundary(point)

    def _calm(self) -> None:
        super()._calm()
        self.broker.calm = True

    # --- people ---------------------------------------------------------------------------------------------------

    def _schedule(self, trouble: Trouble) -> None:
        acts = {
            "logon": self._logs_on,
            "rdp": self._comes_by_rdp,
            "admin closes": partial(self._maintains, enter=True),
            "admin opens": partial(self._maintains, enter=False),
            "always on": self._keeps_on,
            "made anew": self._makes_anew,
            **dict.fromkeys(FORMS, self._names_otherwise),
            **dict.fromkeys(VCENTERS, self._has_two_vcenters),
        }
        act = acts.get(trouble.kind)
        if act is not None:
            self.world.clock.schedule(trouble.at_s, partial(self._act, act, trouble), background=True)

    def _act(self, act: Any, trouble: Trouble) -> None:
        vm = next((vm for _, vm in self.pod.machines() if vm.name == trouble.target), None)
        if vm is not None and vm.is_registered and act(vm, trouble):
            self.gated.struck[trouble.kind] += 1

    def _logs_on(self, vm: Any, trouble: Trouble) -> bool:
        """A user asks for a desktop: this one, or any other of its pool that is free, as a floating pool has it."""
        pools = {machine.moid: pool for pool, machine in self.pod.machines()}
        free = [machine for pool, machine in self.pod.machines() if pool is pools[vm.moid] and self._is_free(machine)]
        self.pod.log_in(pools[vm.moid], vm if not free or self._is_free(vm) else free[0])
        return True

    def _is_free(self, vm: Any) -> bool:
        return vm.state.power is Power.ON and not self.pod.in_maintenance(vm) and self.pod.session_of(vm) is None

    def _comes_by_rdp(self, vm: Any, trouble: Trouble) -> bool:
        return self.pod.come_by_rdp(vm, trouble.for_s)

    def _maintains(self, vm: Any, trouble: Trouble, *, enter: bool) -> bool:
        """An admin closes this gate, or opens one: this, or the first that is closed before a desktop that runs."""
        if not enter and not self.pod.in_maintenance(vm):
            gated = (machine for _, machine in self.pod.machines() if self.pod.in_maintenance(machine))
            vm = next((machine for machine in gated if machine.state.power is Power.ON), vm)
        self.pod.change_maintenance(vm, enter=enter, by=ADMIN)
        return True

    def _keeps_on(self, vm: Any, trouble: Trouble) -> bool:
        """Somebody changes the power policy of the pool: machines that are off are powered on, but for maintenance."""
        self.world.desktop_pools = tuple(
            replace(pool, power_policy=ALWAYS_ON) if pool.has(vm.name) else pool for pool in self.world.desktop_pools
        )

        def check() -> None:
            if self.broker.calm:
                return
            for _, machine in list(self.pod.machines()):
                idle = self.world.tasks.running(machine) is None
                if idle and machine.state.power is not Power.ON and not self.pod.in_maintenance(machine):
                    vm_events.power_on(machine, _NOTHING)
            self.world.clock.schedule(POWER_CHECK_S, check, background=True)

        check()
        return True

    def _names_otherwise(self, vm: Any, trouble: Trouble) -> bool:
        """The broker's record of the machine names its VM in another way."""
        self.pod.forms[vm.moid] = FORMS[trouble.kind]
        return True

    def _has_two_vcenters(self, vm: Any, trouble: Trouble) -> bool:
        """Somebody adds a vCenter with the same folders to the pod, and the list of vCenters is as the trouble says."""
        self.pod.second_vcenter, self.pod.vcenter_list = True, VCENTERS[trouble.kind]
        return True

    def _makes_anew(self, vm: Any, trouble: Trouble) -> bool:
        """Somebody rebuilds the machine: it is another VM, with another id at the broker."""
        with suppress(KeyError):
            vm_events.recreate(vm, _NOTHING)
        return True


def _events_of(seed: int, site: Site) -> tuple[Event, ...]:
    """What strikes vCenter and the process in a gated night: in one of three all that other nights have, in another
    one kills alone."""
    rng = random.Random(f"{seed}:gated events")
    desktops = [f"desktop-{number:03}" for number in range(1, site.size.desktops + 1)]
    ml = [f"ml-{number:02}" for number in range(1, site.size.ml + 1)]
    hosts = [f"esx-{number:02}" for number in range(1, site.size.hosts + 1)]
    match 0 if is_calm(seed) else rng.randrange(3):
        case 0:
            return ()
        case 1:
            return tuple(Event("K1", point=rng.randint(1, 60)) for _ in range(rng.choice([1, 1, 2, 3])))
        case _:
            every = vcenter_schedule_of(seed, desktops, ml, hosts)
            return tuple(event for event in every if event.fault not in _NOT_HERE)


_NOT_HERE: Final = ("K5", "K6", "K11", "K12", "H4", "H5", "H6", "V10", "V11")
"""What needs a lock on disk, a second machine, a lock VM, or is of epidemics with marks that these worlds lack."""


def play(seed: int) -> GatedPlayed:
    """The gated night of a seed."""
    return GatedNight(seed).play_gated()


def log_lines(gated: GatedPlayed) -> Iterator[str]:
    """The schedule, the ledger of both servers, every session, and every step with its end."""
    yield from (str(trouble) for trouble in gated.troubles)
    yield from lines_of_night(gated.night)
    names = gated.night.names
    for stay in gated.pod.stays:
        way = "RDP" if stay.by_rdp else "the broker"
        until = f"{stay.until:%H:%M:%S}" if stay.until is not None else "the end"
        yield f"{stay.since:%H:%M:%S} a user of {names.get(stay.moid, stay.moid)} by {way}, until {until}"
    for report, _ in gated.night.told:
        for outcome in report.outcomes:
            vm = report.before.vms.get(outcome.step.vm)
            name = vm.name if vm is not None else outcome.step.vm
            yield f"{report.before.taken_at:%H:%M:%S} {outcome.step.kind} {name}: {outcome.verdict} {outcome.reason}"
