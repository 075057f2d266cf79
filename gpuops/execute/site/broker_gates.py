"""Closes and opens the gate that the connection broker has before desktops, and tells how it stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from gpuops.errors import GpuopsError, NotConnected, OutcomeUnknown, Refused
from gpuops.execute.site.broker_reads import ASK_AGAIN, BrokerSessions
from gpuops.model.broker import DesktopBroker, DesktopMachine
from gpuops.model.evidence import SessionCount
from gpuops.model.gate import NO_MACHINE, Gate, unknown_gate
from gpuops.model.vm import Vm

if TYPE_CHECKING:
    from gpuops.plan.core.steps import GateStep


class BrokerGates:
    """Implements `DesktopGates` by a connection broker, which is opened when it is first asked and stays open.

    A gate is read from the broker's lists of machines and pools, two bulk reads for any number of VMs. A VM is found by
    the id of its machine, where a night has kept that, or by the inventory path of its machine. After a broker has not
    answered it is left alone for a minute: a return must not wait for it at each step.
    """

    def __init__(
        self, opened: Callable[[], DesktopBroker], sessions: BrokerSessions, passed_s: Callable[[], float]
    ) -> None:
        """`opened` gives the broker, logged in, the same each time. `passed_s` counts seconds since some moment."""
        self._opened = opened
        self._sessions = sessions
        self._passed_s = passed_s
        self._failed_s: float | None = None
        self._why = ""
        self.applied: bool | None = False
        """Whether a gate was changed; None = not known."""

    @property
    def fails(self) -> bool:
        """Whether it did not answer within the last minute."""
        return self._failed_s is not None and self._passed_s() - self._failed_s < ASK_AGAIN.total_seconds()

    def sessions(self, vms: Sequence[Vm], asked: datetime) -> Mapping[str, SessionCount]:
        """As `BrokerSessions.sessions`."""
        return self._sessions.sessions(vms, asked)

    def gates(self, vms: Sequence[Vm], machines: Mapping[str, str]) -> Mapping[str, Gate]:
        """By VM (ref), its gate now; unknown where the broker could not be asked. `machines`: ids that are known."""
        if not self.fails:
            try:
                broker = self._opened()
                found = _MachinesRead(broker.machines(), {pool.id: pool.refusal for pool in broker.pools()})
                return {vm.ref: found.gate(vm, machines.get(vm.ref, "")) for vm in vms}
            except GpuopsError as error:
                self._note(error)
        return {vm.ref: unknown_gate(f"the broker could not be asked: {self._why}") for vm in vms}

    def change(self, step: GateStep, vm: Vm) -> None:
        """Sends one change, once. Raises OutcomeUnknown where the reply was lost, Refused in any other case."""
        from gpuops.plan.core.steps import CloseGate

        machine = step.machine or (vm.gate.machine if vm.gate is not None else "")
        closing = isinstance(step, CloseGate)
        if self.fails or not machine:
            why = self._why if self.fails else "which machine of it this is cannot be told"
            raise Refused(f"{vm.name}: the broker was not asked: {why}", hint="look: gpuops broker show")
        try:
            broker = self._opened()
            refused = (broker.enter_maintenance if closing else broker.exit_maintenance)([machine])
        except OutcomeUnknown:
            self.applied = None
            raise
        except NotConnected as error:
            self._note(error)
            raise Refused(f"{vm.name}: {error.message}", hint="look: gpuops broker show") from error
        if machine in refused:
            where = "into maintenance" if closing else "out of maintenance"
            raise Refused(f"{vm.name}: the broker does not put it {where}: {refused[machine]}")
        self.applied = True

    def _note(self, error: GpuopsError) -> None:
        self._failed_s, self._why = self._passed_s(), error.message


class _MachinesRead:
    """The broker's machines at one moment, and why those of a pool cannot be gated."""

    def __init__(self, machines: Sequence[DesktopMachine], refusals: Mapping[str, str | None]) -> None:
        self._refusals = refusals
        self._by_id = {each.id: each for each in machines}
        self._by_path: dict[str, list[DesktopMachine]] = {}
        for each in machines:
            if each.path is not None:
                self._by_path.setdefault(each.path, []).append(each)

    def gate(self, vm: Vm, machine: str) -> Gate:
        at_path = self._by_path.get(vm.path, [])
        known = self._by_id.get(machine)
        if known is None and len(at_path) > 1:
            return unknown_gate("more than one machine of the broker is this VM")
        if known is None and not at_path:
            return NO_MACHINE
        found = known or at_path[0]
        if found.in_maintenance is None:
            return Gate(None, found.id, "the broker does not tell whether it is in maintenance")
        refusal = self._refusals.get(found.pool or "", "its pool is not told")
        return Gate(found.in_maintenance, found.id, f"its pool cannot be gated: {refusal}" if refusal else "")
