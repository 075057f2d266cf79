"""Divides the GPUs of a night among the teams of the queue, if the policy has `fair_share`. `night.py` calls it.

It computes what each team has used, what it runs and what it may still use, the order in which VMs are tried, and which
of them are held back. GPUs are counted by size: a vGPU of which four fit on a GPU is 0.25.

The higher priority of the policy is still served first. Within a priority, `advise/fair_share.py` orders the VMs; a VM
without room does not block others. Consecutive VMs of one team have the same rank: among them the night chooses as it
does without teams.

A start never exceeds the limits of a team. For GPU-hours, all running VMs are assumed to run until desktops are due.
Nothing is stopped because of a limit, and no return waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import Final

from gpuops.advise.gpu_hours import NO_USE, TeamUse, Wish, fair_order, owner_in, use_by_team, vm_now
from gpuops.advise.occupancy import GpuState, gpu_states
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import GraphicsType
from gpuops.model.nights.fair_share import NO_OWNER, FairShare, Team, team_of
from gpuops.model.nights.history import PastNight
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.rejection import some_names
from gpuops.plan.core.steps import PowerOnVm, ShutDownGuest, Step, SuspendVm
from gpuops.plan.rotation.ml_queue.ml_vms import ASSUMED_NIGHT, WaitingVm, limit_to_counts
from gpuops.plan.rotation.nights.bounds import Bounds


def gpus_of(profiles: Sequence[str], catalog: Catalog) -> float | None:
    """Return the GPUs that these profiles amount to; None for no profiles, or if the catalogue lacks one of them.

    >>> gpus_of((), Catalog()) is None
    True
    """
    return _sum_of_shares(profiles, catalog) if profiles else None


def gpus_of_vm(vm: Vm, catalog: Catalog) -> float:
    """Return the GPUs that the devices of a VM amount to; profiles that the catalogue lacks do not count."""
    profiles = [catalog.profile(device.profile) for device in vm.vgpus]
    complete_gpus = len(vm.devices or ()) - len(profiles)  # every device that is not a vGPU
    return complete_gpus + sum(1 / profile.max_per_gpu for profile in profiles if profile is not None)


def free_gpus(steps: Iterable[Step], inventory: Inventory, catalog: Catalog) -> Mapping[str, float | None]:
    """Map each host (ref) of these steps of a night to its free GPUs before the night; None = it is unknown."""
    hosts: dict[str, None] = {}  # each once, in the order of the steps
    for step in steps:
        if isinstance(step, SuspendVm | ShutDownGuest | PowerOnVm):
            host = (step.host if isinstance(step, PowerOnVm) else None) or inventory.vms[step.vm].host
            if host is not None and host in inventory.hosts:
                hosts[host] = None
    free_by_host = {}
    for ref in hosts:
        states = gpu_states(inventory.hosts[ref], inventory, catalog)
        parts = [free_of(state, catalog) for state in states if serves_vgpus(state)]
        free_by_host[ref] = None if None in parts else sum(part for part in parts if part is not None)
    return free_by_host


def serves_vgpus(state: GpuState) -> bool:
    serves = not state.gpu.passed_through and not state.gpu.vgpu_obstacle
    return serves and state.gpu.graphics_type in (GraphicsType.SHARED_DIRECT, None)


def free_of(state: GpuState, catalog: Catalog) -> float | None:
    """Return the free part of the GPU, 0 to 1; None = it is unknown."""
    if state.holders is None or state.gpu.graphics_type is None:
        return None
    used = _sum_of_shares(state.holders, catalog)
    return None if used is None else max(1 - used, 0.0)


def _sum_of_shares(profiles: Sequence[str], catalog: Catalog) -> float | None:
    known_profiles = [profile for name in profiles if (profile := catalog.profile(name)) is not None]
    if len(known_profiles) < len(profiles):
        return None
    return sum(1 / profile.max_per_gpu for profile in known_profiles)


_ROUNDING: Final = 1e-6
"""Tolerance, because sums of thirds of GPUs are not exact."""


@dataclass(frozen=True, slots=True)
class TeamStanding:
    """One team before the night's starts."""

    team: Team
    share: float
    """Its weight as a fraction of the weights of all teams here, 0 to 1."""
    use: TeamUse = NO_USE
    used_share: float | None = None
    """Its fraction of the recent use of all teams, 0 to 1; None = nothing was used."""
    running_gpus: float = 0.0
    """GPUs of its running VMs: those of the queue and those that a night or a watch has started."""
    coming_hours: float = 0.0
    """GPU-hours that its started VMs may still use until desktops are due; 0 without a window."""

    @property
    def hours_left(self) -> float | None:
        """Remaining GPU-hours; None = unlimited."""
        most_hours = self.team.at_most.gpu_hours_per_week
        if most_hours is None:
            return None
        return max(0.0, most_hours - self.use.week - self.coming_hours)


