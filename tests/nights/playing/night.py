"""Night: one seed from evening to morning, by the engine itself: cron, kills, an operator who resumes, and the end.

Evening: `rotate night`, and `rotate resume` while it is cut off. Morning: `rotate day` every ten minutes. At seven all
faults stop; then the engine has its last say, and everything that the checkers need to know is written down.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast
from unittest.mock import patch

from pyVmomi import vim, vmodl

from gpuops.errors import GpuopsError
from gpuops.execute.journal.journal import Journal
from gpuops.execute.journal.record import Kind, Record
from gpuops.execute.journal.remembered import IntentState
from gpuops.execute.rotation import rotation_lock
from gpuops.execute.rotation.abandon_vm import abandon_vm
from gpuops.execute.rotation.hung_run import GRACE_S
from gpuops.execute.rotation.rotation import restore, resume, rotate
from gpuops.execute.runs.run_kind import RunKind
from gpuops.execute.site import Site as Place
from gpuops.execute.site import agreed
from gpuops.execute.site.ports import Vcenter
from gpuops.execute.state import lock
from gpuops.execute.steps.step_queue import HUNG_S
from gpuops.model.nights.night_record import LockHolder
from gpuops.model.nights.rotation import LATE, Policy
from gpuops.plan.core.outcome import Report
from gpuops.plan.rotation.nights.stop_conditions import MOST_CLOCK_DIFFERENCE
from gpuops.plan.rotation.returns.return_time import ends_at
from gpuops.sim.core.object_store import somebody
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.objects.virtual_machine import VirtualMachine
from gpuops.sim.operations.admission.initial_placement import place
from gpuops.sim.operations.vms import power
from gpuops.sim.outside_events.vms import use_desktop
from gpuops.sim.state.vm_state import Power
from gpuops.sim.world import World
from tests.nights.at_once.beside import Beside
from tests.nights.at_once.machines import Machines, leases_of_a_seed
from tests.nights.at_once.several import (
    Several,
    begins_first,
    morning_names,
    returns_first,
    second_machine,
    second_policy_later,
)
from tests.nights.faults.cron import evening_of, patience_of, policies_in_the_morning
from tests.nights.faults.event import GIVEN_UP, PEOPLE, Event
from tests.nights.faults.schedule import ENDS, HANGS, schedule_of
from tests.nights.measuring.reach import Reach
from tests.nights.measuring.stages import LOGIN, Staged
from tests.nights.playing.place import NightPlace, NightStore, Turnstile
from tests.nights.world.direct import DirectVcenter
from tests.nights.world.showing import Showing
from tests.nights.world.worlds import EVENING, LOCK, Site, policies_read_quickly, site_of

MORNING: Final = EVENING + timedelta(hours=9)
DEADLINE: Final = EVENING + timedelta(hours=11)
CRON: Final = timedelta(minutes=10)
MEMORY: Final = Path("/dev/shm")
"""Where a file is no work for a disk: a night's locks are taken hundreds of times."""
QUIET: Final = 2
"""After so many mornings in a row with nothing to do the next ones would have nothing to do either."""
RESUMES: Final = 5
OVERRIDE: Final = "ReconfigureComputeResource_Task"
PLAN_STEPS: Final = 400
"""What planning a night costs, in steps of the executor: 2 s beside 5 ms."""
ZERO: Final = timedelta()
TAKES: Final = re.compile(r"before (SuspendVm |PowerOnVm (?!desktop-)|ShutDownGuest desktop-)")
SEEN_BY: Final = timedelta(minutes=2)
"""Somebody set a clock: a look that is a minute old, and one that took its time, may not have seen it."""


class Killed(BaseException):
    """What `kill -9` is to a test: nothing of the engine may catch it."""


