"""Runners: several runs on one simulated vCenter, of which one goes on at a time, in an order that a test chooses.

Each run is the engine itself on a thread of its own, that stops before each step which matters to others: the lock of
its machine, each look at the lease, each change it sends. Nothing else decides what comes after what.

The orders that `test_two_runners` enumerates leave each run its speed. In those that a seed draws (`pair_violations`)
one may stand for longer than its lease, as a paused virtual machine does, and go on beside the next holder.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from gpuops.config.policy import parse_policy
from gpuops.errors import GpuopsError
from gpuops.execute.journal.journal import Journal
from gpuops.execute.rotation.rotation import restore, rotate
from gpuops.execute.runs import RunKind
from gpuops.execute.site import Site as Place
from gpuops.execute.site import agreed
from gpuops.execute.state import lock
from gpuops.model.nights.rotation_policy import LATE, Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.task import TaskRef
from gpuops.plan.core.plan import Report
from gpuops.plan.core.steps import Step
from gpuops.plan.rotation.lease_rules import HEARTBEAT_S, KEY, TTL_S, Lease, parse_lease
from gpuops.sim.core.ledger import Entry
from gpuops.sim.core.object_store import somebody
from gpuops.sim.objects.virtual_machine import VirtualMachine
from gpuops.sim.operations.recording import recorded
from gpuops.sim.scenario.build import build_declared
from gpuops.sim.scenario.scenario_file import ScenarioFile
from gpuops.sim.state.vm_state import Power
from gpuops.sim.world import World
from tests.harness import office
from tests.nights.playing.place import NightPlace, NightStore, folder_in_memory
from tests.nights.world.direct import DirectVcenter
from tests.nights.world.worlds import EVENING

LOCK: Final = "gpuops-lock"
UNSURE = "exit code 4"
"""How a morning ends that leaves a marker on what is as it was, and a night that leaves a step undone."""
DECLARED: Final = ScenarioFile.of(office.scenario(
    [
        office.desktop(1, "g", name="desktop-{:03}", count=2, devices=[{"vgpu": "nvidia_a40-24q"}], attributes={}),
        office.ml_vm(1, "g", disk_gib=100, extra_config={}),
        office.small_vm(LOCK, "g", folder="ops"),
    ],
    office.hosts(1, gpus=[office.gpu(mode="sameSize")], group="g"), memory_gib=1024, drs=None, start=EVENING,
))  # fmt: skip
"""Two desktops, one ML VM and a lock VM."""

POLICY: Final[Policy] = parse_policy(
    f"""
version: 1
name: night
pools:
  - name: office
    parked: true
    select: {{folder: vdi, name: "desktop-*"}}
    idle: {{cpu_below_mhz: 500}}
    owner: none
ml: {{queue: [{{vm: ml-01}}], stop: {{grace_s: 60, then: power-off}}}}
window: {{opens: "20:00", closes: "06:00", zone: UTC}}
limits: {{in_flight: 1, per_host: 1}}
lock_vm: {LOCK}
""",
    "night",
)


def evening() -> World:
    """A vCenter that `rotate init` has been at."""
    world = build_declared(DECLARED, seed=7)
    world.custom_fields.define(POLICY.marker)
    return world


class Stepping(DirectVcenter):
    """A connection that stops before each look at the lease and before each change."""

    def __init__(self, world: World, stop: Callable[[str], None], sent: Callable[[str], None]) -> None:
        super().__init__(world, lambda point: stop(point) if point.startswith("before ") else None)
        self._stop = stop
        self._sent = sent
        self._lock = next(vm.moid for vm in world.by_type("VirtualMachine") if vm.name == LOCK)

    def observe(self, inventory: Inventory, vms: Collection[str]) -> Inventory:
        if self._lock in vms:
            self._stop("a look at the lease")
        return super().observe(inventory, vms)

    def submit(self, step: Step, inventory: Inventory, op_id: str) -> TaskRef | None:
        self._sent(op_id)
        return super().submit(step, inventory, op_id)


class Machine:
    """A state directory with its journal and lock, which outlive the runs."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.store = NightStore(lambda point: None, lambda: 0, lambda: False)


class _Site(NightPlace):
    """A site of a machine: its lock is the real one, its journal is in memory."""

    __slots__ = ("_stop",)

    def __init__(self, *args: Any, machine: Machine, stop: Callable[[str], None]) -> None:
        super().__init__(*args, store=machine.store, locks=machine.state_dir)
        self._stop = stop

    @contextmanager
    def locked_journal(self, vcenter: str, **options: Any) -> Iterator[Journal]:
        self._stop("the lock of the machine")
        with super().locked_journal(vcenter, **options) as journal:
            yield journal