@dataclass(frozen=True, slots=True)
class TeamShares:
    """The teams, and the team of each VM of the queue."""

    rule: FairShare
    standings: tuple[TeamStanding, ...]
    """The teams with a VM in the queue, with use, or in the policy, by name."""
    team_by_vm: Mapping[str, str]
    """VM ref -> its team, for VMs of the queue."""
    gpus: Mapping[str, float]
    """VM ref -> the GPUs that its devices amount to."""
    hours: float | None
    """Hours from now until desktops are due; None = the policy has no windows."""
    unclear: tuple[str, ...] = ()
    """Remarks on VMs without an owner, or with several."""

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
        """Return the teams of this night. `past`: the nights whose use counts, and whose VMs may still run."""
        past, night = tuple(past), bounds.night
        hours = None if night is None else max(0.0, (night.back_by - bounds.now).total_seconds() / 3600)
        # 1. The VMs of the queue, and those that nights have started and that still run, each once. Without an end of
        #    its last use, a VM may still run.
        in_queue = {waits.vm.ref: waits.vm for waits in queue if waits.vm is not None}
        started_vms: dict[str, Vm] = {}
        for past_run in chain.from_iterable(past_night.ml for past_night in past):
            vm = vm_now(past_run, inventory) if past_run.held[-1].ends is None else None
            if vm is not None and vm.power is PowerState.ON:
                started_vms[vm.ref] = vm
        running_vms = {ref: vm for ref, vm in in_queue.items() if vm.power is PowerState.ON} | started_vms
        # 2. Their teams: by the owner of the job that a VM runs, else by the marks of the VM.
        job_owners = {waits.vm.ref: waits.queued.owner for waits in queue if waits.vm is not None}
        team_by_vm = {
            ref: team_of(job_owners.get(ref) or rule.by.of(vm)) for ref, vm in (in_queue | running_vms).items()
        }
        teams_in_queue = {ref: team_by_vm[ref] for ref in in_queue}
        gpus = {ref: gpus_of_vm(vm, catalog) for ref, vm in (in_queue | running_vms).items()}
        # 3. What each team has used, and what its started VMs may still use until desktops are due.
        use_of_teams = use_by_team(past, owner_in(inventory, rule.by), bounds.now, rule.half_life)
        names = sorted({*teams_in_queue.values(), *use_of_teams, *(team.name for team in rule.teams)})
        all_weights = sum(rule.team(name).weight for name in names)
        all_use = sum(use.decayed for use in use_of_teams.values())
        standings = []
        for name in names:
            team, use = rule.team(name), use_of_teams.get(name, NO_USE)
            running_gpus = sum(gpus[ref] for ref in running_vms if team_by_vm[ref] == name)
            started_gpus = sum(gpus[ref] for ref in started_vms if team_by_vm[ref] == name)
            used_share = use.decayed / all_use if all_use > 0 else None
            coming_hours = started_gpus * (hours or 0.0)
            standings.append(TeamStanding(team, team.weight / all_weights, use, used_share, running_gpus, coming_hours))
        unclear = tuple(_notes_on_owners(rule, in_queue.values(), teams_in_queue))
        gpus_in_queue = {ref: gpus[ref] for ref in in_queue}
        return cls(rule, tuple(standings), teams_in_queue, gpus_in_queue, hours, unclear)

    def standing(self, vm: Vm) -> TeamStanding:
        name = self.team_by_vm[vm.ref]
        return next(standing for standing in self.standings if standing.team.name == name)

    def order_queue(self, queue: Sequence[WaitingVm]) -> tuple[WaitingVm, ...]:
        """Return the queue in the order in which it is served: by priority, then by fair share.

        Each VM gets its team, its rank and a note for the case that there is no room. VMs that do not start anyway come
        first within their priority.
        """
        within_count = {waits.vm.ref for waits in limit_to_counts(queue) if waits.vm is not None}
        hours_of_night = ASSUMED_NIGHT.total_seconds() / 3600 if self.hours is None else self.hours
        used_hours = {standing.team.name: standing.use.decayed + standing.coming_hours for standing in self.standings}
        ordered: list[WaitingVm] = []
        for _, of_priority in groupby(queue, key=lambda waits: waits.queued.priority):
            waiting: list[WaitingVm] = []
            wishes: list[Wish] = []
            for waits in of_priority:
                vm = waits.vm
                if vm is None:
                    ordered.append(waits)
                    continue
                waits = replace(waits, team=self.team_by_vm[vm.ref])
                if waits.reason:
                    ordered.append(waits)
                    continue
                waiting.append(waits)
                # A VM beyond the count of its entry does not start, so it uses nothing of its team's share.
                uses_hours = self.gpus[vm.ref] * hours_of_night if vm.ref in within_count else 0.0
                wishes.append(Wish(waits.team, uses_hours))
            order = fair_order(wishes, used_hours, lambda name: self.rule.team(name).weight)
            has_several_teams = len({waits.team for waits in waiting}) > 1
            # VMs of one team that follow each other share a rank: proposals may change their order, but no other.
            by_team = groupby((waiting[at] for at in order), key=lambda waits: waits.team)
            for rank, (_, following) in enumerate(by_team, 1):
                for waits in following:
                    note = self._note(waits) if has_several_teams else ""
                    ordered.append(replace(waits, rank=rank, note=note))
            for wish in wishes:  # lower priorities are served after all of these
                used_hours[wish.team] += wish.hours
        return tuple(ordered)

    def held_back(self, started: Sequence[Vm], vm: Vm) -> str:
        """Return why the limits of its team hold the VM back, given the VMs that start before it; empty = it may
        start."""
        standing = self.standing(vm)
        team, needed_gpus = standing.team, self.gpus[vm.ref]
        starting_gpus = sum(self.gpus[earlier.ref] for earlier in started if self.team_by_vm[earlier.ref] == team.name)
        busy_gpus = standing.running_gpus + starting_gpus
        if team.at_most.gpus is not None and busy_gpus + needed_gpus > team.at_most.gpus + _ROUNDING:
            this_vm = f", and this VM takes {needed_gpus:g}" if busy_gpus < team.at_most.gpus else ""
            return f"team {team.name} has {busy_gpus:g} of {team.at_most.gpus:g} GPUs at once{this_vm}"
        return self._hours_reached(standing, starting_gpus, needed_gpus)

    def _hours_reached(self, standing: TeamStanding, starting_gpus: float, needed_gpus: float) -> str:
        """Return the weekly limit of GPU-hours that the VM would exceed; empty = none."""
        team, used, most_hours = standing.team, standing.use.week, standing.team.at_most.gpu_hours_per_week
        if most_hours is None:
            return ""
        use_text = f"team {team.name} has used {used:.4g} of {most_hours:.4g} GPU-hours of the last 7 days"
        if used >= most_hours:
            return use_text
        if self.hours is None:
            return ""  # it is unknown how long it would run
        hours_before, vm_hours = standing.coming_hours + starting_gpus * self.hours, needed_gpus * self.hours
        if used + hours_before + vm_hours <= most_hours + _ROUNDING:
            return ""
        other_text = f", VMs that run or start before it may use {hours_before:.4g}" if hours_before else ""
        return f"{use_text}{other_text}, and this VM {vm_hours:.4g} tonight"

    def _note(self, waits: WaitingVm) -> str:
        standing = next(candidate for candidate in self.standings if candidate.team.name == waits.team)
        use_text = "nothing" if standing.used_share is None else f"{standing.used_share:.0%}"
        return f"fair share: team {waits.team} has had {use_text} recently, its share is {standing.share:.0%}"


def _notes_on_owners(rule: FairShare, vms: Iterable[Vm], teams: Mapping[str, str]) -> Iterable[str]:
    """Yield a remark on the VMs without an owner, and on each VM with several. `teams`: VM ref -> its team."""
    vms = tuple(vms)
    unowned = [vm.name for vm in vms if teams[vm.ref] == NO_OWNER]
    if unowned:
        yield f"{some_names(unowned)}: no owner ({rule.by}); served as team {NO_OWNER}"
    for vm in vms:
        if rule.by.of_several(vm) and teams[vm.ref] == team_of(rule.by.of(vm)):
            yield f"{vm.name}: several owners ({rule.by}); served as a team of its own, {teams[vm.ref]!r}"
