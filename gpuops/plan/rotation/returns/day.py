"""The request that brings back everything that nights took. `restore.py` limits it to named VMs.

`execute` carries it out. ML VMs save their work and stop, then desktops resume, then the markers are cleared.

A night reserves time for its return, which includes the time that ML VMs may take for a checkpoint. A return that
begins later than planned has less: it divides the time until the desktops are due, without the time for stops and
resumes, evenly among the rounds of stops. If nothing remains, no checkpoint is taken, and the plan warns whose work is
lost: desktops come first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from gpuops.advise.managed_vms import lending_reason, manager_of
from gpuops.errors import NoFreeGpu
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PhysicalGpu
from gpuops.model.nights.ml_queue import Checkpoint, GuestCommand, entry_of
from gpuops.model.nights.night_record import Original, Role
from gpuops.model.nights.rotation_policy import MorningOrder, Policy
from gpuops.model.time_text import format_clock
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm, VmDrs
from gpuops.plan.core.command_line import called, command
from gpuops.plan.core.plan import Choice, Outcome, Plan, Verdict, Wave
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.steps import (
    OpenGate,
    PowerOnVm,
    ResumeVm,
    RunInGuest,
    SetAttribute,
    ShutDownGuest,
    Step,
    SuspendVm,
)
from gpuops.plan.placement.suspended_vms import resume_or_power_on, return_order
from gpuops.plan.rotation.ml_queue.ml_vms import restore_drs
from gpuops.plan.rotation.power_moments import replaced_state_text
from gpuops.plan.rotation.returns.foreign_nights import (
    lock_vms,
    note_when_seen,
    recently_marked,
    recently_marked_refusal,
    refused_for_lease,
    split_by_lease,
    with_unknown_marker,
    with_unreadable_marker,
)
from gpuops.plan.rotation.returns.return_time import Durations, Load, ReturnTime
from gpuops.plan.rotation.taken_vms import (
    RETURN_COMMAND,
    TakenVm,
    Whereabouts,
    first_then,
    is_marked,
    power_as_before,
    power_change_under_way,
    runs_since_its_night,
    taken_vms,
    vms_of,
)
from gpuops.plan.rotation.witness import is_another_vcenter

NO_CHECKPOINT: Final = Checkpoint()
_EARLY: Final = timedelta(hours=2)
"""A return that begins this long before its window closes is not the one of the morning."""
_RETURNABLE = (Whereabouts.AWAY, Whereabouts.BACK, Whereabouts.UNTOUCHED)
_REPORTED = (Whereabouts.CHANGING, Whereabouts.LOST, Whereabouts.GONE, Whereabouts.FOREIGN, Whereabouts.UNKNOWN)


@dataclass(frozen=True, slots=True)
class RotateDay:
    """Return everything that nights took and that is not back: from the journal's originals, vCenter's markers, or
    both.

    Each VM is returned under the policy of its night, which the original has.
    """

    policy: Policy
    """The policy for originals without one, and for markers that the journal has no original for."""
    originals: tuple[Original, ...] = ()
    durations: Durations = field(default_factory=Durations)
    """Measured durations of stops and resumes, from which the time for checkpoints follows."""
    leased: Mapping[str, str] = field(default_factory=dict)
    """Name of a lock VM -> who holds its lease on another machine. The VMs under it are named and not touched."""
    suspends: frozenset[str] = frozenset()
    """ML VMs (refs) that a watch suspends with their memory; a return of the morning shuts them down instead."""

    def config_targets(self, inventory: Inventory) -> Collection[str]:
        return ()

    def plan(self, inventory: Inventory, catalog: Catalog, now: datetime) -> Plan:
        """Return the plan: checkpoint and stop ML VMs, resume desktops, restore DRS, clear the markers.

        A VM that cannot be returned is named in `unmet` with one safe command.
        """
        of_nights = taken_vms(self.policy, self.originals, inventory)
        plan = self.return_plan(of_nights, inventory, catalog, now)
        warnings = (*plan.warnings, *reverted_desktops(of_nights, plan.steps), *ended_early(of_nights, now))
        return replace(plan, warnings=warnings)

    def lock_vms(self, inventory: Inventory) -> Mapping[str, str | None]:
        """Map VM ref -> name of the lock VM whose lease is needed to return it; None = no lease is needed."""
        return lock_vms(taken_vms(self.policy, self.originals, inventory), self.policy)

    def return_plan(self, of_nights: Sequence[TakenVm], inventory: Inventory, catalog: Catalog, now: datetime) -> Plan:
        """Return the plan for these VMs of nights."""
        # VMs that another machine is working on are reported, and left out of everything below.
        of_nights, leased = split_by_lease(of_nights, self.policy, self.leased)
        away_vms = [taken_vm for taken_vm in of_nights if taken_vm.whereabouts is Whereabouts.AWAY]
        ml = [taken_vm for taken_vm in away_vms if taken_vm.original.role is Role.ML]
        desktops = [taken_vm for taken_vm in away_vms if taken_vm.original.role is not Role.ML]
        to_suspend = [ml_vm for ml_vm in ml if ml_vm.vm is not None and ml_vm.vm.ref in self.suspends]
        suspends = tuple(SuspendVm(ml_vm.vm.ref, gives_way=True) for ml_vm in to_suspend if ml_vm.vm is not None)
        to_stop = [ml_vm for ml_vm in ml if ml_vm not in to_suspend]
        waiting = [taken_vm.vm for taken_vm in desktops if taken_vm.vm is not None]
        stops = stop_ml_vms(to_stop, waiting, now, self.durations)
        canaries, seeds, other_desktops = _resume_order(desktops, inventory, catalog)
        # A step of another machine may still arrive: such a marker stays until it has been seen for ten minutes.
        recent = recently_marked(of_nights, inventory)
        # Without a journal a marker that cannot be read is the only record of its desktop, so such VMs are named.
        all_vms = (*of_nights, *leased)
        unread = () if self.originals else tuple(with_unreadable_marker(all_vms, self.policy, inventory))
        unread += tuple(with_unknown_marker(all_vms, self.policy, inventory))
        returnable = [taken_vm for taken_vm in of_nights if taken_vm.whereabouts in _RETURNABLE]
        finished = [taken_vm for taken_vm in returnable if taken_vm not in recent]
        # GPUs are free only when their ML VMs are off, so all of these stop before the first desktop resumes. The
        # markers go last: a run that is killed before has lost nothing.
        waves = (
            Wave("let the ML VMs of the night save their work", stops.hooks),
            Wave("stop the ML VMs of the night", stops.stops),
            Wave("suspend the ML VMs that free their GPUs for desktops", suspends),
            Wave("resume one desktop of each host first", _resume_steps(canaries)),
            Wave("resume one desktop for each GPU, the largest profile first", _resume_steps(seeds)),
            Wave("resume the others, the largest profile first", _resume_steps(other_desktops)),
            Wave("leave the ML VMs to DRS as before", tuple(restore_drs(finished, inventory))),
            Wave("let users in again at the broker", tuple(_open_gates(finished))),
            Wave("clear the markers", tuple(_clear_markers(finished))),
            Wave("note on markers of other machines when they were seen", note_when_seen(recent, inventory)),
        )
        # In a copy of the vCenter only desktops resume: that loses nothing.
        is_another = is_another_vcenter(self.originals, inventory)
        return Plan(
            waves=_only_resumes(waves) if is_another else tuple(wave for wave in waves if wave.steps),
            warnings=stops.warnings,
            unmet=(
                *(
                    Rejection(taken_vm.original.name, taken_vm.reason, hint=taken_vm.advice)
                    for taken_vm in of_nights
                    if taken_vm.whereabouts in _REPORTED
                ),
                *map(recently_marked_refusal, recent),
                *unread,
                *refused_for_lease(leased, self.policy, self.leased),
            ),
            because=() if of_nights or leased or unread else ("everything that nights took is back",),
            choices=(*map(_choice, of_nights), *(replace(_choice(taken_vm), chosen=False) for taken_vm in leased)),
            disruptive=bool(ml),
        )


def _only_resumes(waves: Iterable[Wave]) -> tuple[Wave, ...]:
    """Return the waves with only the steps that are safe in another vCenter: those that resume or start desktops."""
    resume_waves = (
        Wave(wave.title, tuple(step for step in wave.steps if isinstance(step, ResumeVm | PowerOnVm))) for wave in waves
    )
    return tuple(wave for wave in resume_waves if wave.steps)


def _resume_order(
    desktops: Sequence[TakenVm], inventory: Inventory, catalog: Catalog
) -> tuple[list[Vm], list[Vm], list[Vm]]:
    """Return the desktops of three waves: one of each host if the policy asks for a canary, one for each GPU, the
    others.

    The canary is the first desktop in the order of its host, so that the order in which all of them fit is kept.
    Example: of two GPUs with two desktops each, one desktop of the first GPU comes alone, then one of the second GPU,
    then the two others.
    """
    vms = [taken_vm.vm for taken_vm in desktops if taken_vm.vm is not None]
    mornings = {taken_vm.vm.ref: taken_vm.policy.morning for taken_vm in desktops if taken_vm.vm is not None}
    seeds, other_desktops = return_order(vms, inventory, catalog)
    canary_of_host: dict[str | None, Vm] = {}
    for vm in (*seeds, *other_desktops):
        if mornings[vm.ref] is MorningOrder.CANARY_FIRST:
            canary_of_host.setdefault(vm.host, vm)
    canaries = list(canary_of_host.values())
    canary_refs = {vm.ref for vm in canaries}
    seeds = [vm for vm in seeds if vm.ref not in canary_refs]
    other_desktops = [vm for vm in other_desktops if vm.ref not in canary_refs]
    return canaries, seeds, other_desktops


def _open_gates(finished: Iterable[TakenVm]) -> Iterator[OpenGate]:
    """Yield the steps that open the gates that nights closed."""
    for taken_vm in finished:
        machine, vm = taken_vm.original.gated_as, taken_vm.vm
        if machine is not None and vm is not None:
            yield OpenGate(vm.ref, machine)


def _clear_markers(finished: Iterable[TakenVm]) -> Iterator[SetAttribute]:
    """Yield the steps that clear each marker.

    For a VM that this plan brings back, the marker of its own policy is cleared even if the snapshot does not show it.
    """
    for taken_vm in finished:
        own_marker = taken_vm.policy.marker if taken_vm.whereabouts is Whereabouts.AWAY else None
        vm = taken_vm.vm
        if vm is not None:
            names = (name for name in taken_vm.markers if vm.attributes.get(name) or name == own_marker)
            yield from (SetAttribute(vm.ref, name, "") for name in names)


def reverted_desktops(of_nights: Iterable[TakenVm], steps: Iterable[Step]) -> tuple[str, ...]:
    """Return a warning for each desktop whose state is not the one that the night suspended.

    Only desktops that these steps resume, and those that run and that no return has closed yet, are considered.
    """
    resumed = {step.vm for step in steps if isinstance(step, ResumeVm)}
    candidates = (
        (taken_vm.original, taken_vm.vm)
        for taken_vm in of_nights
        if taken_vm.vm is not None
        and (
            taken_vm.vm.ref in resumed or (taken_vm.whereabouts is Whereabouts.BACK and not taken_vm.original.returned)
        )
    )
    states = ((original.name, replaced_state_text(original, vm)) for original, vm in candidates)
    return tuple(f"{name}: {description}" for name, description in states if description)


def ended_early(of_nights: Iterable[TakenVm], now: datetime) -> tuple[str, ...]:
    """Return a warning for each night that this return ends long before its window closes: it may be a mistake."""
    warnings: dict[str, None] = {}  # each once, in order
    for taken_vm in of_nights:
        night = taken_vm.policy.night_at(now)
        if taken_vm.whereabouts is not Whereabouts.AWAY or night is None or night.id != taken_vm.original.night:
            continue
        if night.closes - now >= _EARLY:
            closes = night.closes.astimezone(night.zone)
            until = f"{format_clock(closes)} {closes.tzname()}"
            warning = f"night {night.id}, open until {until}, ends with this return: it takes nothing more"
            warnings[warning] = None
    return tuple(warnings)


def _choice(taken_vm: TakenVm) -> Choice:
    return Choice(taken_vm.original.name, chosen=taken_vm.whereabouts is Whereabouts.AWAY, reason=taken_vm.reason)


def _resume_steps(desktops: Sequence[Vm]) -> tuple[ResumeVm | PowerOnVm, ...]:
    return tuple(resume_or_power_on(vm) for vm in desktops)


def is_returned(original: Original, inventory: Inventory) -> bool:
    """Return whether a VM is as it was before the night, so that the journal may close it."""
    vms = vms_of(original, inventory)
    vm = vms[0] if len(vms) == 1 else None
    if vm is None or vm.power is None or original.contradiction or power_change_under_way(vm) is not None:
        return False
    if original.unsure and power_as_before(original, vm):
        return False  # a request of the night whose reply was lost may still change its power
    if original.gated_as is not None and not (vm.gate is not None and vm.gate.closed is False):
        return False  # the broker still keeps its user away
    if original.closes_late:
        return False  # a gate close whose outcome is unknown may still arrive and close it again
    if original.role is Role.ML:
        if original.drs is not None and inventory.drs_of(vm) in (VmDrs.MANUAL, None):
            return False  # the night's DRS override is still set, or cannot be read
        was_stopped = original.stopped and not runs_since_its_night(original, vm)
        # The night started it, and no person or manager has taken it over since.
        belongs_to_night = original.taken and not was_stopped and manager_of(vm) is None
        return vm.power is not PowerState.ON or not belongs_to_night
    # A guest may shut down long after the step counted as failed: while the VM is marked, the night may have done it.
    return vm.power is PowerState.ON or not (original.taken or is_marked(vm))


def add_advice(
    outcomes: Iterable[Outcome], after: Inventory, originals: Iterable[Original] = (), *, is_named: bool = False
) -> tuple[Outcome, ...]:
    """Return the outcomes, with what to do first and one command added for each desktop that is not back.

    `originals`: the state of VMs before their nights, from the journal. `is_named`: the VM was requested by name
    (`rotate restore`), so the command names it too.
    """
    known_originals = tuple(originals)
    return tuple(_with_advice(outcome, after, known_originals, is_named) for outcome in outcomes)


def _with_advice(outcome: Outcome, after: Inventory, originals: Sequence[Original], is_named: bool) -> Outcome:
    """Return the outcome with what to do next, if a resume or a start of a desktop failed."""
    not_done = outcome.verdict in (Verdict.FAILED, Verdict.UNKNOWN, Verdict.SKIPPED)
    if not (not_done and isinstance(outcome.step, ResumeVm | PowerOnVm)):
        return outcome
    vm = after.vms.get(outcome.step.vm)
    host = after.host_of(vm) if vm else None
    # After a resume that failed, a VM that is off has lost its suspended state: no retry brings that back.
    lost_its_state = isinstance(outcome.step, ResumeVm) and vm is not None and vm.power is PowerState.OFF
    if vm is None or host is None or lost_its_state:
        return replace(outcome, reason=f"{outcome.reason}; gpuops rotate status shows what to do")
    lacks_gpu = outcome.fault == NoFreeGpu.code
    first_advice = _gpu_advice(vm, host, after, originals) if lacks_gpu else _other_advice(outcome, host, after)
    retry_command = command("rotate restore", vm=called(vm)) if is_named else RETURN_COMMAND
    return replace(outcome, reason=f"{outcome.reason}; {first_then(first_advice, retry_command)}")


def _gpu_advice(vm: Vm, host: Host, after: Inventory, originals: Sequence[Original]) -> str:
    """Return what to do first if the host has no free GPU for the VM.

    If the host no longer offers the profile, or a GPU is in another vGPU mode than at night, no other VM is the cause:
    the advice is then to restore the host. The mode of a GPU that VMs use cannot be set: they are named.
    """
    missing = [profile for profile in vm.profiles if host.profiles is not None and host.offers(profile) is None]
    if missing:
        return f"{host.name} no longer offers {missing[0]}: restore its vGPU driver and its earlier GPU modes"
    gpus = {str(gpu.address): gpu for gpu in host.gpus}
    nights = {original.night for original in originals if original.vm == vm.ref and not original.returned}
    originals_of_host = [original for original in originals if original.night in nights and original.host == host.ref]
    modes_at_night = {gpu_mode for original in originals_of_host for gpu_mode in original.gpu_modes}
    for address, mode in sorted(modes_at_night):
        gpu = gpus.get(address)
        if gpu is not None and gpu.vgpu_mode not in (mode, None):
            names = _names_on([gpu], after)
            in_use = f" (in use by {', '.join(names)})" if names else ""
            change = f"is in mode {gpu.vgpu_mode}, and was in {mode} at night"
            return f"GPU {address} of {host.name} {change}: set it back{in_use}"
    holders = _names_on(host.gpus, after)
    return f"the GPUs of {host.name} are held by {', '.join(holders)}: free one" if holders else "correct that"


def _other_advice(outcome: Outcome, host: Host, after: Inventory) -> str:
    """Return what to do first after another fault.

    The vGPU plugin reports the same fault for missing GPUs and for other causes. The advice then names the VMs on the
    GPUs, but does not ask to free one.
    """
    holders = _names_on(host.gpus, after) if "vGPU" in outcome.reason else []
    return f"correct that ({', '.join(holders)} hold the GPUs of {host.name})" if holders else "correct that"


def _names_on(gpus: Iterable[PhysicalGpu], after: Inventory) -> list[str]:
    """Return the sorted names of the VMs on these GPUs."""
    on_gpus = {ref for gpu in gpus for ref in gpu.vms or ()}
    return sorted(after.vms[ref].name if ref in after.vms else ref for ref in on_gpus)


@dataclass(frozen=True, slots=True)
class MlStops:
    """The steps that stop ML VMs, and a warning for each that gets less time than its policy allows or lends its
    GPU."""

    hooks: tuple[RunInGuest, ...]
    stops: tuple[ShutDownGuest, ...]
    warnings: tuple[str, ...]


def stop_ml_vms(ml: Sequence[TakenVm], desktops: Sequence[Vm], now: datetime, durations: Durations) -> MlStops:
    """Return the steps that stop these ML VMs, each under its own policy, early enough for these desktops to be
    back."""
    policies = dict.fromkeys(taken_vm.policy for taken_vm in ml)
    longest_s = {policy: _longest_grace_s(policy, ml, desktops, now, durations) for policy in policies}
    hooks, stops, warnings = [], [], []
    for taken_vm in ml:
        if taken_vm.vm is None:
            continue
        ref, name, policy = taken_vm.vm.ref, taken_vm.original.name, taken_vm.policy
        stop_rule, longest_grace_s = policy.ml_stop, longest_s[policy]
        if lending := lending_reason(taken_vm.vm):
            # it lends its GPUs to clients, but desktops come first, so it is stopped
            drain_command = command("pool reclaim", server=taken_vm.vm.name)
            warnings.append(
                f"{name} {lending}, and its clients lose it at once: run `{drain_command}` before the return to drain "
                "it"
            )
        # an entry of the queue may name the managed object id that the VM had when it was taken
        checkpoint = checkpoint_of(policy, replace(taken_vm.vm, ref=taken_vm.original.vm), name)
        grace_s = checkpoint.grace_s if longest_grace_s is None else min(checkpoint.grace_s, longest_grace_s)
        if grace_s < checkpoint.grace_s:
            warnings.append(f"{name}: {grace_s} s to save its work, not {checkpoint.grace_s} s: the return is late")
        if checkpoint.withheld is not None:
            warnings.append(
                f"{name}: gpuops does not run {checkpoint.withheld.program} before it stops the VM: the command is in "
                "a shared journal, but not in a policy file of this machine that only its user can write"
            )
        if checkpoint.hook is None:
            # no command keeps its work: the guest does it while it shuts down, and gets the time for that
            stops.append(ShutDownGuest(ref, stop_rule.grace_s + grace_s, stop_rule.then_off))
            continue
        stops.append(ShutDownGuest(ref, stop_rule.grace_s, stop_rule.then_off))
        if grace_s > 0:
            hooks.append(replace(_hook_step(ref, name, checkpoint.hook), limit_s=grace_s))
    return MlStops(tuple(hooks), tuple(stops), tuple(warnings))


def checkpoint_of(policy: Policy, vm: Vm, earlier_name: str = "") -> Checkpoint:
    """Return the checkpoint of the queue entry for this VM, which had the name `earlier_name` when it was taken."""
    queued_vm = entry_of(policy.ml, vm, earlier_name)
    return queued_vm.checkpoint if queued_vm is not None else NO_CHECKPOINT


def hooks_of(policy: Policy, steps: Iterable[Step], inventory: Inventory) -> tuple[RunInGuest, ...]:
    """Return the commands that `rotate day` will run in the guests of the ML VMs that these steps start."""
    started = {step.vm: inventory.vm(step.vm) for step in steps if isinstance(step, PowerOnVm)}
    hooks = ((vm, checkpoint_of(policy, vm).hook) for vm in started.values())
    return tuple(_hook_step(vm.ref, vm.name, hook) for vm, hook in hooks if hook is not None)


def _hook_step(ref: str, name: str, hook: GuestCommand) -> RunInGuest:
    return RunInGuest(ref, hook.program, hook.arguments, ssh=hook.ssh.of(name) if hook.ssh is not None else None)


def _longest_grace_s(
    policy: Policy, ml: Sequence[TakenVm], desktops: Sequence[Vm], now: datetime, durations: Durations
) -> int | None:
    """Return the longest grace that each ML VM can have, in seconds; None = no desktop waits, or there is no window.

    Example: desktops are due in 60 minutes, stops and resumes take 50, and the ML VMs stop in two rounds: 300 s each.
    """
    if not desktops or not ml or not policy.windows:
        return None
    night = policy.night_at(now)
    if night is None:
        return 0  # the desktops are late already
    # The load is built without checkpoint grace, so the time that is not needed is the grace that this returns.
    load = Load.of(desktops, (taken_vm.vm.host if taken_vm.vm else None for taken_vm in ml))
    return_time = ReturnTime(policy, durations, night.back_by)
    needed = max(return_time.time_needed(vm.host, load) for vm in desktops)
    spare_s = (night.back_by - now - needed).total_seconds()
    return max(0, int(spare_s) // return_time.stop_rounds(load))
