"""Situation of a vCenter that is installed anew at night: another instance uuid, other ids, no custom attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gpuops.execute.journal.record import Kind
from gpuops.execute.journal.stores import Store, open_store
from gpuops.execute.rotation.open_nights import adopt
from gpuops.execute.runs import RunKind
from gpuops.execute.site.ports import Vcenter
from gpuops.sim.outside_events.hosts import rebuild_vcenter
from gpuops.sim.state.vm_state import Power
from tests.nights.faults.cron import MORNING
from tests.nights.faults.event import Event
from tests.nights.playing.place import NightPlace, NightStore, folder_in_memory
from tests.nights.playing.played import Played
from tests.nights.situations.situated import SOMETHING, Situated
from tests.nights.world.worlds import EVENING, Site


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
