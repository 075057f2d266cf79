"""Decides when a VM is read again, and what such a look reads.

A desktop gives up its GPUs only after a look of its own, made when everything before it had been sent. So if a machine
and its clocks are paused, it sends at most one such request on an outdated look. If the lease or the journal takes long
after the look, the desktop is read and judged once more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from gpuops import clock
from gpuops.errors import Refused
from gpuops.execute.journal import Journal, Run
from gpuops.execute.lease.lease_set import NO_LEASE, VmLeases
from gpuops.execute.site.policy_reads import NO_SOURCES, with_gates, with_policy_reads
from gpuops.execute.site.ports import DesktopGates, SessionSource, Vcenter, VgpuUseSource
from gpuops.execute.steps.step_executor import StepExecutor
from gpuops.model.desktops.evidence import Source
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Outcome, Verdict
from gpuops.plan.core.steps import NEW_VM, CloseGate, GateStep, OpenGate, SetVmDrs, Step, SuspendVm
from gpuops.plan.rotation.nights.desktops import IN_MAINTENANCE
from gpuops.plan.rotation.nights.guard import Guard
from gpuops.plan.rotation.nights.night_refusals import ahead_by

CAME_DURING: Final = "a session began while it was being suspended"
MAY_HAVE_COME: Final = "whether a session began while it was being suspended is not known"


class StepGates:
    """The gates of one run's desktops. Methods that read gates return an inventory, which the caller keeps."""

    def __init__(
        self,
        gates: DesktopGates | None,
        sources: Mapping[Source, SessionSource],
        planned: Inventory,
        guard: Guard | None,
    ) -> None:
        """`gates`: None if there is no broker. `planned`: snapshot of the plan. `guard`: None if nothing is taken."""
        self._gates = gates
        self._sources = sources
        self._planned = planned
        self._guard = guard
        self._gate_machines: dict[str, str] = {}
        """VM ref -> the broker's id of its machine ("" if unknown), for VMs whose gate a step changes."""
        self._closed: dict[str, str] = {}
        """VM ref -> the broker's id of its machine, for VMs whose gate this run has closed, or may have."""

    @property
    def fails(self) -> bool:
        """Whether the broker failed to answer a moment ago."""
        return self._gates is not None and self._gates.fails

    def machine_of(self, step: Step) -> str:
        """Return the broker's id of the machine of the step's VM; "" if unknown."""
        gate = self._planned.vms[step.vm].gate if step.vm in self._planned.vms else None
        return (step.machine if isinstance(step, GateStep) else "") or (gate.machine if gate is not None else "")

    def note_gate_steps(self, steps: Iterable[Step]) -> None:
        """From now on, `read` includes the gates that these steps change."""
        self._gate_machines |= {step.vm: step.machine for step in steps if isinstance(step, GateStep)}

    def read(self, inventory: Inventory, vms: Collection[str]) -> Inventory:
        """Return the inventory with the gates of these VMs, without VMs whose gate no step changes."""
        machines = {ref: self._gate_machines[ref] for ref in self._gate_machines.keys() & set(vms)}
        return with_gates(inventory, machines, self._gates) if machines else inventory

    def held_machine(self, vm: str) -> str | None:
        """Return the broker's id of the machine whose gate this night holds closed, or may; None if it does not."""
        planned_vm = self._planned.vms.get(vm)
        # without a guard nothing is taken, so a gate that was closed before is not held by this run
        gate = planned_vm.gate if planned_vm is not None and self._guard is not None else None
        return self._closed.get(vm, gate.machine if gate is not None and gate.closed else None)

    def in_use_again(self, steps: Collection[Step], inventory: Inventory) -> tuple[Inventory, Mapping[str, str]]:
        """Return the inventory, and by VM ref why a desktop that was suspended behind a gate must be resumed.

        A user connected between the last look and the suspend, or the broker cannot rule that out. The admin's own
        command counts where it reports a session: it may see users who connect past the broker.
        """
        suspends = (step for step in steps if isinstance(step, SuspendVm))
        machines = {step.vm: machine for step in suspends if (machine := self.held_machine(step.vm)) is not None}
        suspended = {step.vm: step for step in steps if step.vm in machines}
        if self._gates is None or not machines:
            return inventory, {}
        inventory = with_gates(inventory, machines, self._gates)
        vms = [inventory.vms[ref] for ref in machines if ref in inventory.vms]
        reasons: dict[str, str] = {}
        for source in (self._gates, self._sources.get(Source.COMMAND)):
            for ref, sessions in source.sessions(vms, inventory).items() if source is not None else ():
                in_use = sessions.in_use(self._timeout_s(suspended[ref], inventory))
                if in_use:
                    reasons[ref] = CAME_DURING
                elif in_use is None and source is self._gates:  # the command need not know every session
                    reasons.setdefault(ref, MAY_HAVE_COME)
        return inventory, reasons

    def _timeout_s(self, step: Step, inventory: Inventory) -> int | None:
        """Return the seconds after which a disconnected session no longer keeps the step's desktop.

        None: any session keeps it.
        """
        rule = self._guard.idle_rule(step, inventory) if self._guard is not None else None
        return rule.disconnected_timeout_s if rule is not None else None

    def objection(self, step: GateStep, inventory: Inventory) -> tuple[Inventory, str | None]:
        """Return the inventory, and why the broker must not be asked to change this gate, or None.

        The shared look is too old to show whose maintenance mode it is: before a gate is closed, the broker is read
        once more.
        """
        if isinstance(step, CloseGate) and step.vm in inventory.vms:
            inventory = with_gates(inventory, {step.vm: step.machine}, self._gates)
            gate = inventory.vms[step.vm].gate
            if gate is not None and gate.closed is not False:
                return inventory, IN_MAINTENANCE if gate.closed else gate.refusal
        if self.fails:
            return inventory, "gpuops did not ask the broker, which did not answer a moment ago"
        return inventory, None

    def change(self, step: GateStep, inventory: Inventory) -> None:
        """Have the broker close or open the gate. Raises OutcomeUnknown, Refused."""
        vm = inventory.vm(step.vm)
        if self._gates is None:
            hint = "put [targets.NAME.broker] into the configuration file (gpuops help broker)"
            raise Refused(f"{vm.name}: no connection broker is configured for this vCenter", hint=hint)
        self._gates.change(step, vm)

    def note_outcome(self, outcome: Outcome) -> None:
        """Note which gates the run holds closed, or may."""
        step = outcome.step
        if isinstance(step, CloseGate) and outcome.verdict in (Verdict.DONE, Verdict.UNKNOWN):
            self._closed[step.vm] = step.machine
        if isinstance(step, OpenGate) and outcome.verdict is Verdict.DONE:
            self._closed.pop(step.vm, None)


