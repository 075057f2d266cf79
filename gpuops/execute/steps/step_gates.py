"""The gates at the connection broker that the steps of a run close and open, and who came while they were closed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from gpuops.errors import Refused
from gpuops.execute.site.policy_reads import with_gates
from gpuops.execute.site.ports import DesktopGates, SessionSource
from gpuops.model.desktops.evidence import Source
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.outcome import Outcome, Verdict
from gpuops.plan.core.steps import CloseGate, GateStep, OpenGate, Step, SuspendVm
from gpuops.plan.rotation.nights.desktops import IN_MAINTENANCE
from gpuops.plan.rotation.nights.guard import Guard

CAME_DURING: Final = "a session began while it was being suspended"
MAY_HAVE_COME: Final = "whether a session began while it was being suspended is not known"


class StepGates:
    """The gates of one run's desktops. What is read of them comes back as an inventory; the caller keeps it."""

    def __init__(
        self,
        gates: DesktopGates | None,
        sources: Mapping[Source, SessionSource],
        planned: Inventory,
        guard: Guard | None,
    ) -> None:
        """`gates`: None = there is no broker. `planned`: what the plan went by. `guard`: None = nothing is taken."""
        self._gates = gates
        self._sources = sources
        self._planned = planned
        self._guard = guard
        self._at_broker: dict[str, str] = {}
        """VMs that a step speaks to the broker about, with its ids of their machines as far as they are known."""
        self._closed: dict[str, str] = {}
        """Those whose gate this run has closed, or may have, likewise."""

    @property
    def fails(self) -> bool:
        """Whether the broker did not answer a moment ago."""
        return self._gates is not None and self._gates.fails

    def machine_of(self, step: Step) -> str:
        """The broker's id of the machine of the step's VM; empty = it is not known."""
        gate = self._planned.vms[step.vm].gate if step.vm in self._planned.vms else None
        return (step.machine if isinstance(step, GateStep) else "") or (gate.machine if gate is not None else "")

    def speaks_about(self, steps: Iterable[Step]) -> None:
        """From here on a look at the VMs of these steps asks the broker too, of those that change a gate."""
        self._at_broker |= {step.vm: step.machine for step in steps if isinstance(step, GateStep)}

    def read(self, inventory: Inventory, vms: Collection[str]) -> Inventory:
        """The inventory with the gates of those of these VMs that a step speaks to the broker about."""
        asked_about = {ref: self._at_broker[ref] for ref in self._at_broker.keys() & set(vms)}
        return with_gates(inventory, asked_about, self._gates) if asked_about else inventory

    def held(self, vm: str) -> str | None:
        """The broker's id of the machine whose gate this night holds closed, or may; None = it does not."""
        before = self._planned.vms.get(vm)
        held = before.gate if before is not None and self._guard is not None else None
        return self._closed.get(vm, held.machine if held is not None and held.closed else None)

    def in_use_again(self, steps: Collection[Step], inventory: Inventory) -> tuple[Inventory, Mapping[str, str]]:
        """By VM (ref), why a desktop that was suspended behind a gate is to be given back: somebody came between the
        last look and the suspend, or the broker cannot say that nobody did. The operator's own command counts where it
        knows of a session: it may see who comes past the broker."""
        suspends = (step for step in steps if isinstance(step, SuspendVm))
        machines = {step.vm: machine for step in suspends if (machine := self.held(step.vm)) is not None}
        suspended = {step.vm: step for step in steps if step.vm in machines}
        if self._gates is None or not machines:
            return inventory, {}
        inventory = with_gates(inventory, machines, self._gates)
        vms = [inventory.vms[ref] for ref in machines if ref in inventory.vms]
        found: dict[str, str] = {}
        for source in (self._gates, self._sources.get(Source.COMMAND)):
            for ref, told in source.sessions(vms, inventory).items() if source is not None else ():
                in_use = told.in_use(self._timeout_s(suspended[ref], inventory))
                if in_use:
                    found[ref] = CAME_DURING
                elif in_use is None and source is self._gates:
                    found.setdefault(ref, MAY_HAVE_COME)
        return inventory, found

    def _timeout_s(self, step: Step, inventory: Inventory) -> int | None:
        """After which a disconnected session keeps the desktop of the step no more; None = any session keeps it."""
        rule = self._guard.idle_rule(step, inventory) if self._guard is not None else None
        return rule.disconnected_timeout_s if rule is not None else None

    def objection(self, step: GateStep, inventory: Inventory) -> tuple[Inventory, str | None]:
        """Why the broker is not asked. The look that steps share is too old to tell whose maintenance it is: of a
        machine that is to be closed the broker is asked once more, just before."""
        if isinstance(step, CloseGate) and step.vm in inventory.vms:
            inventory = with_gates(inventory, {step.vm: step.machine}, self._gates)
            gate = inventory.vms[step.vm].gate
            if gate is not None and gate.closed is not False:
                return inventory, IN_MAINTENANCE if gate.closed else gate.refusal
        if self.fails:
            return inventory, "the broker was not asked, for it did not answer a moment ago"
        return inventory, None

    def change(self, step: GateStep, inventory: Inventory) -> None:
        """Has the broker close or open the gate. Raises OutcomeUnknown, Refused."""
        vm = inventory.vm(step.vm)
        if self._gates is None:
            hint = "put [targets.NAME.broker] into the configuration file (gpuops help broker)"
            raise Refused(f"{vm.name}: no connection broker is configured for this vCenter", hint=hint)
        self._gates.change(step, vm)

    def ended(self, outcome: Outcome) -> None:
        """Remembers which gates the run holds closed, or may."""
        step = outcome.step
        if isinstance(step, CloseGate) and outcome.verdict in (Verdict.DONE, Verdict.UNKNOWN):
            self._closed[step.vm] = step.machine
        if isinstance(step, OpenGate) and outcome.verdict is Verdict.DONE:
            self._closed.pop(step.vm, None)
