"""The gates at the connection broker that a run's steps close and open, and sessions that began while they were
closed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from gpuops.errors import Refused
from gpuops.execute.site.policy_reads import with_gates
from gpuops.execute.site.ports import DesktopGates, SessionSource
from gpuops.model.desktops.evidence import Source
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Outcome, Verdict
from gpuops.plan.core.steps import CloseGate, GateStep, OpenGate, Step, SuspendVm
from gpuops.plan.rotation.nights.desktops import IN_MAINTENANCE
from gpuops.plan.rotation.nights.guard import Guard

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
        self._at_broker: dict[str, str] = {}
        """VM refs whose gate a step changes, each with the broker's id of its machine, "" if unknown."""
        self._closed: dict[str, str] = {}
        """VM refs whose gate this run has closed, or may have, each with the broker's id of its machine."""

    @property
    def fails(self) -> bool:
        """Whether the broker failed to answer a moment ago."""
        return self._gates is not None and self._gates.fails

    def machine_of(self, step: Step) -> str:
        """Return the broker's id of the machine of the step's VM; "" if unknown."""
        gate = self._planned.vms[step.vm].gate if step.vm in self._planned.vms else None
        return (step.machine if isinstance(step, GateStep) else "") or (gate.machine if gate is not None else "")

    def speaks_about(self, steps: Iterable[Step]) -> None:
        """From now on, read the gates of the VMs whose gates these steps change at each look."""
        self._at_broker |= {step.vm: step.machine for step in steps if isinstance(step, GateStep)}

    def read(self, inventory: Inventory, vms: Collection[str]) -> Inventory:
        """Return the inventory with the gates of those of these VMs whose gates a step changes."""
        asked_about = {ref: self._at_broker[ref] for ref in self._at_broker.keys() & set(vms)}
        return with_gates(inventory, asked_about, self._gates) if asked_about else inventory

    def held_machine(self, vm: str) -> str | None:
        """Return the broker's id of the machine whose gate this night holds closed, or may; None if it does not."""
        before = self._planned.vms.get(vm)
        gate = before.gate if before is not None and self._guard is not None else None
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
                elif in_use is None and source is self._gates:
                    reasons.setdefault(ref, MAY_HAVE_COME)
        return inventory, reasons

    def _timeout_s(self, step: Step, inventory: Inventory) -> int | None:
        """Return the seconds after which a disconnected session no longer keeps the step's desktop.

        None: any session keeps it.
        """
        rule = self._guard.idle_rule(step, inventory) if self._guard is not None else None
        return rule.disconnected_timeout_s if rule is not None else None

    def objection(self, step: GateStep, inventory: Inventory) -> tuple[Inventory, str | None]:
        """Return why the broker is not asked to change a gate.

        The shared look is too old to show whose maintenance mode it is: before a gate is closed, the broker is read
        once more.
        """
        if isinstance(step, CloseGate) and step.vm in inventory.vms:
            inventory = with_gates(inventory, {step.vm: step.machine}, self._gates)
            gate = inventory.vms[step.vm].gate
            if gate is not None and gate.closed is not False:
                return inventory, IN_MAINTENANCE if gate.closed else gate.refusal
        if self.fails:
            return inventory, "the broker was not asked, for it did not answer a moment ago"
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