@dataclass
class Played:
    """A night that is over, for the checkers."""

    seed: int
    site: Site
    world: World
    events: tuple[Event, ...]
    running: frozenset[str]
    """Desktops (refs) that ran in the evening."""
    names: dict[str, str]
    uuids: dict[str, str]
    """Instance uuid of each VM (ref) in the evening."""
    takeable: frozenset[str] = frozenset()
    """Desktops (refs) that the policy and their owner both allow to take."""
    cut_sessions: list[tuple[str, datetime, datetime]] = field(default_factory=list)
    """(desktop, when its user sat down or began to work from afar, when we suspended it)."""
    stood: list[tuple[datetime, datetime]] = field(default_factory=list)
    """From when to when its machine was paused, or a process hung that went on."""
    ended: int = 0
    """How many processes hung until a return ended them."""
    in_spite: list[tuple[str, datetime, datetime]] = field(default_factory=list)
    """(desktop, when it was opted out or its owner's mark was taken off, when we suspended it)."""
    sent_by: dict[str, tuple[int, str, int]] = field(default_factory=dict)
    """op id -> number and half of the run that sent it, and how long the ledger was; -1 is the other machine's run."""
    asks: list[tuple[str, datetime, int]] = field(default_factory=list)
    """(op id, when, length of the ledger then) of each request that was sent, in order; the lease's among them."""
    refused: dict[int, str] = field(default_factory=dict)
    """By its number among `asks`, the type of the fault that vCenter answered a request with."""
    strays: frozenset[str] = frozenset()
    """VMs (refs) with the marker of another machine's night, in folders that no policy names."""
    left_over: frozenset[str] = frozenset()
    """VMs (refs) that carried the policy's marker in the evening: a night of which this machine's journal knows nothing
    has taken them, or was to."""
    unsuspendable: dict[str, datetime] = field(default_factory=dict)
    """Desktops (refs) that were given a device with which a VM cannot be suspended, and when."""
    foretold: list[str] = field(default_factory=list)
    """Where what a run did is not what somebody was shown just before that it would do."""
    asked: dict[str, datetime] = field(default_factory=dict)
    """op id -> when the engine sent it last, by the world's clock: what its journal says of that is not asked."""
    calls: list[tuple[str, str, datetime]] = field(default_factory=list)
    """(half, what it ended as, when) of each run; the half of the other machine, or under the other policy, says so."""
    machine_of: list[int] = field(default_factory=list)
    """Of each run, the number of its machine: 1 is the other one."""
    doubtful: frozenset[str] = frozenset()
    """VMs (refs) of which an effect may have happened, for all that anybody could find out."""
    last: Report | None = None
    """The last morning's report."""
    last_elsewhere: Report | None = None
    """The last morning's report of the other machine."""
    second: int = 0
    """Effects of the morning after the last one: none may be left."""
    told: list[tuple[Report, int]] = field(default_factory=list)
    """Each report, with the length of the ledger when it was made."""
    told_elsewhere: list[Report] = field(default_factory=list)
    """Those of them that the other machine made."""
    kept: list[tuple[Record, int]] = field(default_factory=list)
    """Each record of the journals, with the length of the ledger when it was durable."""
    kept_on: dict[int, int] = field(default_factory=dict)
    """By identity of a record, the number of the machine that keeps it; the one that acts while another is paused is
    2."""
    most_on_host: int = 0
    left_behind: frozenset[str] = frozenset()
    """Desktops (refs) still suspended by us in the end, that the simulator itself would let resume."""
    struck: dict[str, int] = field(default_factory=dict)
    most_in_flight: int = 0
    sessions: int = 0
    """The most that a run left behind which was not killed."""
    most_sessions: int = 0
    """That one run had at once."""
    busy: frozenset[str] = frozenset()
    """Desktops (refs) that were used in the evening, and are all night."""
    given_up: frozenset[str] = frozenset()
    """VMs (refs) that a person gave up."""
    asked_for: frozenset[str] = frozenset()
    """VMs (refs) that a person asked for by name."""
    beside: list[Beside] = field(default_factory=list)
    """Each run that was begun while another was under way."""
    lost_journal: bool = False
    """Whether the journal of the first machine was lost in the night."""
    on_a_wrong_clock: list[tuple[str, datetime]] = field(default_factory=list)
    """What was taken when the clocks had been apart for longer than a look may be old."""
    reached: frozenset[tuple[str, str]] = frozenset()
    """Each fault with each stage of the engine, and each whereabouts of a VM, in which it took effect."""

    def is_lock_vm(self, moid: str) -> bool:
        """Whether it is the lock VM, whatever it is called by now; one that came in the night, and may be gone again,
        was once called so."""
        if moid in self.names:
            return self.names[moid] == LOCK
        vm = self.world.find(moid)
        if vm is not None and not isinstance(vm, VirtualMachine):
            return False
        called_so = vm is not None and vm.name == LOCK
        return called_so or any(entry.moid == moid and entry.name == LOCK for entry in self.world.ledger)