COUNTED_MAX_AGE: Final = timedelta(seconds=60)
"""How old a look may be at VMs that the guard only counts, and no step changes."""

LOOK_S: Final = 25.0
"""How old the look may be that a step is judged by when it is sent. A night that cannot keep this limit takes nothing.

The look should be at most 30 s old when the request arrives; the difference is for a slow machine or network.
"""

SHARED_S: Final = 5.0
"""How old a look may be that the next steps share if nothing was sent since. `LOOK_S` applies to them too."""


class VmLooks(StepExecutor[Step]):
    """The part of an executor of VM steps that reads VMs. `inventory` is the latest look."""

    def __init__(
        self,
        vcenter: Vcenter,
        journal: Journal,
        run: Run,
        planned: Inventory,
        *,
        guard: Guard | None = None,
        leases: VmLeases = NO_LEASE,
        passed_s: Callable[[], float] = clock.passed_s,
        same_time: bool = False,
        sources: Mapping[Source, SessionSource] = NO_SOURCES,
        gates: DesktopGates | None = None,
        vgpu_use: VgpuUseSource | None = None,
    ) -> None:
        """`guard` judges each step that takes a VM; None if nothing is taken.

        `leases`: the lease of a VM must be held at each request for it. Without a lease, only this machine's lock keeps
        other runs away.

        `sources` report sessions that vCenter does not know, `vgpu_use` reports what nvidia-smi on the hosts shows, and
        `gates` are those of the connection broker. None: not configured.

        `same_time`: vCenter's clock and the journal's clock should agree.
        """
        super().__init__(vcenter, journal, run, planned, passed_s=passed_s)
        self.planned = planned
        self._guard = guard
        self._leases = leases
        self._same_time = same_time
        self._sources = sources
        self._gates = gates
        self._vgpu_use = vgpu_use
        self.step_gates = StepGates(gates, sources, planned, guard)
        self._planned_s = passed_s()
        """When the plan, which is the first look, was ready."""
        self._look_s: dict[str, float] = {}
        """By VM ref, when the look was requested that its next step is judged by."""
        self._looked_at: dict[str, float] = {}
        """By VM ref, when it was read for steps, as long as nothing has been sent since."""
        self.just_read: frozenset[str] = frozenset()
        """Refs of the VMs that the latest look read; empty if something was sent since."""
        self._sent_since_look = False
        self._ahead: timedelta | None = None
        """How far vCenter's clock was ahead of ours at the last look before steps; None if they cannot be compared."""
        self._counted_at: dict[str, datetime] = {}
        """By pool, vCenter's time when the VMs that the guard counts in it were last read."""
        self._drs_vms: set[str] = set()
        """Refs of VMs whose DRS override a step changes."""
        self._ended: list[Outcome] = []

    def look(self, vms: Collection[str]) -> None:
        """Read these VMs and the GPUs of their hosts again, with the DRS override where a step changes it."""
        asked_s = self.passed_s()
        existing = [ref for ref in vms if not ref.startswith(NEW_VM)]
        if len(existing) < len(vms):
            self.inventory = self.vcenter.inventory()  # a VM that is being made has no id yet by which it can be read
        if existing:
            self.inventory = self.vcenter.observe(self.inventory, existing)
        self._leases.note_look(self.inventory, vms, asked_s)
        drs_vms = self._drs_vms.intersection(vms)
        if drs_vms:
            self.inventory = self.vcenter.with_drs(self.inventory, drs_vms)
        self.inventory = self.step_gates.read(self.inventory, vms)
        self.just_read = frozenset(vms)

    def look_before(self, steps: Sequence[Step], ended: Collection[str] = ()) -> None:
        """Read the VMs of steps that are about to be sent, and with them the VMs that the guard needs, the lock VM, and
        the VMs whose steps have `ended`.

        If all of these were read for steps a moment ago, and nothing was sent since, that look is shared.
        """
        vms = {step.vm for step in steps}
        vms |= self._leases.lock_vms(vms)
        self._drs_vms |= {step.vm for step in steps if isinstance(step, SetVmDrs)}
        self.step_gates.note_gate_steps(steps)
        if self._guard is not None:
            vms |= self._stale_counted_vms(self._guard, self._guard.pools(steps, self.inventory))
            vms |= self._guard.vms_sharing_kept_slots(steps, self.inventory)
        asked_s = self.passed_s()
        if not ended and vms <= self._looked_at.keys():
            oldest_s = min((self._looked_at[ref] for ref in vms), default=asked_s)
            if asked_s - oldest_s <= SHARED_S:
                return
        clock_before = self.journal.clock() if self._same_time else None
        self._look_s |= dict.fromkeys(vms, asked_s)
        self._sent_since_look = False
        self.look({*vms, *ended})
        if self._guard is not None:
            machines = {step.vm: machine for step in steps if (machine := self.step_gates.machine_of(step))}
            self.inventory = with_policy_reads(
                self.vcenter,
                self.inventory,
                self._guard.policy,
                vms,
                self._sources,
                self._gates,
                machines,
                self._vgpu_use,
            )
        if clock_before is not None:
            self._ahead = ahead_by(self.inventory.taken_at, clock_before, self.journal.clock())
        self._looked_at |= dict.fromkeys(vms, asked_s)

    def forget_earlier_looks(self) -> None:
        """Do not share earlier looks with the next steps: something was sent, or time has passed that the clocks of a
        paused machine do not show."""
        self._looked_at.clear()

    def _stale_counted_vms(self, guard: Guard, pools: Collection[str]) -> frozenset[str]:
        """Return the VMs that the guard counts in these pools, if a pool was not read for `COUNTED_MAX_AGE`."""
        now = self.inventory.taken_at
        stale_pools = [
            pool for pool in pools if now - self._counted_at.get(pool, self.planned.taken_at) > COUNTED_MAX_AGE
        ]
        if not stale_pools:
            return frozenset()
        self._counted_at |= dict.fromkeys(stale_pools, now)
        return guard.counted_vms(stale_pools, self.inventory, self._ended)

    def read_back(self, step: Step) -> None:
        """Read the step's VM and the GPUs of its host again."""
        self.look([step.vm])

    def _is_old(self, step: Step) -> bool:
        """Return whether the look at the step's VM is too old for the step; looks at other VMs do not matter."""
        return self.passed_s() - self._look_s.get(step.vm, self._planned_s) > LOOK_S
