"""How the teams of a queue stand before a night: what each had, runs and may have; in which order their VMs are tried,
and which of them are held back. `night.py` calls it where the policy says `fair_share`.

The higher priority of the policy is still served first. Within one, VMs come as `advise/fair_share.py` orders them; a
VM that finds no room keeps nobody else from it. VMs of one team that follow each other have one rank: among them the
night chooses as it does without teams.

What a team may have at the most is never exceeded by a start: of GPU-hours it is counted that whatever runs goes on
until desktops are due. Nothing that runs is stopped for it, and no return waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from gpuops.advise.fair_share import NO_USE, TeamUse, Wish, fair_order, use_by_team
from gpuops.advise.showback import owner_in, vm_now
from gpuops.model.devices.catalog import Catalog
from gpuops.model.nights.fair_share import NO_OWNER, FairShare, Team, team_of
from gpuops.model.nights.history import PastNight
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.rotation.ml_queue.gpu_share import gpus_of_vm
from gpuops.plan.rotation.ml_queue.ml_vms import NO_WINDOW, WaitingVm, within_counts
from gpuops.plan.rotation.nights.bounds import Bounds

_ROUNDING: Final = 1e-6
"""Sums of thirds of GPUs are not exact."""
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class TeamStanding:
    """One team before the night's starts."""

    team: Team
    share: float
    """Its weight as a part of those of all teams here, 0 to 1."""
    use: TeamUse = NO_USE
    used_share: float | None = None
    """Its part of all that was used of late, 0 to 1; None = nothing was."""
    running_gpus: float = 0.0
    """What its VMs hold now, those of the queue and those that a night or a watch has started."""
    coming_hours: float = 0.0
    """GPU-hours that what was started of it may still use until desktops are due; 0 where that is never."""

    @property
    def hours_left(self) -> float | None:
        """GPU-hours that may still be started; None = any number."""
        if self.team.gpu_hours is None:
            return None
        return max(0.0, self.team.gpu_hours - self.use.week - self.coming_hours)