class Runner:
    """One run, which goes on by a step at a time."""

    def __init__(
        self, name: str, world: World, machine: Machine, act: Callable[[Place], Report], *, coarse: bool = False
    ) -> None:
        """`coarse` stops before each write of the lease and before the first change of each kind alone.

        What it leaves out makes no difference to the other: a look after which nothing is written, a second marker.
        """
        self.name, self.op_ids = name, set[str]()
        self._coarse, self._met = coarse, set[str]()
        self.at = "its beginning"
        """The step before which it stands."""
        self.ended: str | None = None
        """`done`, or the error it ended with; None = it goes on."""
        self.trouble: BaseException | None = None
        self._world, self._machine, self._act = world, machine, act
        self.speed = 1.0
        """How many seconds its machine's clocks count while vCenter's counts one: 0 while the machine is paused."""
        self._shown = self._counted_at = world.clock.now()
        self._go, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def step(self) -> None:
        """Goes on to its next step, or to its end. Raises what no run may raise."""
        self._go.release()
        self._stands.acquire()
        if self.ended is not None:
            self._thread.join()
        if self.trouble is not None:
            raise self.trouble

    def set_speed(self, speed: float) -> None:
        """From now on its machine's clocks count so many seconds while vCenter's counts one; 0 = they stand still."""
        self._shown = self.clock()
        self._counted_at, self.speed = self._world.clock.now(), speed

    def clock(self) -> datetime:
        """What the clocks of its machine show."""
        return self._shown + self.speed * (self._world.clock.now() - self._counted_at)

    def finish(self) -> None:
        while self.ended is None:
            self.step()

    def _stop(self, point: str) -> None:
        if self._coarse and not self._matters(point):
            return
        self.at = point
        self._world.lock.release()
        self._stands.release()
        self._go.acquire()
        self._world.lock.acquire()

    def _matters(self, point: str) -> bool:
        kind = point.rpartition(" ")[0]
        has_met = kind in self._met
        self._met.add(kind)
        return point.startswith("before ") and (point.endswith(LOCK) or not has_met)

    def _run(self) -> None:
        self._go.acquire()
        with self._world.lock:
            self._act_to_its_end()
        self._stands.release()

    def _act_to_its_end(self) -> None:
        try:
            vcenter = Stepping(self._world, self._stop, self.op_ids.add)
            site = _Site(vcenter, self._machine.state_dir, self.clock, machine=self._machine, stop=self._stop)
            site.pause = self._world.clock.advance
            site.passed_s = lambda: (self.clock() - EVENING).total_seconds()
            report = self._act(site)
            vcenter.close()
            self.ended = "done" if report.exit_code == 0 else f"exit code {report.exit_code}"
        except GpuopsError as error:
            self.ended = type(error).__name__
        except BaseException as error:
            self.ended, self.trouble = "a bug", error


class _Choices:
    """Answer with the given choices, then with the first of each choice, and remember all of them."""

    def __init__(self, first_choices: Sequence[int]) -> None:
        self._told = first_choices
        self.made: list[int] = []
        self._widths: list[int] = []

    def __call__(self, width: int) -> int:
        answer = self._told[len(self.made)] if len(self.made) < len(self._told) else 0
        self.made.append(answer)
        self._widths.append(width)
        return answer

    def following(self) -> list[int] | None:
        """Return the choices with the last one that has a further answer advanced; None if no choice has one."""
        choices = list(self.made)
        while choices and choices[-1] + 1 == self._widths[len(choices) - 1]:
            choices.pop()
        return [*choices[:-1], choices[-1] + 1] if choices else None


def orders(play: Callable[[Callable[[int], int]], None]) -> Iterator[tuple[int, ...]]:
    """Plays once for each order there is: `play` asks which of so many goes on, wherever there is a choice."""
    first_choices: list[int] | None = []
    while first_choices is not None:
        choices = _Choices(first_choices)
        play(choices)
        yield tuple(choices.made)
        first_choices = choices.following()


def in_order(runners: Sequence[Runner], choose: Callable[[int], int]) -> None:
    """Lets them go on by a step each, in the order chosen; the last one goes on alone."""
    while going := [runner for runner in runners if runner.ended is None]:
        if len(going) == 1:
            going[0].finish()
        else:
            going[choose(len(going))].step()


def lock_vm(world: World) -> VirtualMachine:
    return next(vm for vm in world.by_type("VirtualMachine") if vm.name == LOCK)


def lease_of(world: World) -> Lease | None:
    """The lease as it is."""
    return parse_lease(lock_vm(world).state.option(KEY) or "")


def revert(world: World, to: tuple[tuple[str, str], ...]) -> None:
    """Somebody reverts the lock VM to a snapshot in which it had these settings."""
    vm = lock_vm(world)
    with world.lock, recorded(vm, somebody(world, "RevertToSnapshot_Task")):
        vm.state.extra_config = to
        vm.state.change, vm.state.changed_at = vm.state.change + 1, world.clock.now()
        vm.configuration_changed(renamed=False)