class Nightly:
    """The night of a seed, or of a seed's world under other events."""

    def __init__(self, seed: int, events: Sequence[Event] | None = None, site: Site | None = None) -> None:
        self.site = site or site_of(seed)
        self.world = world = self.site.world(seed)
        vms = list(world.by_type("VirtualMachine"))
        desktops = [vm.name for vm in vms if vm.name.startswith("desktop-")]
        ml = [vm.name for vm in vms if vm.name.startswith("ml-")]
        hosts = [host.name for host in world.by_type("HostSystem")]
        chosen = schedule_of(seed, desktops, ml, hosts) if events is None else tuple(events)
        self.played = Played(
            seed,
            self.site,
            world,
            chosen,
            running=frozenset(vm.moid for vm in vms if vm.state.power is Power.ON and vm.name in set(desktops)),
            names={vm.moid: vm.name for vm in vms},
            uuids={vm.moid: vm.state.instance_uuid for vm in vms},
            takeable=frozenset(vm.moid for vm in vms if vm.name.startswith("desktop-") and self._both_keys(vm)),
            busy=frozenset(vm.moid for vm in vms if vm.state.console_connections or self._works(vm)),
            left_over=frozenset(vm.moid for vm in vms if self._is_marked(vm) and self._is_in_a_pools_folder(vm)),
            strays=frozenset(vm.moid for vm in vms if self._is_marked(vm) and not self._is_in_a_pools_folder(vm)),
        )
        self._seated: dict[str, datetime] = {}
        self._withdrawn: dict[str, datetime] = {}
        self._files = self._named_in_the_morning(seed)
        self._in_the_morning = self._files[0]
        self._second = second_machine(seed) if self.site.several in (Several.APART, Several.TWINS) else None
        self._machine = 0
        """The number of the machine that is at work."""
        self._turnstile = Turnstile() if any(event.fault == HANGS for event in chosen) else None
        self._run = 0
        """The number of the run that is at work."""
        self._ends = [event for event in chosen if event.fault in ENDS and not event.state]
        self._full = next((event for event in chosen if event.fault == "K3" and not event.state), None)
        self._full_since: datetime | None = None
        self._slow = next((event for event in chosen if event.fault == "K10" and not event.state), None)
        self._ends += [self._slow] if self._slow is not None and self._slow.point else []
        self._apart_since: datetime | None = None
        self._locks: Path | None = None
        self._states = Path("/nowhere")
        self._points = 0
        self._of_others: frozenset[str] = frozenset()
        """Keys of the sessions that the process at work did not open: older ones, and those of another process."""
        self._running = ""
        """The half that the process at work is of."""
        self.points: dict[str, int] = {}
        """By half (`rotate resume` too), of its run that had the most: before and after each append and each effect."""
        self._certificate = 1
        world.change_certificate = self._another_certificate
        self._reach = Reach(world, self.site.policy, chosen, self._fire)
        self._store = NightStore(self._boundary, lambda: len(world.ledger), self._disk_is_full, self._reach.stages)
        self._reach.journal = Journal(self._store, "", world.clock.now)
        self._other_store = NightStore(self._boundary, lambda: len(world.ledger), lambda: False, self._reach.stages)
        """The journal of the second machine."""
        self._lost_stores: list[NightStore] = []
        self._armed: list[tuple[str, Any]] = []
        self._people = [event for event in chosen if event.fault in PEOPLE]
        self._showing = Showing(world)
        self._machines = Machines(self.site, world)

    def play(self) -> Played:
        """The whole night, in one thread that holds the world's lock all the time."""
        with self.world.lock, policies_read_quickly(), leases_of_a_seed(self.played.seed):
            return self._play()

    def _connect(self, boundary: Callable[[str], None]) -> Vcenter:
        """A new process's way to vCenter. Raises NotConnected."""
        with self._reach.stages.within(LOGIN):
            vcenter = DirectVcenter(
                self.world, boundary, lambda: self._certificate == 1, self._showing, self._asked, self._refused
            )
        return cast(Vcenter, Staged(vcenter, self._reach.stages))

    def _refused(self, fault: str) -> None:
        self.played.refused[len(self.played.asks) - 1] = fault

    def _asked(self, op_id: str) -> None:
        self.played.asked[op_id] = self.world.clock.now()
        self.played.asks.append((op_id, self.world.clock.now(), len(self.world.ledger)))
        run = (-1, RunKind.DAY.value) if self._machines.other_acts else (self._run, self._running)
        self.played.sent_by[op_id] = *run, len(self.world.ledger)

    def _play(self) -> Played:
        locking = any(event.fault == "K5" for event in self.played.events)
        if not locking and self.site.policy.lock_vm is None:
            return self._played()
        with TemporaryDirectory(prefix="gpuops-night-", dir=MEMORY if MEMORY.is_dir() else None) as locks:
            self._states = Path(locks)
            self._locks = self._states if locking else None
            return self._played()

    def _played(self) -> Played:
        with self.world.lock:
            self._let_happen()
        for half, moment in self._evening():
            other_first = self._second is not None and half is RunKind.NIGHT and begins_first(self.played.seed)
            if self._second is not None and other_first:
                self._other_night(moment)
                moment += self._second.later
            self._wait_until(moment)
            self._to_its_end(half)
            if half is RunKind.NIGHT and not other_first:
                self._other_night(moment + (self._second.later if self._second is not None else ZERO))
        self._wait_until(MORNING)
        quiet = 0
        while self.world.clock.now() < DEADLINE and quiet < QUIET:
            self._let_people_act()
            quiet = quiet + 1 if self._mornings() else 0
            self._wait_until(self.world.clock.now() + CRON)
        self._wait_until(DEADLINE)
        with self.world.lock:
            self._calm()
        self._mornings()
        self._wait_until(self.world.clock.now() + LATE)  # what was lost may come until then, and is waited for
        self._mornings()
        before = len(self.world.ledger)
        self._mornings()
        self.played.second = sum(
            1
            for entry in list(self.world.ledger)[before:]
            if entry.operation_id and not self.played.is_lock_vm(entry.moid)
        )
        self._tally()
        return self.played

    def _evening(self) -> Iterable[tuple[RunKind, datetime]]:
        return evening_of(self.played.seed)

    def _consents(self, report: Report) -> None:
        """Who is asked agrees, to something."""
        if not report.plan.steps:
            self.played.foretold.append(f"{report.request} asks to agree, and would do nothing")

    def lose_journal(self) -> None:
        """Its file is gone; what it told stays known to the checkers."""
        self.played.lost_journal = True
        self._lost_stores.append(self._store)
        self._store = NightStore(self._boundary, lambda: len(self.world.ledger), self._disk_is_full, self._reach.stages)

    def _other_night(self, moment: datetime) -> None:
        """The night of the other policy, or of the other machine."""
        if self._second is not None:
            self._wait_until(moment)
            with self._on_the_other_machine():
                self._to_its_end(RunKind.NIGHT)
        elif self.site.several is Several.POLICIES:
            self._wait_until(moment + second_policy_later(self.played.seed))
            self._to_its_end(RunKind.NIGHT, self.site.policies[1])

    def _mornings(self) -> bool:
        """A return on each machine; whether none of them has anything left to do."""
        if self._second is None:
            return self._morning()
        first = returns_first(self.played.seed)
        return all([self._morning(other=first), self._morning(other=not first)])

    def _morning(self, *, other: bool = False) -> bool:
        if not other:
            self._half(RunKind.DAY)
            return self._nothing_to_do(self.played.last)
        with self._on_the_other_machine():
            self._half(RunKind.DAY)
            return self._nothing_to_do(self.played.last_elsewhere)

    @contextmanager
    def _on_the_other_machine(self) -> Iterator[None]:
        self._machine = 1
        try:
            yield
        finally:
            self._machine = 0

    def _to_its_end(self, half: RunKind, policy: Policy | None = None) -> None:
        """A half, and `rotate resume` while it is cut off."""
        self._half(half, policy)
        left_to_cron = half is RunKind.DAY and any(event.target == half for event in self.played.events)
        for _ in range(RESUMES):
            if left_to_cron or self.played.calls[-1][1] in ("done", "refused"):
                break
            self._wait_until(self.world.clock.now() + patience_of(self.played.seed))
            self._half(None)

    def _nothing_to_do(self, report: Report | None) -> bool:
        return (
            self.played.calls[-1][1] == "done"
            and report is not None
            and not report.plan.steps
            and report.exit_code == 0
        )

    def _works(self, vm: VirtualMachine) -> bool:
        return vm.state.power is Power.ON and vm.state.cpu_usage_mhz >= self.site.policy.pools[0].idle.cpu_below_mhz

    def _marks(self, vm: VirtualMachine) -> dict[str, str]:
        fields = self.world.custom_fields.fields
        return {fields[key].name: value for key, value in vm.state.attributes.items()}

    def _is_marked(self, vm: VirtualMachine) -> bool:
        return self.site.policy.marker in self._marks(vm)

    def _is_in_a_pools_folder(self, vm: VirtualMachine) -> bool:
        return self.world.get(vm.state.folder).display_name in {pool.select.folder for pool in self.site.pools}

    def _both_keys(self, vm: VirtualMachine) -> bool:
        marks = self._marks(vm)
        owned = self.site.policy.pools[0].owner is None or marks.get("gpuops.owner") == "office"
        return owned and "gpuops.opt-out" not in marks

    # --- one process --------------------------------------------------------------------------------------------

    def _named_in_the_morning(self, seed: int) -> Sequence[Policy | None]:
        """The policies that the first machine's returns name in turn; None = such a one goes by its journal alone."""
        if self.site.several is not Several.POLICIES:
            return policies_in_the_morning(seed, self.site.policies[0])
        named = morning_names(seed)
        return [self.site.policies[named] if named is not None else None]

    def _said(self, half: RunKind, policy: Policy | None) -> Policy | None:
        """The policy that a run names: `policy`, or that of its machine."""
        if self._machine:
            return self.site.policies[-1]
        if half is not RunKind.DAY:
            return policy or self.site.policies[0]
        said = self._in_the_morning
        if said in self._files:
            self._in_the_morning = self._files[(self._files.index(said) + 1) % len(self._files)]
        return said

    def _half(self, half: RunKind | None, policy: Policy | None = None) -> None:
        """One process: a half of the rotation, or with None what was cut off."""

        def act(place: NightPlace) -> Report:
            if half is None:
                return resume(place, apply=True, consent=self._consents)
            return rotate(half, self._said(half, policy), place, apply=True, consent=self._consents)

        told = " on the other machine" if self._machine else " of the other policy" if policy is not None else ""
        report = self._process(half.value if half else "rotate resume", act, told)
        if report is None or half is not RunKind.DAY:
            return
        if self._machine:
            self.played.last_elsewhere = report
        else:
            self.played.last = report

    def _let_people_act(self) -> None:
        """P1, P2: commands of people about one VM, whose time has come."""
        passed_s = (self.world.clock.now() - EVENING).total_seconds()
        for event in [event for event in self._people if event.at_s <= passed_s]:
            self._people.remove(event)
            if event.fault == GIVEN_UP:
                self._process("rotate give-up", partial(self._give_up, event.target))
            else:
                self._process(RunKind.RESTORE.value, partial(self._ask_for, event.target))

    def _give_up(self, name: str, place: NightPlace) -> None:
        given = abandon_vm(place, name, None, apply=True, consent=lambda means: None)
        self.played.given_up |= {thing.ref for thing in given.things}

    def _ask_for(self, name: str, place: NightPlace) -> Report:
        meant = (vm.moid for vm in self.world.by_type("VirtualMachine") if vm.name == name)
        self.played.asked_for |= set(meant)
        return restore(self.site.policy, place, (name,), from_markers=False, apply=True, consent=agreed)

    def _process(self, name: str, act: Callable[[NightPlace], Report | None], told: str = "") -> Report | None:
        """One process from its login to its end; what it reports, if it comes to that. `told`: how its call is told
        apart from others of that name."""
        self._points, self._of_others = 0, self._open_sessions()
        self._run = len(self.played.machine_of)
        self.played.machine_of.append(self._machine)
        self._running = name
        vcenter: Any = None
        report: Report | None = None
        try:
            vcenter = self._connect(self._boundary)
            report = act(self._place(vcenter))
            ended = "done" if report is None or report.exit_code in (0, 4) else "refused"
            if report is not None:
                self.played.told.append((report, len(self.world.ledger)))
                if self._machine:
                    self.played.told_elsewhere.append(report)
        except Killed:
            vcenter = None  # a killed process does not log out
            ended = "killed"
        except KeyboardInterrupt:
            ended = "interrupted"
        except MemoryError:
            ended = "out of memory"
        except GpuopsError as error:
            ended = f"{type(error).__name__}: {error.message}"
        finally:
            if vcenter is not None:
                vcenter.close()
        if ended != "killed":
            self.played.sessions = max(self.played.sessions, self._sessions())
        self.played.calls.append((name + told, ended, self.world.clock.now()))
        return report

    def _place(self, vcenter: Vcenter) -> NightPlace:
        now: Callable[[], datetime] = self.world.clock.now
        if self._machine and self._second is not None:
            clock = self._second.clock(now, EVENING)
            locks = self._states / "locks of the other" if self._locks is not None else None
            place = NightPlace(vcenter, self._states / "second", clock, store=self._other_store, locks=locks)
        else:
            place = NightPlace(
                vcenter, self._states / "own", now, store=self._store, locks=self._locks, turnstile=self._turnstile
            )
        place.same_time = True
        place.pause = self._pause
        place.passed_s = lambda: (self.world.clock.now() - EVENING).total_seconds() - self._machines.stood_s
        return place

    def _pause(self, seconds: float) -> None:
        """A return waits for vCenter."""
        with self.world.lock:
            self.world.clock.advance(seconds)

    def _beside(self) -> None:
        """Another process on this machine, while one is under way."""
        known, before = frozenset(self.played.asked), len(self.world.ledger)
        with self._another_process():
            try:
                vcenter: Any = self._connect(lambda what: None)
            except GpuopsError:
                return
            place, ended = self._place(vcenter), None
            try:
                with patch.object(lock, "PAUSE_S", 0.0):
                    rotate(RunKind.NIGHT, self.site.policies[0], place, apply=True, consent=agreed)
            except GpuopsError as error:
                ended = error
            finally:
                vcenter.close()
        done = {entry.operation_id for entry in list(self.world.ledger)[before:] if entry.operation_id}
        sent = (done | self.played.asked.keys()) - known  # what the first one had in flight may end meanwhile
        self.played.beside.append(Beside(ended, place.admission, len(sent)))

    def _disk_is_full(self) -> bool:
        """K3: from so many appends on, for so long."""
        full = self._full
        if full is None or len(self._store.lengths) < full.point:
            return False
        now = self.world.clock.now()
        self._full_since = self._full_since or now
        if now >= self._full_since + timedelta(seconds=full.at_s):
            return False
        self.played.struck["K3"] = self.played.struck.get("K3", 0) + 1
        self._reach.reached("K3")
        return True

    def _boundary(self, what: str) -> None:
        self._points += 1
        if self._slow is not None:
            self._take_time(self._slow.at_s)
        self._compare_clocks(what)
        self.played.most_sessions = max(self.played.most_sessions, self._sessions())
        self.points[self._running] = max(self.points.get(self._running, 0), self._points)
        if what.startswith("after ") and not what.endswith("append"):
            self._count_in_flight()
        if what.startswith("after SuspendVm "):
            self._cut(what.removeprefix("after SuspendVm "))
        due = self._due() if self._ends else None
        if due is not None and self._is_met(due, what):
            self._ends.remove(due)
            self._reach.reached(due.fault)
            self._meet(due, what)

    def _take_time(self, pause_s: float) -> None:
        """K10: a processor so slow that each step costs time of its own, and the plan before the first a lot of it."""
        with self.world.lock:
            self.world.clock.advance(pause_s * (PLAN_STEPS if self._points == 1 else 1))
        self.played.struck["K10"] = self.played.struck.get("K10", 0) + (self._points == 1)

    def _compare_clocks(self, what: str) -> None:
        """What takes something while nobody can tell the time; in a look or two nobody can have seen that."""
        now = self.world.clock.now()
        ahead = self._second.clock(self.world.clock.now, EVENING)() - now if self._machine and self._second else ZERO
        if abs(self.world.skew - ahead) <= MOST_CLOCK_DIFFERENCE:
            self._apart_since = None
            return
        self._apart_since = self._apart_since or now
        takes = TAKES.match(what) is not None and self._running != RunKind.DAY
        if takes and now - self._apart_since > SEEN_BY:
            self.played.on_a_wrong_clock.append((what, now))

    def _due(self) -> Event | None:
        """What this process is to meet next: what is meant for its half alone comes first."""
        ends = sorted(self._ends, key=lambda event: not event.target)
        return next((event for event in ends if event.target in ("", self._running)), None)

    def _is_met(self, due: Event, what: str) -> bool:
        if due.fault != HANGS:
            return self._points == due.point
        # between its last check and its request it stands where K6 stops its machine
        checked = what.startswith("before ") and not what.endswith("append")
        return self._points >= due.point and not checked and not self._machine

    def _meet(self, event: Event, what: str) -> None:
        """What befalls the process itself, or its machine."""
        match event.fault:
            case "K1":
                raise Killed(what)
            case "K2":
                raise KeyboardInterrupt
            case "K10":
                raise MemoryError(what)
            case "K6":
                self._stands_still(event)
            case "K12":
                self._hangs(event, what)
            case "K11":
                self._machines.revert()
                self.played.struck["K11"] = self.played.struck.get("K11", 0) + 1
            case _:
                self._beside()

    def _stands_still(self, event: Event) -> None:
        connect, since = partial(self._connect, lambda what: None), self.world.clock.now()
        with self._another_process():
            self._machines.pause(event.at_s, self._states / "other", connect, self._pause)
        self.played.stood.append((since, self.world.clock.now()))
        self.played.struck["K6"] = self.played.struck.get("K6", 0) + 1

    def _hangs(self, event: Event, what: str) -> None:
        """The process stops here for so long, and goes on; cron begins returns meanwhile, and one may end it."""
        turnstile = self._turnstile
        if turnstile is None or self._machine:
            return
        now, hung, since = self.world.clock.now, turnstile.held, self.world.clock.now()
        was = self._points, self._of_others, self._running, self._run
        goes_on, others = since + timedelta(seconds=event.at_s), self._open_sessions()
        while turnstile.held is hung and (at := max(now() + CRON, MORNING)) < goes_on:
            self._wait_until(at)
            with patch.object(rotation_lock, "end_hung_run", self._ended):
                self._half(RunKind.DAY)
        self._points, self._of_others, self._running, self._run = was
        self._of_others |= self._open_sessions() - others
        self.played.struck[HANGS] = self.played.struck.get(HANGS, 0) + 1
        if turnstile.held is not hung:
            self.played.ended += 1
            raise Killed(what)
        self._wait_until(goes_on)
        self.played.stood.append((since, now()))

    def _ended(self, holder: LockHolder, site: Place) -> bool:
        """As gpuops ends a process of its machine that hangs, by the moment that it has for that."""
        at = ends_at(holder)
        if self._turnstile is None or at is None or site.clock() < at:
            return False
        self._pause(GRACE_S)
        self._turnstile.held = None
        return True

    def _count_in_flight(self) -> None:
        """Tasks of ours, but those which the engine has given up, hung or waiting for somebody's answer, also when that
        has been given since, or of a VM that somebody has removed: they must not keep desktops from returning."""
        given_up = self.world.clock.now() - timedelta(seconds=HUNG_S)
        unfinished: list[Any] = self.world.tasks.unfinished()
        if not unfinished:
            return
        ours = [
            task
            for task in unfinished
            if task.call.operation_id
            and task.queued_at > given_up
            and not task.asked
            and not self._is_about_a_removed_vm(task)
            and not self.played.is_lock_vm(task.entity.moid)
        ]
        self.played.most_in_flight = max(self.played.most_in_flight, len(ours))
        elsewhere = ("RelocateVM_Task", OVERRIDE)
        on_host = Counter(task.entity.state.host for task in ours if task.name not in elsewhere)
        self.played.most_on_host = max([self.played.most_on_host, *on_host.values()])

    def _is_about_a_removed_vm(self, task: Any) -> bool:
        """Whether somebody has removed the VM of a task; of a cluster's, the VM whose DRS it sets, by the intent."""
        if task.name != OVERRIDE:
            return not getattr(task.entity, "is_registered", True)
        for record in (*self._store.records, *self._other_store.records, *self._machines.store.records):
            if record.kind is Kind.INTENT and record.body["op"] == task.call.operation_id:
                vm: Any = self.world.find(next(iter(record.body["step"].values()))["vm"])
                return vm is None or not vm.is_registered
        return False

    def _cut(self, name: str) -> None:
        vm = next((vm for vm in self.world.by_type("VirtualMachine") if vm.name == name), None)
        if vm is None or self.world.tasks.running(vm) is None:
            return
        for since, found in ((self._seated, self.played.cut_sessions), (self._withdrawn, self.played.in_spite)):
            if vm.moid in since:
                found.append((vm.moid, since[vm.moid], self.world.clock.now()))

    # --- the world beside it ------------------------------------------------------------------------------------

    def _let_happen(self) -> None:
        for event in self.played.events:
            if event.state:
                continue
            for rule in event.rules:
                before = len(self.world.injector.struck())
                self.world.injector.add(rule)
                self._armed.append((event.fault, before))
            if event.fault.startswith("H"):
                self._user(event)

    def _fire(self, event: Event, vm: VirtualMachine | None) -> None:
        """What was aimed at a stage or at whereabouts strikes now, and this VM if it strikes one."""
        if event.fault == "K5" and not self._points:
            return  # this run does not hold its lock yet: another one may have it
        if event.fault == HANGS and self._reach.stages.submits:
            # just after the request: between the last check and the request it would stand where K6 stops its machine
            self._ends.append(replace(event, state="", point=self._points + 1, target=self._running))
        elif event.fault in (*ENDS, "K10"):
            self._reach.reached(event.fault)
            self._meet(event, "aimed")
        elif event.fault == "K3":
            self._full, self._full_since = replace(event, point=0), None
        elif vm is not None and vm.name.startswith("desktop-"):
            self._strike(event, vm)

    def _user(self, event: Event) -> None:
        vm = next((vm for vm in self.world.by_type("VirtualMachine") if vm.name == event.target), None)
        if vm is not None:
            again = 5 if event.fault == "H3" else 1
            for number in range(again):
                self.world.clock.schedule(event.at_s + 120 * number, partial(self._strike, event, vm))

    def _sits_down(self, vm: VirtualMachine) -> bool:
        if vm.state.power is not Power.ON or not vm.is_registered:
            return False
        vm.state.console_connections = 1
        vm.touch("runtime", "summary")
        self._seated[vm.moid] = self.world.clock.now()
        return True

    def _works_from_afar(self, vm: VirtualMachine) -> bool:
        """By remote desktop: CPU, and no console."""
        if vm.state.power is not Power.ON or not vm.is_registered:
            return False
        use_desktop(vm, Rule(Effect.HAPPEN, happening="vm.used"))
        self._seated[vm.moid] = self.world.clock.now()
        return True

    def _withdraws(self, vm: VirtualMachine, event: Event) -> bool:
        """Whoever owns the desktop does not want it taken any more."""
        if not vm.is_registered or (event.fault == "H6" and self.site.policy.pools[0].owner is None):
            return False
        call = somebody(self.world, "SetField")
        name, value = ("gpuops.opt-out", "yes") if event.fault == "H5" else ("gpuops.owner", "")
        key = self.world.custom_fields.define(name)
        self.world.get("CustomFieldsManager").SetField(call, vim.VirtualMachine(vm.moid), key, value)
        self._withdrawn[vm.moid] = self.world.clock.now()
        return True

    def _strike(self, event: Event, vm: VirtualMachine) -> None:
        self._reach.look()
        match event.fault:
            case "H1":
                happened = self._sits_down(vm)
            case "H4":
                happened = self._works_from_afar(vm)
            case "H5" | "H6":
                happened = self._withdraws(vm, event)
            case _:
                happened = wakes(vm)
        if happened:
            self._reach.reached(event.fault, (vm,))
            self.played.struck[event.fault] = self.played.struck.get(event.fault, 0) + 1

    def _another_certificate(self) -> None:
        self._certificate += 1

    def _wait_until(self, moment: datetime) -> None:
        with self.world.lock:
            if self.world.clock.now() < moment:
                self.world.clock.advance_to(moment)

    def _calm(self) -> None:
        """Nothing goes wrong any more: what is broken is repaired, what is lost stays lost."""
        self._reach.stop()
        self.played.reached = self._reach.pairs
        for fault, index in self._armed:
            count = self.world.injector.struck()[index][1]
            self.played.struck[fault] = self.played.struck.get(fault, 0) + count
        self.world.injector.clear()
        self._certificate, self._full = 1, None
        self._ends.clear()
        self.world.down_until, self.world.skew = None, timedelta()
        for host in self.world.by_type("HostSystem"):
            host.state.connection, host.state.in_maintenance = "connected", False
            host.runtime_changed()
        for store in self.world.by_type("Datastore"):
            store.accessible, store.free_mib = True, max(store.free_mib, 1 << 20)
        for vm in self.world.by_type("VirtualMachine"):
            self.world.fragments.thaw(vm.moid)
            vm.connection = vm.state.question = None
            vm.touch("runtime", "summary")
        self.world.clock.advance(2 * 3600)
        hung = self.world.clock.now() - timedelta(hours=1)
        for task in self.world.tasks.unfinished():
            if task.queued_at < hung and not task.ended:  # the one before it may have ended it
                task.cancelable = True
                self.world.tasks.cancel(task)

    def _tally(self) -> None:
        played = self.played
        for fault, ended in (("K1", "killed"), ("K2", "interrupted")):
            if any(event.fault == fault for event in played.events):
                played.struck[fault] = sum(1 for call in played.calls if call[1] == ended)
        if played.beside:
            played.struck["K5"] = len(played.beside)
        played.left_behind = frozenset(
            vm.moid
            for vm in self.world.by_type("VirtualMachine")
            if played.uuids.get(vm.moid) == vm.state.instance_uuid and _may_resume(vm)
        )
        steps: dict[str, str] = {}
        states: dict[str, str] = {}
        stores = [(self._store, 0), (self._other_store, 1), (self._machines.store, 2)]
        stores += [(store, 0) for store in self._lost_stores]
        every = [(number, list(zip(store.records, store.lengths, strict=True))) for store, number in stores]
        played.kept = sorted((each for _, kept in every for each in kept), key=lambda each: each[1])
        played.kept_on = {id(record): number for number, kept in every for record, _ in kept}
        by_people = {event.target for event in played.events if event.fault == GIVEN_UP}
        for record, _ in played.kept:
            if record.kind is Kind.GIVEN_UP and record.body.get("name") in by_people:
                played.given_up |= {record.body["ref"]}  # also where the process ended just after it had written that
            elif record.kind is Kind.INTENT:
                steps[record.body["op"]] = next(iter(record.body["step"].values()))["vm"]
            elif record.kind is Kind.SETTLED:
                states[record.body["op"]] = record.body["state"]
        played.doubtful = frozenset(vm for op, vm in steps.items() if states.get(op) != IntentState.FAILED)

    @contextmanager
    def _another_process(self) -> Iterator[None]:
        """The process at work stands still, and another one acts: sessions opened meanwhile are not its own."""
        before = self._open_sessions()
        try:
            yield
        finally:
            self._of_others |= self._open_sessions() - before

    def _open_sessions(self) -> frozenset[str]:
        return frozenset(session.key for session in self.world.sessions)

    def _sessions(self) -> int:
        """How many the process at work has."""
        idle_since = self.world.clock.now() - self.world.sessions.idle_timeout
        own = (session for session in self.world.sessions if session.key not in self._of_others)
        return sum(1 for session in own if session.active_at > idle_since)


def _may_resume(vm: VirtualMachine) -> bool:
    """Whether it is suspended, and the simulator's own admission lets it run on its host."""
    if vm.state.power is not Power.SUSPENDED or not vm.is_registered or vm.world.tasks.running(vm):
        return False
    try:
        place(vm, vm.host())
    except vmodl.MethodFault:
        return False
    return True


def wakes(vm: VirtualMachine) -> bool:
    if vm.state.power is not Power.SUSPENDED or not vm.is_registered or vm.world.tasks.running(vm):
        return False
    power.power_on(vm, somebody(vm.world, "PowerOnVM_Task"), None)
    return True


def play(seed: int, events: Sequence[Event] | None = None) -> Played:
    """The night of a seed."""
    return Nightly(seed, events).play()