@dataclass(frozen=True, slots=True)
class TeamShares:
    """The teams, and whose each VM of the queue is."""

    rule: FairShare
    standings: tuple[TeamStanding, ...]
    """Of every team with a VM in the queue, with use, or that the policy lists, by name."""
    team_by_vm: Mapping[str, str]
    """VM ref -> its team, for VMs of the queue."""
    gpus: Mapping[str, float]
    """VM ref -> the GPUs that its devices amount to."""
    hours: float | None
    """From now until desktops are due; None = the policy has no windows."""
    unclear: tuple[str, ...] = ()
    """What is said of VMs without an owner, or with several."""

    @classmethod
    def of(
        cls,
        rule: FairShare,
        queue: Sequence[WaitingVm],
        past: Iterable[PastNight],
        inventory: Inventory,
        catalog: Catalog,
        bounds: Bounds,
    ) -> TeamShares:
        past = tuple(past)
        owner_of = owner_in(inventory, rule.by)
        used = use_by_team(past, owner_of, bounds.now, rule.half_life)
        night = bounds.night
        hours = None if night is None else max(0.0, (night.back_by - bounds.now).total_seconds() / 3600)
        in_queue = {waits.vm.ref: waits.vm for waits in queue if waits.vm is not None}
        held = [
            vm
            for night_ in past
            for each in night_.ml
            if each.held[-1].ends is None and (vm := vm_now(each, inventory)) is not None and vm.power is PowerState.ON
        ]
        of_jobs = {waits.vm.ref: waits.queued.owner for waits in queue if waits.vm is not None}

        def team_now(vm: Vm) -> str:
            return team_of(of_jobs.get(vm.ref) or rule.by.of(vm))

        teams = {ref: team_now(vm) for ref, vm in in_queue.items()}
        gpus = {ref: gpus_of_vm(vm, catalog) for ref, vm in in_queue.items()}
        running = {vm.ref: vm for vm in (*in_queue.values(), *held) if vm.power is PowerState.ON}
        names = sorted({*teams.values(), *used, *(team.name for team in rule.teams)})
        weights = sum(rule.team(name).weight for name in names)
        total = sum(use.decayed for use in used.values())
        standings = []
        for name in names:
            team, use = rule.team(name), used.get(name, NO_USE)
            runs = sum(gpus_of_vm(vm, catalog) for vm in running.values() if team_now(vm) == name)
            started = sum(gpus_of_vm(vm, catalog) for vm in _once(held) if team_now(vm) == name)
            used_share = use.decayed / total if total > 0 else None
            coming = started * (hours or 0.0)
            standings.append(TeamStanding(team, team.weight / weights, use, used_share, runs, coming))
        return cls(rule, tuple(standings), teams, gpus, hours, tuple(_unclear(rule, in_queue.values(), teams)))

    def standing(self, vm: Vm) -> TeamStanding:
        name = self.team_by_vm[vm.ref]
        return next(each for each in self.standings if each.team.name == name)

    def ordered(self, queue: Sequence[WaitingVm]) -> tuple[WaitingVm, ...]:
        """The queue in the order in which it is served: by priority, then by fair share; each with its team and rank,
        and what is said of it where it finds no room. Those that do not start anyway come first of their priority."""
        counted = {waits.vm.ref for waits in within_counts(queue) if waits.vm is not None}
        had = {each.team.name: each.use.decayed + each.coming_hours for each in self.standings}
        found: list[WaitingVm] = []
        for _, of_priority in groupby(queue, key=lambda waits: waits.queued.priority):
            members = [
                replace(waits, team=self.team_by_vm[waits.vm.ref]) if waits.vm is not None else waits
                for waits in of_priority
            ]
            waiting = [waits for waits in members if waits.vm is not None and not waits.reason]
            found += [waits for waits in members if waits.vm is None or waits.reason]
            wishes = [Wish(waits.team, self._hours(waits.vm) if waits.vm.ref in counted else 0.0)
                      for waits in waiting if waits.vm is not None]  # fmt: skip
            order = fair_order(wishes, had, lambda name: self.rule.team(name).weight)
            several = len({waits.team for waits in waiting}) > 1
            by_team = groupby((waiting[at] for at in order), key=lambda waits: waits.team)
            for rank, (_, following) in enumerate(by_team, 1):
                found += [replace(waits, rank=rank, note=self._note(waits) if several else "") for waits in following]
            for wish in wishes:  # a lower priority comes after all of this was served
                had[wish.team] += wish.hours
        return tuple(found)

    def held_back(self, started: Sequence[Vm], vm: Vm) -> str:
        """Why the VM may not start beside those that start before it, by what its team may have at the most; empty =
        it may."""
        standing = self.standing(vm)
        team, wanted = standing.team, self.gpus[vm.ref]
        beside = sum(self.gpus[each.ref] for each in started if self.team_by_vm[each.ref] == team.name)
        runs = standing.running_gpus + beside
        if team.gpus is not None and runs + wanted > team.gpus + _ROUNDING:
            more = f", and this VM takes {wanted:g}" if runs < team.gpus else ""
            return f"team {team.name} has {runs:g} of {team.gpus:g} GPUs at once{more}"
        return self._hours_reached(standing, beside, wanted)

    def _hours_reached(self, standing: TeamStanding, beside: float, wanted: float) -> str:
        team, used = standing.team, standing.use.week
        if team.gpu_hours is None:
            return ""
        told = f"team {team.name} has used {used:.4g} of {team.gpu_hours:.4g} GPU-hours of the last 7 days"
        if used >= team.gpu_hours:
            return told
        if self.hours is None:
            return ""  # nobody knows how long it would run
        before, own = standing.coming_hours + beside * self.hours, wanted * self.hours
        if used + before + own <= team.gpu_hours + _ROUNDING:
            return ""
        others = f", what runs and starts before it may take {before:.4g}" if before else ""
        return f"{told}{others}, and this VM {own:.4g} tonight"

    def _hours(self, vm: Vm) -> float:
        """GPU-hours that it may use tonight."""
        length = NO_WINDOW.total_seconds() / 3600 if self.hours is None else self.hours
        return self.gpus[vm.ref] * length

    def _note(self, waits: WaitingVm) -> str:
        standing = next(each for each in self.standings if each.team.name == waits.team)
        had = "nothing" if standing.used_share is None else f"{standing.used_share:.0%}"
        return f"fair share: team {waits.team} has had {had} of late, its share is {standing.share:.0%}"


def _once(vms: Iterable[Vm]) -> Iterable[Vm]:
    return {vm.ref: vm for vm in vms}.values()


def _unclear(rule: FairShare, vms: Iterable[Vm], teams: Mapping[str, str]) -> Iterable[str]:
    vms = tuple(vms)
    nobodys = [vm.name for vm in vms if teams[vm.ref] == NO_OWNER]
    if nobodys:
        yield f"{_names(nobodys)}: no owner ({rule.by}); served as team {NO_OWNER}"
    for vm in vms:
        if rule.by.of_several(vm) and teams[vm.ref] == team_of(rule.by.of(vm)):
            yield f"{vm.name}: several owners ({rule.by}); served as a team of its own, {teams[vm.ref]!r}"


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"
