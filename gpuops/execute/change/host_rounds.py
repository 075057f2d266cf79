"""Takes a round of hosts through a change: move VMs away, apply the setting, reboot, check, and bring the VMs back.

A part that vCenter shows as done is skipped, so an interrupted round is resumed by running it again. If a host is not
in the expected state, the change stops: the host is left as it is, the report names the next step, and nothing is
tried twice on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuops.execute.change.host_tasks import UNCONNECTED, HostTaskExecutor
from gpuops.execute.change.unfinished_change import History, vms_taken_from
from gpuops.execute.journal import IntentState
from gpuops.execute.journal.orders import ChangeOrder
from gpuops.execute.lease.lease_set import lease_for_all_vms
from gpuops.execute.site import Site, catalog_of
from gpuops.execute.steps.host_executor import GONE, SettingExecutor
from gpuops.execute.steps.plan_executor import execute
from gpuops.execute.steps.settle import settle_open
from gpuops.execute.steps.vm_executor import VmExecutor
from gpuops.model.devices.device_mode import ConfigureImpact
from gpuops.model.nights.rotation_policy import Limits
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.command_line import command
from gpuops.plan.core.plan import Outcome, Plan, Verdict
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.steps import (
    ConfigureMig,
    EndTurn,
    EnterMaintenance,
    HostStep,
    HostTask,
    LeaveMaintenance,
    RebootHost,
)
from gpuops.plan.hosts.change.emptying import plan_departures, plan_return
from gpuops.plan.hosts.change.rolling_plan import (
    PlannedHost,
    lost_mig_modes,
    not_in_force,
    plan_together,
    task_satisfied,
    unlisted_gpus,
)
from gpuops.plan.hosts.host_plan import vms_forbidding_change

DRIVER_S: Final = 600.0
"""The time that a host's driver may take after a boot to list its GPUs."""

DRIVER_LOOK_S: Final = 30.0
"""The time between two looks whether the driver lists its GPUs."""

_SUCCESSES: Final = (Verdict.DONE, Verdict.ALREADY)

Told = Callable[[str], None]
"""Called with one line of progress for the admin."""


