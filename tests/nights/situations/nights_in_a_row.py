"""Situations of a night that is not the only one: one before it left something or was killed, or one follows; teams
share several; or vCenter is installed anew meanwhile: another instance uuid, other ids, no custom attributes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from gpuops.execute.journal.record import Kind
from gpuops.execute.journal.stores import Store, open_store
from gpuops.execute.rotation.open_nights import adopt
from gpuops.execute.runs import RunKind
from gpuops.execute.site.ports import Vcenter
from gpuops.model.nights.rotation_policy import Policy
from gpuops.sim.objects.virtual_machine import VirtualMachine
from gpuops.sim.outside_events import vm_events as others
from gpuops.sim.outside_events.host_events import rebuild_vcenter
from gpuops.sim.state.vm_state import Power
from tests.harness.killing import Killed
from tests.nights.faults.cron import MORNING
from tests.nights.faults.event import Event
from tests.nights.playing.place import NightPlace, NightStore, folder_in_memory
from tests.nights.playing.played import Played
from tests.nights.situations.situated import LATER, SOMETHING, Situated
from tests.nights.world.worlds import DAY, EVENING, Site, Size, arrange_site


class LeftOver(Situated):
    """Another machine's night of yesterday left markers, and desktops suspended; this one's journal knows of none."""

    size = Size(3, 12, 5)

    def place(self, seed: int) -> Site:
        return arrange_site(seed, self.size, left_over=5, leased=self.rng.random() < 0.6)

    def events(self, site: Site) -> Sequence[Event]:
        point = self.rng.randint(2, 40)
        killed = Event("K1", point=point, target=RunKind.NIGHT)
        return self.rng.choice([[Event("V6")], [Event("V6"), killed]])  # what was left over may have no room any more

    def _evening(self) -> Sequence[tuple[RunKind, Any]]:
        kind = self.rng.randrange(4)
        if kind == 3:
            return [
                (RunKind.DAY, EVENING),
                (RunKind.DAY, EVENING + timedelta(minutes=4)),
                (RunKind.NIGHT, EVENING + LATER),
            ]
        if kind == 0:
            return [(RunKind.DAY, EVENING), (RunKind.NIGHT, EVENING + timedelta(minutes=25))]
        night = [(RunKind.NIGHT, EVENING), (RunKind.DAY, EVENING + timedelta(minutes=4))]
        return [*night, (RunKind.NIGHT, EVENING + timedelta(minutes=20))] if kind == 1 else [(RunKind.NIGHT, EVENING)]


class Forgotten(Situated):
    """The night is killed when it has just sent a start, and is not resumed: vCenter has long forgotten the task when
    the return comes.
    """

    policy: Mapping[str, Any] = {"full": True}
    size = Size(2, 4, 3)

    def events(self, site: Site) -> Sequence[Event]:
        return [Event("K1")]

    def arrange(self) -> None:
        self._left = self.rng.randint(1, 2)

    def met(self, before: bool, step: str, name: str) -> None:
        if not before and step == "PowerOnVm" and self._running == RunKind.NIGHT:
            self._left -= 1
            if self._left == 0:
                raise Killed(name)

    def _to_its_end(self, half: RunKind, policy: Policy | None = None) -> None:
        self._half(half, policy)


class NextNight(Situated):
    """A night, its morning, and the next night: meanwhile desktops that were away were deleted, or the lock VM was."""

    def place(self, seed: int) -> Site:
        return arrange_site(seed, self.size, full=True, leased=self.rng.random() < 0.5)

    def events(self, site: Site) -> Sequence[Event]:
        return [Event("V4")]

    def arrange(self) -> None:
        for vm in self.desktops():
            if self.rng.random() < 0.3:
                self.at(self.rng.uniform(300, 30_000), partial(self._is_deleted, vm))

    def _is_deleted(self, vm: VirtualMachine) -> None:
        if vm.is_registered and self.world.tasks.running(vm) is None:
            others.delete(vm, SOMETHING)

    def _evening(self) -> Sequence[tuple[RunKind, datetime]]:
        return [(RunKind.NIGHT, EVENING), (RunKind.DAY, MORNING), (RunKind.NIGHT, EVENING + DAY)]


class Teams(Situated):
    """Two nights that teams share, with weights and limits; ML VMs end by themselves and free GPUs again, and runs are
    killed now and then."""

    size = Size(3, 12, 9)

    def place(self, seed: int) -> Site:
        draw = self.rng.choice
        teams = {
            name: {"weight": draw([1, 2, 3]), **({"at_most": most} if (most := draw(_AT_MOST)) else {})}
            for name in ("red", "green", "blue")[: draw([1, 2, 3, 3])]
        }
        shared = {"by": "attribute:team", "half_life_days": draw([0.5, 7]), "teams": teams}
        return arrange_site(seed, self.size, full=draw([True, True, False]), relocate=None, shared=json.dumps(shared))

    def events(self, site: Site) -> Sequence[Event]:
        killed = [Event("K1", point=self.rng.randint(1, 60)) for _ in range(self.rng.choice([0, 0, 1, 2]))]
        return [Event("A1"), *killed]

    def arrange(self) -> None:
        for vm in self.world.by_type("VirtualMachine"):
            if vm.name.startswith("ml-") and self.rng.random() < 0.3:
                self.at(self.rng.uniform(3600, 30_000), partial(self._is_done, vm))

    def _is_done(self, vm: VirtualMachine) -> None:
        if vm.is_registered and vm.state.power is Power.ON and self.world.tasks.running(vm) is None:
            others.power_off(vm, SOMETHING)

    def _evening(self) -> Sequence[tuple[RunKind, datetime]]:
        later = [(RunKind.NIGHT, EVENING + LATER)] if self.rng.random() < 0.5 else []
        return [(RunKind.NIGHT, EVENING), *later, (RunKind.DAY, MORNING), (RunKind.NIGHT, EVENING + DAY)]


_AT_MOST: Final[Sequence[dict[str, float]]] = (
    {},
    {},
    {"gpus": 1},
    {"gpus": 2, "gpu_hours_per_week": 18},
    {"gpu_hours_per_week": 12},
)


class Hooked(Situated):
    """Nothing is wrong; the guests of ML VMs keep their work, each in its own way."""

    policy: Mapping[str, Any] = {"hooked": True}
    size = Size(2, 6, 5)


class RebuiltPlace(NightPlace):
    """A place with a journal for each vCenter that there has been."""

    __slots__ = ("stores",)
    stores: Mapping[str, NightStore]

    def _store_of(self, vcenter: str) -> NightStore:
        return self.stores[vcenter]


class Rebuilt(Situated):
    """vCenter is installed anew while desktops are taken, while they are away, or while they come back; a run may have
    been killed before that. After some returns an admin adopts what the night took, and the next ones bring it back."""

    policy: Mapping[str, Any] = {"full": True}

    def events(self, site: Site) -> Sequence[Event]:
        killed = Event("K1", point=self.rng.randint(2, 90), target=self.rng.choice([RunKind.NIGHT, RunKind.DAY]))
        return [Event("N10"), *([killed] if self.rng.random() < 0.4 else [])]

    def arrange(self) -> None:
        self._journals: list[Store] = []
        self._stores: dict[str, NightStore] = {}
        self._before = ""
        """The instance uuid of the vCenter that was there before; empty = it is there."""
        self._returns = self.rng.randint(1, 3)
        """So many until an admin adopts."""
        self._keep_by(self._store)
        morning_s = (MORNING - EVENING).total_seconds()
        first_s, last_s = self.rng.choice([(1, 400), (400, morning_s), (morning_s + 1, morning_s + 300)])
        self.at(self.rng.uniform(first_s, last_s), self._is_rebuilt)

    def _play_night(self) -> Played:
        with folder_in_memory() as folder:
            self._folder = folder
            try:
                return super()._play_night()
            finally:
                for file in self._journals:
                    file.close()

    @property
    def _uuid(self) -> str:
        uuid: str = self.world.get("ServiceInstance").instance_uuid
        return uuid

    def _keep_by(self, store: NightStore) -> None:
        """Keep the records of this vCenter in the store, and in a file in which gpuops finds other vCenters."""
        file = open_store(self._folder, "", self._uuid)
        self._journals.append(file)
        store.copy = file.append
        self._stores[self._uuid] = self._store = store

    def _is_rebuilt(self) -> None:
        self._before = self._uuid
        rebuild_vcenter(self.world, SOMETHING)
        self.played.struck["N10"] = 1
        self._lost_stores.append(self._store)
        self._keep_by(
            NightStore(self._boundary, lambda: len(self.world.ledger), self._disk_is_full, self._reach.stages)
        )

    def _trusts(self) -> Callable[[], bool]:
        trusted = self._uuid
        return lambda: self._uuid == trusted  # it has another certificate, of which the next process knows

    def _place(self, vcenter: Vcenter) -> NightPlace:
        place = RebuiltPlace(vcenter, self._folder, self.world.clock.now, store=self._store)
        place.stores, place.same_time, place.pause = self._stores, True, self._pause
        place.passed_s = lambda: (self.world.clock.now() - EVENING).total_seconds()
        return place

    def _mornings(self) -> bool:
        vcenter_before, before = self._before, len(self.world.ledger)
        quiet = super()._mornings()
        if not vcenter_before or self._returns < 0:
            return quiet
        if not any(record.kind is Kind.ORIGINAL for record in self._store.records):  # no night here has begun since
            self._are_named(len(self.world.ledger) - before)
        self._returns -= 1
        if not self._returns:
            self._returns = -1
            self._process("rotate adopt", partial(self._adopt, vcenter_before))
        return False

    def _adopt(self, from_vcenter: str, place: NightPlace) -> None:
        store = self._stores[from_vcenter]
        records_before = len(store.records)
        try:
            adopt(place, from_vcenter)
        finally:
            # For the checkers the night goes on in the other journal: nothing has come back yet.
            del store.records[records_before:], store.lengths[records_before:]

    def _are_named(self, changes: int) -> None:
        """The return of a vCenter without a night names each desktop that the other one's night took, and no more."""
        report = self.played.last
        if self.played.calls[-1][1] != "done" or report is None:
            return
        suspended_names = {vm.name for vm in self.desktops() if vm.state.power is Power.SUSPENDED}
        named = {unmet.subject for unmet in report.plan.unmet}
        if suspended_names - named:
            self.played.foretold.append(
                f"{sorted(suspended_names - named)} are away, and the return names {sorted(named)}"
            )
        if suspended_names and report.exit_code != 4:
            self.played.foretold.append(f"desktops are away, and the return ends with {report.exit_code}")
        if changes:
            self.played.foretold.append(f"a return of a rebuilt vCenter changed {changes} things")
