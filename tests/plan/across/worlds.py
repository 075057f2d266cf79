"""Fleets of several sites with requests across them, and rounds of looks as `gpuops queue --site all --assign` has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from datetime import time as clock
from typing import Final

from gpuops.model.nights.across_sites import Assignment, Elsewhere, RequestsHere, assigned_to
from gpuops.model.nights.fair_share import FairShare, Team
from gpuops.model.nights.history import PastNight
from gpuops.model.nights.ml_queue import QueuedVm
from gpuops.model.nights.rotation import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.owner import OwnerKey
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.model.window import Window
from gpuops.plan.across.choice import AcrossSites, changes, choose
from gpuops.plan.across.offer import SiteOffer, offer_in
from gpuops.plan.rotation.ml_queue.queue_look import look_at_queue
from gpuops.plan.rotation.nights.night import RotateNight
from gpuops.plan.rotation.nights.night_plan import NightPlan
from tests.plan.snapshots import FIRST, SECOND, catalog, gpu, host, inventory, vm

CATALOG: Final = catalog()
EVENING: Final = datetime(2026, 11, 20, 21, 0, tzinfo=UTC)
BY_TEAM: Final = OwnerKey("attribute", "team")
WHOLE: Final = "nvidia_a40-48c"
HALF: Final = "nvidia_a40-24c"
ROUNDS: Final = 4


@dataclass(frozen=True, slots=True)
class Request:
    """One request: a VM of this name in every site."""

    name: str
    team: str = "a"
    profile: str = WHOLE
    priority: int = 0
    minimum_h: int = 0


@dataclass(slots=True)
class SiteWorld:
    """One site: its hosts with two A40 each, when its window closes, and what its nights came to."""

    name: str
    hosts: int = 1
    back_by_h: int = 6
    opens_h: int = 20
    board: str = "a40"
    running: frozenset[str] = frozenset()
    past: tuple[PastNight, ...] = ()
    run_open: bool = False
    lacks: frozenset[str] = frozenset()
    """Requests that it has no VM for."""

    def snapshot(self, requests: Sequence[Request]) -> Inventory:
        own = [
            host(f"esx-{number}", gpu(FIRST, self.board, 0), gpu(SECOND, self.board, 1))
            for number in range(1, self.hosts + 1)
        ]
        vms = [self._vm(number, each) for number, each in enumerate(requests, 1) if each.name not in self.lacks]
        return replace(inventory(own, vms), taken_at=EVENING, vcenter=f"uuid-{self.name}")

    def _vm(self, number: int, request: Request) -> Vm:
        power = PowerState.ON if request.name in self.running else PowerState.OFF
        return vm(number, request.name, "1", f"vgpu {request.profile}", attributes={"team": request.team}, power=power,
                  memory_mib=4096, memory_reservation_mib=4096, vcpus=2)  # fmt: skip

    def policy(self, requests: Sequence[Request], teams: Sequence[Team] | None) -> Policy:
        queue = tuple(
            QueuedVm(each.name, relocate=True, priority=each.priority, minimum_run=timedelta(hours=each.minimum_h),
                     across_sites=True)
            for each in requests if each.name not in self.lacks
        )  # fmt: skip
        shared = None if teams is None else FairShare(BY_TEAM, teams=tuple(teams), across_sites=True)
        windows = (Window(clock(self.opens_h), clock(self.back_by_h), UTC),)
        return Policy("night", (), ml=queue, windows=windows, fair_share=shared, digest="d")


@dataclass(slots=True)
class Fleet:
    """Several sites, their requests and what is assigned."""

    sites: list[SiteWorld]
    requests: list[Request]
    teams: tuple[Team, ...] | None = None
    dead: frozenset[str] = frozenset()
    now: datetime = EVENING
    assigned: dict[str, Assignment] = field(default_factory=dict)

    def night(self, site: SiteWorld, here: RequestsHere, snapshot: Inventory | None = None) -> NightPlan:
        """The night of one site, as its own run plans it."""
        seen = snapshot or site.snapshot(self.requests)
        others = Elsewhere(tuple(night for each in self.sites if each is not site for night in each.past))
        request = RotateNight(site.policy(self.requests, self.teams), past=site.past, requests=here, elsewhere=others)
        return request.night_plan(request.may_take(seen, CATALOG, self.now), seen, CATALOG, self.now)

    def offer(self, site: SiteWorld, others: Mapping[str, str]) -> SiteOffer:
        seen = site.snapshot(self.requests)
        plan = self.night(site, RequestsHere(others=others, looking=True), seen)
        starts_at = {start.vm.ref: self.now for start in plan.decision.starts}
        found = look_at_queue(plan, seen, CATALOG, self.now, starts_at)
        return offer_in(site.name, found, CATALOG, run_open=site.run_open)

    def asked(self) -> tuple[AcrossSites, list[SiteOffer]]:
        """The choice after as many rounds as are needed."""
        meant: Mapping[str, str] = {name: each.site for name, each in self.assigned.items()}
        unread = dict.fromkeys(sorted(self.dead), "it did not answer")
        found: AcrossSites | None = None
        for _ in range(ROUNDS):
            read = [site for site in self.sites if site.name not in self.dead]
            offers = [self.offer(site, self._left_out(site.name, found)) for site in read]
            found = choose(offers, unread, self.assigned, meant, self.now, found)
            meant = found.meant
            if not found.again:
                break
        assert found is not None
        return found, offers

    def _left_out(self, site: str, found: AcrossSites | None) -> dict[str, str]:
        if found is not None:
            return found.left_out(site)
        return {name: assigned_to(each.site) for name, each in self.assigned.items() if each.site != site}

    def assign(self) -> AcrossSites:
        """Writes it down as the database would: the version that was seen is the one that is there."""
        found, offers = self.asked()
        wanted, dropped = changes(found, offers, self.assigned, self.now)
        for each in wanted:
            known = self.assigned.get(each.name)
            assert each.version == (known.version if known is not None else 0)
            self.assigned[each.name] = replace(each, version=each.version + 1)
        for each in dropped:
            del self.assigned[each.name]
        return found

    def here(self, site: SiteWorld) -> RequestsHere:
        """What the site's own night may start, by what is assigned."""
        mine = frozenset(name for name, each in self.assigned.items() if each.vcenter == f"uuid-{site.name}")
        others = {name: assigned_to(each.site) for name, each in self.assigned.items() if name not in mine}
        return RequestsHere(mine, others)

    def started(self, site: SiteWorld) -> list[str]:
        return sorted(start.vm.name for start in self.night(site, self.here(site)).decision.starts)


def sites_of(found: AcrossSites) -> dict[str, str | None]:
    return {each.name: each.site for each in found.choices}


def reason_of(found: AcrossSites, name: str) -> str:
    return next(each.reason for each in found.choices if each.name == name)
