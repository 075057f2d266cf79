"""Situations in which somebody looks: what a run would do, and `rotate status`, are held against what happens."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from gpuops.errors import GpuopsError
from gpuops.execute.rotation.rotation import resume, rotate
from gpuops.execute.rotation.status import status
from gpuops.execute.runs import RunKind
from gpuops.execute.site import agreed
from gpuops.model.nights.night_record import Role
from gpuops.model.nights.rotation_policy import Policy
from gpuops.plan.core.plan import Report
from gpuops.plan.rotation.taken_vms import TakenVm, Whereabouts
from gpuops.sim.fault_injection.rule import Rule
from gpuops.sim.objects.virtual_machine import VirtualMachine
from gpuops.sim.outside_events import vm_events as others
from gpuops.sim.state.vm_state import Power
from tests.nights.faults.cron import MORNING
from tests.nights.faults.event import Event
from tests.nights.situations.situated import SOMETHING, Situated
from tests.nights.world.worlds import EVENING, LOCK, Site, arrange_site


class Looked(Situated):
    """Somebody looks at what each run would do, just before it does; runs are killed now and then."""

    def place(self, seed: int) -> Site:
        return arrange_site(seed, self.size, leased=self.rng.random() < 0.3, in_flight=self.rng.choice([1, 4]))

    def events(self, site: Site) -> Sequence[Event]:
        return [Event("K1", point=self.rng.randint(1, 60)) for _ in range(self.rng.choice([1, 2, 3]))]

    def _half(self, half: RunKind | None, policy: Policy | None = None) -> None:
        under_way: list[Any] = self.world.tasks.unfinished()
        foreseen, entries = self._foresee(half), len(self.world.ledger)
        if len(self.world.ledger) != entries:
            self.played.foretold.append("looking at it changed something")
        reports_before = len(self.played.told)
        super()._half(half, policy)
        if foreseen is not None and len(self.played.told) > reports_before:
            self.played.foretold += differences(foreseen, self.played.told[-1][0], settled=not under_way)

    def _foresee(self, half: RunKind | None) -> Report | None:
        vcenter: Any = self._connect(lambda point: None)
        try:
            place = self._place(vcenter)
            if half is None:
                return resume(place, apply=False, consent=agreed)
            policy = self.site.policy if half is RunKind.NIGHT else self._in_the_morning
            return rotate(half, policy, place, apply=False, consent=agreed)
        except GpuopsError:
            return None
        finally:
            vcenter.close()


class Stated(Situated):
    """Somebody asks for `rotate status` before each run, with a policy or without, and others shut down, delete or
    suspend VMs of the night; now and then a run was killed, or the journal is lost."""

    def place(self, seed: int) -> Site:
        given_up_by: dict[str, Any] = self.rng.choice(
            [{"full": True}, {"full": True}, {"passthrough": True, "directpath": "shut-down-guest"}]
        )
        return arrange_site(seed, self.size, **given_up_by)

    def events(self, site: Site) -> Sequence[Event]:
        killed = Event("K1", point=self.rng.randint(2, 60), target=RunKind.NIGHT)
        self._lost = self.rng.random() < 0.3
        because = Event("V6" if self._lost else "V4")
        return self.rng.choice([[because], [because, killed]])

    def arrange(self) -> None:
        if self._lost:
            self.at((MORNING - EVENING).total_seconds() - 5, self.lose_journal)
            return
        for vm in self.world.by_type("VirtualMachine"):
            act = self.rng.choice([others.power_off, others.delete, others.suspend, others.power_on, None, None])
            if act is not None and vm.name != LOCK:
                self.at(self.rng.uniform(300, 30_000), partial(self._is_changed, vm, act))

    def _is_changed(self, vm: VirtualMachine, act: Callable[[VirtualMachine, Rule], object]) -> None:
        if vm.is_registered and self.world.tasks.running(vm) is None:
            act(vm, SOMETHING)

    def _half(self, half: RunKind | None, policy: Policy | None = None) -> None:
        vcenter: Any = self._connect(lambda point: None)
        try:
            night_status = status(self._place(vcenter), self.rng.choice([self.site.policy, None]))
        finally:
            vcenter.close()
        self.played.foretold += (f"status: {problem}" for vm in night_status.vms if (problem := self._wrongly(vm)))
        super()._half(half, policy)

    def _wrongly(self, taken_vm: TakenVm) -> str:
        """What is not so of what `rotate status` says of a VM; empty where it is."""
        vm_entities = [
            vm for vm in self.world.by_type("VirtualMachine") if vm.state.instance_uuid == taken_vm.original.uuid
        ]
        power = vm_entities[0].state.power if vm_entities else None
        power_when_taken = {Role.ML: Power.ON, Role.SHUT_DOWN: Power.OFF}.get(taken_vm.original.role, Power.SUSPENDED)
        expected_power = next((state for words, state in SAID.items() if taken_vm.reason.startswith(words)), power)
        true = {
            Whereabouts.AWAY: power is power_when_taken,
            Whereabouts.BACK: power is not None and power is not power_when_taken and taken_vm.original.taken,
            Whereabouts.LOST: power is Power.OFF,
            Whereabouts.GONE: power is None,
            Whereabouts.UNTOUCHED: power is not None or not taken_vm.original.taken,
        }
        if true.get(taken_vm.whereabouts, True) and expected_power is power:
            return ""
        return f"{taken_vm.original.name} is {taken_vm.whereabouts} ({taken_vm.reason}), and is {power}"


SAID: Final = {
    "is running": Power.ON,
    "runs": Power.ON,
    "started in": Power.ON,
    "suspended in": Power.SUSPENDED,
    "was suspended": Power.SUSPENDED,
    "shut down in": Power.OFF,
    "is powered off": Power.OFF,
}
"""The state of a VM for each beginning of a reason."""


def differences(foreseen: Report, actual: Report, *, settled: bool = True) -> list[str]:
    """Where a report of what would be done and the one of what was done are not the same.

    Where tasks of a killed run are still under way (not `settled`) their effects come between the two, and show in the
    reasons for which VMs stay, for example in the free space of a datastore.
    """
    problems = []
    for part, of in (
        ("steps", lambda report: {re.sub(r" lease=\d+", "", str(step)) for step in report.plan.steps}),
        ("what is left out", lambda report: {(refusal.subject, refusal.rule) for refusal in report.plan.unmet}),
        ("why", lambda report: {(choice.subject, choice.chosen, choice.reason) for choice in report.plan.choices}),
        ("refusals", lambda report: {rejection.rule for rejection in report.plan.rejections}),
    ):
        looked, part_after = of(foreseen), of(actual)
        if looked != part_after and (settled or part != "why"):
            problems.append(f"{part}: {sorted(map(str, looked ^ part_after))[0]}")
    return problems
