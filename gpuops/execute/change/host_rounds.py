"""Takes a round of hosts through a change: emptied, set, rebooted, looked at, and filled again.

Every part is skipped that vCenter shows as done, so a round that was cut off is resumed by going through it again.
A host that is not as it should be ends the change: it stays as it is, with what to do; nothing is tried twice on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuops.execute.change.change_order import ChangeOrder
from gpuops.execute.change.history import History, taken_from
from gpuops.execute.change.host_tasks import UNCONNECTED, HostTaskExecutor
from gpuops.execute.journal import IntentState
from gpuops.execute.lease.lease_set import lease_for_all_vms
from gpuops.execute.site import Site, catalog_of
from gpuops.execute.steps.host_executor import GONE, SettingExecutor
from gpuops.execute.steps.plan_executor import execute
from gpuops.execute.steps.vm_executor import VmExecutor
from gpuops.model.devices.device_mode import ConfigureImpact
from gpuops.model.nights.rotation import Limits
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.command_line import command
from gpuops.plan.core.plan import Outcome, Plan, Rejection, Verdict
from gpuops.plan.core.steps import EndTurn, EnterMaintenance, HostStep, HostTask, LeaveMaintenance, RebootHost
from gpuops.plan.hosts.change.emptying import leaving, returning
from gpuops.plan.hosts.change.in_force import gpus_not_listed, lost_mig_modes, not_in_force, task_satisfied
from gpuops.plan.hosts.change.rolling_plan import PlannedHost, planned_together
from gpuops.plan.hosts.host_plan import kept_as_they_are

DRIVER_S: Final = 600.0
"""So long after its boot a host's driver may take to list its GPUs."""

DRIVER_LOOK_S: Final = 30.0

_GOOD: Final = (Verdict.DONE, Verdict.ALREADY)

Told = Callable[[str], None]
"""Called with a line for people as the change goes on."""