def strays(world: World, runners: Sequence[Runner]) -> dict[str, list[Entry]]:
    """By runner: its effects after the lease that it had taken was taken by another, or reverted, from the ledger
    alone; whether that other one has given it back since makes no difference."""
    strays_by_runner: dict[str, list[Entry]] = {runner.name: [] for runner in runners}
    holder: str | None = None
    for change in world.ledger:
        mine = next((runner.name for runner in runners if change.operation_id in runner.op_ids), None)
        if change.name == LOCK:
            lease = parse_lease(change.after["extra_config"].get(KEY, ""))
            if mine is None or (lease is not None and lease.nonce):
                holder = mine or change.user
        elif mine is not None and holder not in (mine, None):
            strays_by_runner[mine].append(change)
    return strays_by_runner


def powers(world: World) -> dict[str, Power]:
    return {vm.name: vm.state.power for vm in world.by_type("VirtualMachine") if vm.name != LOCK}


def markers(world: World) -> set[str]:
    """Names of the VMs that carry one."""
    key = world.custom_fields.define(POLICY.marker)
    return {vm.name for vm in world.by_type("VirtualMachine") if vm.state.attributes.get(key)}


def night(site: Place) -> Report:
    return rotate(RunKind.NIGHT, POLICY, site, apply=True, consent=agreed)


def day(site: Place) -> Report:
    return rotate(RunKind.DAY, POLICY, site, apply=True, consent=agreed)


def by_markers(site: Place) -> Report:
    return restore(POLICY, site, (), from_markers=True, apply=True, consent=agreed)


def mornings(world: World, *machines: Machine) -> None:
    """Cron on each machine, until the lease that a stopped run left has run out too: everything is as it was.

    Each machine has a journal of its own: what only the other's knows, the first to come brings back by its marker; a
    marker on what is as it was it leaves alone until the second time, ten minutes later.
    """
    with world.lock:
        world.clock.advance(TTL_S + 1)
    assert {_morning(world, machine) for machine in machines} <= {"done", UNSURE}
    if markers(world):
        with world.lock:
            world.clock.advance(LATE.total_seconds())
        assert {_morning(world, machine) for machine in machines} == {"done"}
    assert powers(world) == {"desktop-001": Power.ON, "desktop-002": Power.ON, "ml-01": Power.OFF}
    assert markers(world) == set()
    assert world.bugs == []


def _morning(world: World, machine: Machine) -> str | None:
    morning = Runner("morning", world, machine, day)
    morning.finish()
    return morning.ended


PAUSES_S: Final = (1.0, HEARTBEAT_S / 2, HEARTBEAT_S, TTL_S - 1, TTL_S, TTL_S + 1, 2 * TTL_S)
PAUSED: Final = (0.0, 0.04, 0.15)
"""Of all steps, in one night or another."""
LATE_EFFECTS: Final = 1
"""Effects that a run may have after its lease changed hands, where it has stood: the one that was past its check."""


def pair_violations(seed: int) -> list[str]:
    """What does not hold of the runs of that seed."""
    rng = random.Random(f"{seed}:pairs")
    with folder_in_memory() as folder, patch.object(lock, "TRIES", 1):
        world, machines = evening(), (Machine(folder / "a"), Machine(folder / "b"))
        acts = [night, rng.choice([night, by_markers]), *rng.sample([day, by_markers, night], rng.randrange(2))]
        runners = [
            Runner(name, world, rng.choice(machines) if number else machines[0], act)
            for number, (name, act) in enumerate(zip("abc", acts, strict=False))
        ]
        paused, pauses = rng.choice(PAUSED), 0
        try:
            while going := [runner for runner in runners if runner.ended is None]:
                runner = rng.choice(going)
                for _ in range(rng.choice((1, 1, 3, 10))):
                    if runner.ended is None:
                        runner.step()
                if rng.random() < paused:
                    pauses += 1
                    with world.lock:
                        world.clock.advance(rng.choice(PAUSES_S))
            most = LATE_EFFECTS if pauses else 0
            late = {name: len(entries) for name, entries in strays(world, runners).items() if len(entries) > most}
            lease = lease_of(world)
            problems = [f"I6: {name} had {count} effects while the lease was another's" for name, count in late.items()]
            problems += (
                ["I6: the lease was not given back"]
                if lease is not None and lease.is_held_at(world.clock.now())
                else []
            )
            if not pauses and all(runner.ended == "Locked" for runner in runners):
                problems.append("I6: each run is blocked by another one, and none acts")
            mornings(world, *machines)
        except AssertionError as wrong:
            return [
                f"I12: the mornings do not bring everything back: {str(wrong).splitlines()[0] if str(wrong) else ''}"
            ]
        finally:
            for runner in runners:
                runner.finish()
    return [*problems, *world.bugs]
