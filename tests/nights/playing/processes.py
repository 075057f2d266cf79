"""Processes of a night, one at a time from login to end, and what befalls each before or after what it does: it is
killed or hangs, its machine stands still or is reverted, its disk is full, another process acts meanwhile."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, cast
from unittest.mock import patch

from gpuops.errors import GpuopsError
from gpuops.execute.journal.journal import Journal
from gpuops.execute.journal.record import Kind
from gpuops.execute.rotation import rotation_lock
from gpuops.execute.rotation.rotation import resume, rotate
from gpuops.execute.rotation.rotation_lock import GRACE_S
from gpuops.execute.runs import RunKind
from gpuops.execute.site import Site as Place
from gpuops.execute.site import agreed
from gpuops.execute.site.ports import Vcenter
from gpuops.execute.state import lock
from gpuops.execute.steps.step_queue import HUNG_S
from gpuops.model.nights.night_record import LockHolder
from gpuops.model.nights.rotation_policy import Policy
from gpuops.plan.core.plan import Report
from gpuops.plan.rotation.nights.night_refusals import MOST_CLOCK_DIFFERENCE
from gpuops.plan.rotation.returns.return_time import ends_at
from gpuops.sim.objects.virtual_machine import VirtualMachine
from tests.harness.killing import Killed
from tests.nights.at_once.machines import Beside, Machines
from tests.nights.at_once.several import Several, morning_names, second_machine
from tests.nights.faults.cron import CRON, MORNING, policies_in_the_morning
from tests.nights.faults.event import Event
from tests.nights.faults.schedule import ENDS, HANGS, OTHER_LOGIN
from tests.nights.measuring.stages import LOGIN, Staged
from tests.nights.playing.night_world import NightWorld
from tests.nights.playing.place import NightPlace, NightStore, Turnstile
from tests.nights.playing.played import OVERRIDE
from tests.nights.world.direct import DirectVcenter
from tests.nights.world.session import USER
from tests.nights.world.showing import Showing
from tests.nights.world.worlds import EVENING, Site

PLAN_STEPS: Final = 400
"""What planning a night costs, in steps of the executor: 2 s beside 5 ms."""
ZERO: Final = timedelta()
TAKES: Final = re.compile(r"before (SuspendVm |PowerOnVm (?!desktop-)|ShutDownGuest desktop-)")
SEEN_BY: Final = timedelta(minutes=2)
"""Somebody set a clock: a look that is a minute old, and one that took its time, may not have seen it."""


class NightProcesses(NightWorld):
    """The world of a seed's night, and the processes that rotate in it."""

    def __init__(self, seed: int, events: Sequence[Event] | None = None, site: Site | None = None) -> None:
        super().__init__(seed, events, site)
        world, chosen = self.world, self.played.events
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
        self._store = NightStore(self._boundary, lambda: len(world.ledger), self._disk_is_full, self._reach.stages)
        self._reach.journal = Journal(self._store, "", world.clock.now)
        self._other_store = NightStore(self._boundary, lambda: len(world.ledger), lambda: False, self._reach.stages)
        """The journal of the second machine."""
        self._lost_stores: list[NightStore] = []
        self._showing = Showing(world)
        self._machines = Machines(self.site, world)

    def _connect(self, boundary: Callable[[str], None]) -> Vcenter:
        """A new process's way to vCenter. Raises NotConnected."""
        with self._reach.stages.within(LOGIN):
            vcenter = DirectVcenter(
                self.world,
                boundary,
                self._trusts(),
                self._showing,
                self._note_request,
                self._note_refusal,
                self._login_name(),
            )
        return cast(Vcenter, Staged(vcenter, self._reach.stages))

    def _trusts(self) -> Callable[[], bool]:
        """What tells a new process whether it is still the vCenter that it trusts."""
        return lambda: self._certificate == 1

    def _login_name(self) -> str:
        """K13: from this process on it is another one."""
        changed = any(event.fault == OTHER_LOGIN and self._run >= event.point for event in self.played.events)
        self.played.struck[OTHER_LOGIN] = self.played.struck.get(OTHER_LOGIN, 0) + changed
        return f"{USER}-2" if changed else USER

    def _note_refusal(self, fault: str) -> None:
        self.played.refused[len(self.played.asks) - 1] = fault

    def _note_request(self, op_id: str) -> None:
        self.played.asked[op_id] = self.world.clock.now()
        self.played.asks.append((op_id, self.world.clock.now(), len(self.world.ledger)))
        run = (-1, RunKind.DAY.value) if self._machines.other_acts else (self._run, self._running)
        self.played.sent_by[op_id] = *run, len(self.world.ledger)

    def lose_journal(self) -> None:
        """Its file is gone; what it told stays known to the checkers."""
        self.played.lost_journal = True
        self._lost_stores.append(self._store)
        self._store = NightStore(self._boundary, lambda: len(self.world.ledger), self._disk_is_full, self._reach.stages)

    def _named_in_the_morning(self, seed: int) -> Sequence[Policy | None]:
        """The policies that the first machine's returns name in turn; None = such a one goes by its journal alone."""
        if self.site.several is not Several.POLICIES:
            return policies_in_the_morning(seed, self.site.policies[0])
        named = morning_names(seed)
        return [self.site.policies[named] if named is not None else None]

    def _policy_of_run(self, half: RunKind, policy: Policy | None) -> Policy | None:
        """The policy that a run names: `policy`, or that of its machine."""
        if self._machine:
            return self.site.policies[-1]
        if half is not RunKind.DAY:
            return policy or self.site.policies[0]
        policy_named = self._in_the_morning
        if policy_named in self._files:
            self._in_the_morning = self._files[(self._files.index(policy_named) + 1) % len(self._files)]
        return policy_named

    def _consents(self, report: Report) -> None:
        """The admin agrees, to this plan or another."""
        if not report.plan.steps:
            self.played.foretold.append(f"{report.request} asks to agree, and would do nothing")

    def _half(self, half: RunKind | None, policy: Policy | None = None) -> None:
        """One process: a half of the rotation, or with None what was cut off."""

        def act(place: NightPlace) -> Report:
            if half is None:
                return resume(place, apply=True, consent=self._consents)
            return rotate(half, self._policy_of_run(half, policy), place, apply=True, consent=self._consents)

        suffix = " on the other machine" if self._machine else " of the other policy" if policy is not None else ""
        report = self._process(half.value if half else "rotate resume", act, suffix)
        if report is None or half is not RunKind.DAY:
            return
        if self._machine:
            self.played.last_elsewhere = report
        else:
            self.played.last = report

    def _process(self, name: str, act: Callable[[NightPlace], Report | None], suffix: str = "") -> Report | None:
        """One process from its login to its end; what it reports, if it comes to that. `suffix` distinguishes the call
        from others of that name.
        """
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
        self.played.calls.append((name + suffix, ended, self.world.clock.now()))
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
        ops_before, before = frozenset(self.played.asked), len(self.world.ledger)
        with self._another_process():
            try:
                vcenter: Any = self._connect(lambda point: None)
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
        ops_sent = {entry.operation_id for entry in list(self.world.ledger)[before:] if entry.operation_id}
        new_ops = (ops_sent | self.played.asked.keys()) - ops_before  # requests in flight before may end meanwhile
        # a pause of this machine may fall into its login: the other machine then has its return
        sent = [op for op in new_ops if op not in self.played.sent_by or self.played.sent_by[op][0] != -1]
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

    def _boundary(self, point: str) -> None:
        self._points += 1
        if self._slow is not None:
            self._take_time(self._slow.at_s)
        self._compare_clocks(point)
        self.played.most_sessions = max(self.played.most_sessions, self._sessions())
        self.points[self._running] = max(self.points.get(self._running, 0), self._points)
        if point.startswith("after ") and not point.endswith("append"):
            self._count_in_flight()
        if point.startswith("after SuspendVm "):
            self._cut(point.removeprefix("after SuspendVm "))
        due = self._due() if self._ends else None
        if due is not None and self._is_met(due, point):
            self._ends.remove(due)
            self._reach.reached(due.fault)
            self._meet(due, point)

    def _take_time(self, pause_s: float) -> None:
        """K10: a processor so slow that each step costs time of its own, and the plan before the first a lot of it."""
        with self.world.lock:
            self.world.clock.advance(pause_s * (PLAN_STEPS if self._points == 1 else 1))
        self.played.struck["K10"] = self.played.struck.get("K10", 0) + (self._points == 1)

    def _compare_clocks(self, point: str) -> None:
        """Record a step that takes a VM while the clocks differ; one or two looks are not enough to notice that."""
        now = self.world.clock.now()
        ahead = self._second.clock(self.world.clock.now, EVENING)() - now if self._machine and self._second else ZERO
        if abs(self.world.skew - ahead) <= MOST_CLOCK_DIFFERENCE:
            self._apart_since = None
            return
        self._apart_since = self._apart_since or now
        takes = TAKES.match(point) is not None and self._running != RunKind.DAY
        if takes and now - self._apart_since > SEEN_BY:
            self.played.on_a_wrong_clock.append((point, now))

    def _due(self) -> Event | None:
        """What this process is to meet next: what is meant for its half alone comes first."""
        ends = sorted(self._ends, key=lambda event: not event.target)
        return next((event for event in ends if event.target in ("", self._running)), None)

    def _is_met(self, due: Event, point: str) -> bool:
        if due.fault != HANGS:
            return self._points == due.point
        # between its last check and its request it stands where K6 stops its machine
        checked = point.startswith("before ") and not point.endswith("append")
        return self._points >= due.point and not checked and not self._machine

    def _meet(self, event: Event, point: str) -> None:
        """What befalls the process itself, or its machine."""
        match event.fault:
            case "K1":
                raise Killed(point)
            case "K2":
                raise KeyboardInterrupt
            case "K10":
                raise MemoryError(point)
            case "K6":
                self._stands_still(event)
            case "K12":
                self._hangs(event, point)
            case "K11":
                self._machines.revert()
                self.played.struck["K11"] = self.played.struck.get("K11", 0) + 1
            case _:
                self._beside()

    def _stands_still(self, event: Event) -> None:
        connect, since = partial(self._connect, lambda point: None), self.world.clock.now()
        with self._another_process():
            self._machines.pause(event.at_s, self._states / "other", connect, self._pause)
        self.played.stood.append((since, self.world.clock.now()))
        self.played.struck["K6"] = self.played.struck.get("K6", 0) + 1

    def _hangs(self, event: Event, point: str) -> None:
        """The process stops here for so long, and goes on; cron begins returns meanwhile, and one may end it."""
        turnstile = self._turnstile
        if turnstile is None or self._machine:
            return
        now, hung, since = self.world.clock.now, turnstile.held, self.world.clock.now()
        state_before = self._points, self._of_others, self._running, self._run
        goes_on, sessions_before = since + timedelta(seconds=event.at_s), self._open_sessions()
        while turnstile.held is hung and (at := max(now() + CRON, MORNING)) < goes_on:
            self._wait_until(at)
            with patch.object(rotation_lock, "end_hung_run", self._end_holder):
                self._half(RunKind.DAY)
        self._points, self._of_others, self._running, self._run = state_before
        self._of_others |= self._open_sessions() - sessions_before
        self.played.struck[HANGS] = self.played.struck.get(HANGS, 0) + 1
        if turnstile.held is not hung:
            self.played.ended += 1
            raise Killed(point)
        self._wait_until(goes_on)
        self.played.stood.append((since, now()))

    def _end_holder(self, holder: LockHolder, site: Place) -> bool:
        """As gpuops ends a process of its machine that hangs, by the moment that it has for that."""
        at = ends_at(holder)
        if self._turnstile is None or at is None or site.clock() < at:
            return False
        self._pause(GRACE_S)
        self._turnstile.held = None
        return True

    def _count_in_flight(self) -> None:
        """Count our tasks, but not those that the engine has given up: hung ones, those of a VM that waits or waited
        for an answer, if only for a foreign task, and those of a removed VM. None of them must keep desktops
        from returning."""
        given_up = self.world.clock.now() - timedelta(seconds=HUNG_S)
        unfinished: list[Any] = self.world.tasks.unfinished()
        if not unfinished:
            return
        cancelled_vms = {task.entity.moid for task in unfinished if task.has_asked_question}
        ours = [
            task
            for task in unfinished
            if task.call.operation_id
            and task.queued_at > given_up
            and task.entity.moid not in cancelled_vms
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

    def _fire(self, event: Event, vm: VirtualMachine | None) -> None:
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
        else:
            super()._fire(event, vm)

    def _calm(self) -> None:
        self._ends.clear()
        self._full = None
        super()._calm()

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
        own_sessions = (session for session in self.world.sessions if session.key not in self._of_others)
        return sum(1 for session in own_sessions if session.active_at > idle_since)