@dataclass(slots=True)
class HostRounds:
    """The rounds of one change, on one site."""

    site: Site
    order: ChangeOrder
    executor: HostTaskExecutor
    told: Told = lambda line: None
    wrong: dict[str, str] = field(default_factory=dict)
    """By host, what went wrong on it."""
    half_set: set[str] = field(default_factory=set)
    """Hosts that may need a reboot for what was set on them before their setting ended in an error."""

    def take(self, steps: Sequence[HostStep]) -> list[Outcome[HostStep]]:
        """What became of these hosts, begun by the latest look, which the caller has just made.

        Raises NotConnected and StateDamaged: the change can be gone on with.
        """
        history = self.history()
        there = self.executor.inventory.hosts
        self.wrong |= {step.host: GONE for step in steps if step.host not in there}
        going = [step for step in steps if step.host in there and not self._rebooted(step, history)]
        fresh = [step for step in going if step.host not in history.reboots]
        self.wrong |= {step.host: UNCONNECTED for step in fresh if there[step.host].connected is not True}
        fresh = [step for step in fresh if step.host not in self.wrong]
        refused = self._empty(fresh) if fresh else None
        if refused is not None:
            begun = [step for step in steps if step.host in history.begun]
            self.wrong |= {step.host: refused for step in begun}
            return [self._end(step) if step in begun else Outcome(step, Verdict.SKIPPED, refused) for step in steps]
        asked = self._set([step for step in fresh if step.host not in self.wrong])
        again = [history.reboots[step.host] for step in going if step.host in history.reboots]
        self._tasks([*asked, *again], "reboots")
        self._look_at([step for step in steps if step.host not in self.wrong])
        return [self._end(step) for step in steps]

    def give_up(self, steps: Sequence[HostStep]) -> list[Outcome[HostStep]]:
        """These hosts in service again as they are, their VMs back on them; whatever was to be set on them.

        A reboot that was asked for is waited for: a host that still boots serves nobody.
        """
        history = self.history()
        booting = [step for step in steps if step.host in history.reboots and not self._rebooted(step, history)]
        if booting:
            self._say(booting, "still boots, and is waited for")
            self.wrong.update(self.executor.wait_for_sent([history.reboots[step.host] for step in booting]))
        for step in booting:
            if step.host not in self.wrong:
                self._wait_for_driver(step)
        return [self._end(step) for step in steps]

    def history(self) -> History:
        """What the journal says has happened so far."""
        return self.executor.history()

    # its parts

    def _empty(self, steps: Sequence[HostStep]) -> str | None:
        """Why none of these hosts is touched; None = their VMs are gone, but for those of hosts that are wrong now.

        By the latest look, with which `take` was begun.
        """
        inventory = self.executor.inventory
        found = planned_together(steps, self.order.rolling, inventory, catalog_of(inventory))
        refusals = [str(each) for each in found if isinstance(each, Rejection)]
        if refusals:
            return "; ".join(refusals)
        hosts = [each for each in found if isinstance(each, PlannedHost)]
        away = [each for planned in hosts for each in planned.away]
        self._say(steps, f"{len(away)} VMs leave" if away else "no VM is in the way")
        for outcome in self._vms(leaving(away), inventory):
            if outcome.verdict not in _GOOD:
                vm = inventory.vm(outcome.step.vm)
                self.wrong.setdefault(vm.host or "", f"{vm.name} did not leave it: {outcome.reason}")
        return None

    def _set(self, steps: Sequence[HostStep]) -> list[RebootHost]:
        """Sets these hosts, out of service; the reboots that this calls for."""
        mode = self.order.rolling.vsan_mode
        self._tasks([EnterMaintenance(step.host, mode) for step in steps], "enters maintenance mode")
        inventory = self.executor.inventory
        booted = {step.host: host.booted for step in steps if (host := inventory.hosts.get(step.host)) is not None}
        setting = self._setting(inventory)
        for step in steps:
            # who was suspended there meanwhile would meet another driver or scheduler when he comes back
            host = inventory.hosts.get(step.host)
            kept = next(kept_as_they_are(host, inventory), None) if host is not None else GONE
            if kept is not None:
                self.wrong.setdefault(step.host, str(kept))
            elif step.host not in self.wrong and (done := setting.set(step)).verdict not in _GOOD:
                self.wrong[step.host] = f"it was not set: {done.reason}"
        self.half_set |= setting.half_set
        set_ = [step for step in steps if step.host not in self.wrong]
        return [RebootHost(step.host, booted[step.host]) for step in set_ if self._reboots(step, setting)]

    def _reboots(self, step: HostStep, setting: SettingExecutor) -> bool:
        """Whether the setting takes a reboot: not where vCenter said that it takes none, and shows it in force.

        Of a host that was set by a run which was cut off, nobody knows any more what vCenter said: it is rebooted.
        """
        told = setting.impacts.get(step.host)
        if told is None or ConfigureImpact.REBOOT in told:
            return True
        host = self._with_settings(step)
        if host is None or self._not_in_force(step, host) is not None:
            return True
        self._say([step], "needs no reboot, as vCenter says")
        return False

    def _look_at(self, steps: Sequence[HostStep]) -> None:
        """Waits for the GPUs' driver, and then sees whether the setting is in force."""
        for step in steps:
            host, missing = self._wait_for_driver(step)
            if host is None:
                self.wrong[step.host] = GONE
            elif missing:
                self.wrong[step.host] = f"its driver does not list GPU {', '.join(missing)} since its reboot"
            elif (reason := self._not_in_force(step, host)) is not None:
                self.wrong[step.host] = f"it is back, and {reason}"
            else:
                back = "back, and as it was set" if step.host in self.history().reboots else "as it was set"
                self.told(f"{self.order.names[step.host]}: {back}")

    def _wait_for_driver(self, step: HostStep) -> tuple[Host | None, list[str]]:
        """(the host, None where it is gone from vCenter; the GPUs that its driver does not list in good time)."""
        host, waited_s = self._with_settings(step), 0.0
        while host is not None and (missing := self._undriven(step, host)) and waited_s < DRIVER_S:
            self.executor.rest(step.host, DRIVER_LOOK_S)
            waited_s += DRIVER_LOOK_S
            host = self._with_settings(step)
        return host, missing if host is not None else []

    def _not_in_force(self, step: HostStep, host: Host) -> str | None:
        return not_in_force(step, host) or lost_mig_modes(self.order.mig.get(step.host, ()), host)

    def _with_settings(self, step: HostStep) -> Host | None:
        """The host with its settings, looked at anew; None = it is gone from vCenter."""
        self.executor.inventory = self.executor.hosts.with_settings(self.executor.look(), [step.host])
        return self.executor.inventory.hosts.get(step.host)

    def _undriven(self, step: HostStep, host: Host) -> list[str]:
        return [str(each) for each in gpus_not_listed(step, self.order.gpus.get(step.host, ()), host)]

    def _end(self, step: HostStep) -> Outcome[HostStep]:
        """The host serves VMs again, and has its own back; one that is wrong stays out of service if it was rebooted,
        or was set in part and may need to be."""
        reason = self.wrong.get(step.host)
        host = self.executor.look().hosts.get(step.host)
        if host is None or host.connected is not True:
            gone = GONE if host is None else UNCONNECTED
            stays = "in maintenance mode" if host is not None and host.in_maintenance else "as it is"
            again = command("change abandon", host=self.order.names[step.host])
            reason = f"{reason or gone}; it stays {stays}; if it never comes back: {again}"
            return Outcome(step, Verdict.FAILED, reason)
        rebooted = step.host in self.history().reboots  # asked for for all that is known
        if reason is not None and (rebooted or step.host in self.half_set):
            return Outcome(step, Verdict.FAILED, f"{reason}; it stays in maintenance mode")
        self._tasks([LeaveMaintenance(step.host)], "leaves maintenance mode")
        late = self.wrong.get(step.host)
        if late is not None and reason is None:
            return Outcome(step, Verdict.FAILED, late)
        missing, notes = self._bring_back(step.host)
        if reason is not None or missing:
            return Outcome(step, Verdict.FAILED, "; ".join([*([reason] if reason else []), *missing]))
        op_id = self.executor.journal.intend(self.executor.run, EndTurn(step.host), self.executor.inventory)
        self.executor.journal.record_outcome(op_id, IntentState.DONE)
        self._say([step], "done")
        return Outcome(step, Verdict.DONE, "; ".join(notes))

    def _bring_back(self, host: str) -> tuple[list[str], tuple[str, ...]]:
        """(each VM that is not back, and why; what was left as somebody made it), by the latest look."""
        taken, inventory = taken_from(host, self.history()), self.executor.inventory
        home = inventory.hosts.get(host)
        if home is None:
            return [GONE], ()
        there = {ref: vm for ref in taken if (vm := inventory.vms.get(ref)) is not None}
        plan, notes = returning(
            home,
            [vm for ref, vm in there.items() if taken[ref].stopped],
            [vm for ref, vm in there.items() if not taken[ref].stopped],
            inventory,
            catalog_of(inventory),
        )
        gone = tuple(f"{taken[ref].name} is gone from vCenter" for ref in taken if ref not in there)
        return [
            f"{inventory.vm(outcome.step.vm).name} is not back: {outcome.reason}"
            for outcome in self._vms(plan, inventory)
            if outcome.verdict not in _GOOD
        ], (*notes, *gone)

    # the executors

    def _vms(self, plan: Plan, inventory: Inventory) -> tuple[Outcome, ...]:
        if not plan.steps:
            return ()
        executor = VmExecutor(
            self.site.vcenter,
            self.executor.journal,
            self.executor.run,
            inventory,
            leases=lease_for_all_vms(self.executor.lease),
            passed_s=self.site.passed_s,
        )
        return execute(plan, executor, Limits(), self.site.progress)

    def _setting(self, inventory: Inventory) -> SettingExecutor:
        executor, passed_s = self.executor, self.site.passed_s
        return SettingExecutor(
            executor.vcenter,
            executor.hosts,
            executor.journal,
            executor.run,
            inventory,
            lease=executor.lease,
            passed_s=passed_s,
        )

    def _tasks(self, tasks: Iterable[HostTask], what: str) -> None:
        wanted = list(tasks)
        if wanted:
            self.told(f"{', '.join(self.order.names[each.host] for each in wanted)}: {what}")
            self.wrong.update(self.executor.tasks(wanted))

    def _rebooted(self, step: HostStep, history: History) -> bool:
        """Whether the reboot that was asked for is over, as the host's boot time tells."""
        reboot = history.reboots.get(step.host)
        if reboot is None:
            return False
        host = self.executor.look().hosts.get(step.host)
        return host is not None and task_satisfied(reboot, host)

    def _say(self, steps: Sequence[HostStep], what: str) -> None:
        self.told(f"{', '.join(self.order.names[step.host] for step in steps)}: {what}")