@dataclass(slots=True)
class HostRounds:
    """The rounds of one change, on one site."""

    site: Site
    order: ChangeOrder
    executor: HostTaskExecutor
    show_line: Told = lambda line: None
    wrong: dict[str, str] = field(default_factory=dict)
    """Host (ref) -> the reason why its change failed."""
    half_set: set[str] = field(default_factory=set)
    """Hosts that may need a reboot for what was set on them before their setting ended in an error."""

    def take(self, steps: Sequence[HostStep]) -> list[Outcome[HostStep]]:
        """Take these hosts through the change and return their outcomes.

        Starts from the latest inventory, which the caller has just read. Raises NotConnected and StateDamaged; the
        change can be resumed afterwards.
        """
        history = self.history()
        hosts = self.executor.inventory.hosts
        self.wrong |= {step.host: GONE for step in steps if step.host not in hosts}
        pending_steps = [step for step in steps if step.host in hosts and not self._is_reboot_over(step, history)]
        # a reboot that an interrupted run requested is waited for below, and not requested again
        new_steps = [step for step in pending_steps if step.host not in history.reboots]
        self.wrong |= {step.host: UNCONNECTED for step in new_steps if hosts[step.host].connected is not True}
        new_steps = [step for step in new_steps if step.host not in self.wrong]
        refusal = self._empty(new_steps) if new_steps else None
        if refusal is not None:
            # no host is changed; those that an interrupted run began are put back into service
            begun_steps = [step for step in steps if step.host in history.begun]
            self.wrong |= {step.host: refusal for step in begun_steps}
            return [
                self._end(step) if step in begun_steps else Outcome(step, Verdict.SKIPPED, refusal) for step in steps
            ]
        new_reboots = self._set([step for step in new_steps if step.host not in self.wrong])
        # requested by an interrupted run, and not over yet
        open_reboots = [
            history.reboots[step.host]
            for step in pending_steps
            if step.host in history.reboots and step.host not in self.wrong
        ]
        self._run_tasks([*new_reboots, *open_reboots], "reboots")
        self._look_at([step for step in steps if step.host not in self.wrong])
        return [self._end(step) for step in steps]

    def give_up(self, steps: Sequence[HostStep]) -> list[Outcome[HostStep]]:
        """Put these hosts back into service without further settings, with their VMs back on them."""
        return [self._end(step) for step in steps]

    def settle(self) -> None:
        """Wait for what an interrupted run left in flight, and record the outcomes.

        A host cannot run VMs until it has booted and its driver lists its GPUs.
        """
        settle_open(self._vm_executor(self.executor.inventory), timeout_s=Limits().step_timeout_s)
        rebooting_hosts = {step.host for step in self.executor.open_tasks() if isinstance(step, RebootHost)}
        booting_steps = [step for step in self.order.steps if step.host in rebooting_hosts]
        if booting_steps:
            self._say(booting_steps, "still boots: waiting for it")
        self.wrong.update(self.executor.settle_open())
        for step in booting_steps:
            if step.host not in self.wrong:
                self._wait_for_driver(step)

    def history(self) -> History:
        """Return the history of this change, as the journal holds it."""
        return self.executor.history()

    # the parts of a round

    def _empty(self, steps: Sequence[HostStep]) -> str | None:
        """Move the VMs away from these hosts. Return the reason why no host may be changed, or None.

        None: every host is empty, except hosts that are now in `wrong`. Uses the inventory that `take` started with.
        """
        inventory = self.executor.inventory
        planned_hosts = plan_together(steps, self.order.rolling, inventory, catalog_of(inventory))
        refusals = [str(rejection) for rejection in planned_hosts if isinstance(rejection, Rejection)]
        if refusals:
            return "; ".join(refusals)
        ready_hosts = [planned_host for planned_host in planned_hosts if isinstance(planned_host, PlannedHost)]
        moves_away = [move for planned_host in ready_hosts for move in planned_host.away]
        self._say(steps, f"{len(moves_away)} VMs leave" if moves_away else "no VM has to leave")
        for outcome in self._execute_moves(plan_departures(moves_away), inventory):
            if outcome.verdict not in _SUCCESSES:
                vm = inventory.vm(outcome.step.vm)
                # a host keeps its first reason; every VM that leaves has a host, so "" only satisfies the type
                self.wrong.setdefault(vm.host or "", f"{vm.name} did not leave it: {outcome.reason}")
        return None

    def _set(self, steps: Sequence[HostStep]) -> list[RebootHost]:
        """Put these hosts into maintenance mode, apply their settings, and return the reboots that are needed."""
        mode = self.order.rolling.vsan_mode
        self._run_tasks([EnterMaintenance(step.host, mode) for step in steps], "enters maintenance mode")
        inventory = self.executor.inventory
        booted = {step.host: host.booted for step in steps if (host := inventory.hosts.get(step.host)) is not None}
        setting = self._setting_executor(inventory)
        for step in steps:
            # a VM that was suspended here in the meantime would resume under another driver or scheduler
            host = inventory.hosts.get(step.host)
            blocked = next(vms_forbidding_change(host, inventory), None) if host is not None else GONE
            if blocked is not None:
                self.wrong.setdefault(step.host, str(blocked))
            elif step.host not in self.wrong and (outcome := setting.set(step)).verdict not in _SUCCESSES:
                self.wrong[step.host] = f"gpuops could not set it: {outcome.reason}"
        self.half_set |= setting.half_set
        set_steps = [step for step in steps if step.host not in self.wrong]
        return [RebootHost(step.host, booted[step.host]) for step in set_steps if self._reboots(step, setting)]

    def _reboots(self, step: HostStep, setting: SettingExecutor) -> bool:
        """Return whether the host must be rebooted for the setting.

        It need not be if vCenter reported that no reboot is needed, and shows the setting in force. If an interrupted
        run applied the setting, that report is lost, and the host is rebooted. MIG mode has no such report: from Hopper
        on, an idle GPU changes it at once and loses it by a reboot (NVIDIA MIG User Guide; gpu-operator issue 2600).
        """
        impacts = setting.impacts.get(step.host)
        if not isinstance(step, ConfigureMig) and (impacts is None or ConfigureImpact.REBOOT in impacts):
            return True
        host = self._with_settings(step)
        if host is None or self._not_in_force(step, host) is not None:
            return True
        self._say([step], "needs no reboot")
        return False

    def _look_at(self, steps: Sequence[HostStep]) -> None:
        """Wait until the driver lists the GPUs, then check that the setting is in force."""
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
                self.show_line(f"{self.order.names[step.host]}: {back}")

    def _wait_for_driver(self, step: HostStep) -> tuple[Host | None, list[str]]:
        """Return the host (None if it is gone from vCenter) and the GPUs that its driver did not list in time."""
        host, waited_s = self._with_settings(step), 0.0
        while host is not None and (missing := self._missing_gpus(step, host)) and waited_s < DRIVER_S:
            self.executor.wait_for_one_boot(step.host, DRIVER_LOOK_S)
            waited_s += DRIVER_LOOK_S
            host = self._with_settings(step)
        return host, missing if host is not None else []

    def _not_in_force(self, step: HostStep, host: Host) -> str | None:
        return not_in_force(step, host) or lost_mig_modes(self.order.mig.get(step.host, ()), host)

    def _with_settings(self, step: HostStep) -> Host | None:
        """Read the inventory again and return the host with its settings, or None if it is gone from vCenter."""
        self.executor.inventory = self.executor.hosts.with_settings(self.executor.look(), [step.host])
        return self.executor.inventory.hosts.get(step.host)

    def _missing_gpus(self, step: HostStep, host: Host) -> list[str]:
        return [str(address) for address in unlisted_gpus(step, self.order.gpus.get(step.host, ()), host)]

    def _end(self, step: HostStep) -> Outcome[HostStep]:
        """Take the host out of maintenance mode, bring its VMs back, and return the host's outcome.

        A host that failed stays in maintenance mode if it was rebooted, or if it may need a reboot for a partial
        setting.
        """
        reason = self.wrong.get(step.host)
        host = self.executor.look().hosts.get(step.host)
        if host is None or host.connected is not True:
            state = GONE if host is None else UNCONNECTED
            stays = "in maintenance mode" if host is not None and host.in_maintenance else "as it is"
            abandon_command = command("change abandon", host=self.order.names[step.host])
            reason = f"{reason or state}; it stays {stays}; if it never comes back: {abandon_command}"
            return Outcome(step, Verdict.FAILED, reason)
        rebooted = step.host in self.history().reboots  # or may still be: the request was sent
        if reason is not None and (rebooted or step.host in self.half_set):
            return Outcome(step, Verdict.FAILED, f"{reason}; it stays in maintenance mode")
        self._run_tasks([LeaveMaintenance(step.host)], "leaves maintenance mode")
        failure = self.wrong.get(step.host)  # set by `_run_tasks` if the host did not leave maintenance mode
        if failure is not None and reason is None:
            return Outcome(step, Verdict.FAILED, failure)
        missing, notes = self._bring_back(step.host)
        if reason is not None or missing:
            return Outcome(step, Verdict.FAILED, "; ".join([*([reason] if reason else []), *missing]))
        op_id = self.executor.journal.intend(self.executor.run, EndTurn(step.host), self.executor.inventory)
        self.executor.journal.record_outcome(op_id, IntentState.DONE)
        self._say([step], "done")
        return Outcome(step, Verdict.DONE, "; ".join(notes))

    def _bring_back(self, host: str) -> tuple[list[str], tuple[str, ...]]:
        """Return the VMs that are not back with the reasons, and notes about VMs that an admin changed since."""
        taken_vms, inventory = vms_taken_from(host, self.history()), self.executor.inventory
        home = inventory.hosts.get(host)
        if home is None:
            return [GONE], ()
        returning_vms = {ref: vm for ref in taken_vms if (vm := inventory.vms.get(ref)) is not None}
        plan, notes = plan_return(
            home,
            [vm for ref, vm in returning_vms.items() if taken_vms[ref].stopped],
            [vm for ref, vm in returning_vms.items() if not taken_vms[ref].stopped],
            inventory,
            catalog_of(inventory),
        )
        removal_notes = tuple(
            f"{taken_vms[ref].name} is gone from vCenter" for ref in taken_vms if ref not in returning_vms
        )
        return [
            f"{inventory.vm(outcome.step.vm).name} is not back: {outcome.reason}"
            for outcome in self._execute_moves(plan, inventory)
            if outcome.verdict not in _SUCCESSES
        ], (*notes, *removal_notes)

    # the executors

    def _execute_moves(self, plan: Plan, inventory: Inventory) -> tuple[Outcome, ...]:
        if not plan.steps:
            return ()
        return execute(plan, self._vm_executor(inventory), Limits(), self.site.progress)

    def _vm_executor(self, inventory: Inventory) -> VmExecutor:
        executor, passed_s = self.executor, self.site.passed_s
        leases = lease_for_all_vms(executor.lease)
        return VmExecutor(executor.vcenter, executor.journal, executor.run, inventory, leases=leases, passed_s=passed_s)

    def _setting_executor(self, inventory: Inventory) -> SettingExecutor:
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

    def _run_tasks(self, tasks: Iterable[HostTask], activity: str) -> None:
        task_list = list(tasks)
        if task_list:
            self.show_line(f"{', '.join(self.order.names[task.host] for task in task_list)}: {activity}")
            self.wrong.update(self.executor.tasks(task_list))

    def _is_reboot_over(self, step: HostStep, history: History) -> bool:
        """Return whether the requested reboot is over, by the boot time of the host."""
        reboot = history.reboots.get(step.host)
        if reboot is None:
            return False
        host = self.executor.look().hosts.get(step.host)
        return host is not None and task_satisfied(reboot, host)

    def _say(self, steps: Sequence[HostStep], activity: str) -> None:
        self.show_line(f"{', '.join(self.order.names[step.host] for step in steps)}: {activity}")
