"""Closes and opens the gate that the connection broker has before desktops, and tells how it stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from gpuops.advise.desktop_sessions import NOT_IN_LIST
from gpuops.advise.machine_match import MachineMatch
from gpuops.errors import GpuopsError, NotConnected, OutcomeUnknown, Refused
from gpuops.execute.site.broker_reads import BrokerSessions
from gpuops.model.desktops.broker import DesktopBroker, DesktopMachine, DesktopPool
from gpuops.model.desktops.evidence import SessionCount
from gpuops.model.desktops.gate import NO_MACHINE, Gate, unknown_gate
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm

if TYPE_CHECKING:
    from gpuops.plan.core.steps import GateStep

SINGLY: Final = 64
"""So many machines whose ids are known are read one by one, each as it is now; more are read in one list."""

LISTS: Final = 2
"""So often the list is read for a machine that is not in it."""

_NOT_LISTED: Final = "the broker's list of machines lacks it"


class BrokerGates:
    """Implements `DesktopGates` by a connection broker, which is opened when it is first asked and stays open.

    A VM is found by the id of its machine, where that is known, or as `machine_match` finds it for certain. A list may
    be old, or not whole. So what is about to be changed is read by itself; that a machine is missing is believed only
    when the broker, asked for it or for its list once more, does not know it either; and nobody is believed to be
    without a session whose machine names one. After a broker has not answered it is left alone for a minute: a return
    must not wait for it at each step.
    """

    def __init__(self, opened: Callable[[], DesktopBroker], sessions: BrokerSessions) -> None:
        """`opened` gives the broker, logged in, the same each time. It rests when that of `sessions` does."""
        self._opened = opened
        self._sessions = sessions
        self._rest = sessions.rest
        self._machines: dict[str, DesktopMachine] = {}
        """VM (ref) -> its machine as it was last read."""
        self.applied: bool | None = False
        """Whether a gate was changed; None = not known."""

    @property
    def fails(self) -> bool:
        """Whether it did not answer within the last minute."""
        return self._rest.rests

    @property
    def match(self) -> MachineMatch | None:
        """Which machine is which VM, by the last look at sessions."""
        return self._sessions.match

    def sessions(self, vms: Sequence[Vm], inventory: Inventory) -> Mapping[str, SessionCount]:
        """As `BrokerSessions.sessions`; of a machine that the lists lack, or whose session they lack, unknown."""
        told = dict(self._sessions.sessions(vms, inventory))
        for ref in {vm.ref for vm in vms} & self._machines.keys():
            count = told.get(ref)
            if count is None or (count.used is True and count.count is None):
                told[ref] = SessionCount(None, None, inventory.taken_at, because=_NOT_LISTED)
            elif count.used is False and self._machines[ref].session is not None:
                told[ref] = SessionCount(None, None, inventory.taken_at, because=NOT_IN_LIST)
        return told

    def gates(self, vms: Sequence[Vm], machines: Mapping[str, str], inventory: Inventory) -> Mapping[str, Gate]:
        """By VM (ref), its gate now; unknown where the broker could not be asked. `machines`: ids that are known."""
        if not self.fails:
            try:
                found = self._read(vms, machines, inventory)
                self._rest.answered()
                return found
            except GpuopsError as error:
                self._rest.failed(error)
        return {vm.ref: unknown_gate(f"the broker could not be asked: {self._rest.why}") for vm in vms}

    def _read(self, vms: Sequence[Vm], machines: Mapping[str, str], inventory: Inventory) -> dict[str, Gate]:
        broker = self._opened()
        pools = {pool.id: pool for pool in broker.pools()}
        ids = {vm.ref: machine for vm in vms if (machine := machines.get(vm.ref, ""))}
        by_id = {ref: broker.machine(machine) for ref, machine in ids.items()} if len(ids) <= SINGLY else {}
        found = {ref: each for ref, each in by_id.items() if each is not None}
        gates: dict[str, Gate] = {}
        for _ in range(LISTS):
            left = [vm for vm in vms if vm.ref not in found and vm.ref not in gates]
            if not left:
                break
            machines_read = {machine.id: machine for machine in broker.machines()}
            match = self._sessions.matched(broker, tuple(machines_read.values()), inventory)
            for vm in left:
                listed = machines_read.get(ids.get(vm.ref, "")) or match.machine_of.get(vm.ref)
                if listed is not None:
                    found[vm.ref] = listed
                elif vm.ref in ids and vm.ref not in by_id and (each := broker.machine(ids[vm.ref])) is not None:
                    found[vm.ref] = each
                elif doubt := _doubt(match, vm.ref, is_known=vm.ref in ids):
                    gates[vm.ref] = unknown_gate(doubt)
        for vm in vms:
            known = found.get(vm.ref)
            self._machines.pop(vm.ref, None)
            if known is not None:
                self._machines[vm.ref] = known
            gates.setdefault(vm.ref, NO_MACHINE if known is None else _gate(known, pools))
        return gates

    def change(self, step: GateStep, vm: Vm) -> None:
        """Sends one change, once. Raises OutcomeUnknown where the reply was lost, Refused in any other case."""
        from gpuops.plan.core.steps import CloseGate

        machine = step.machine or (vm.gate.machine if vm.gate is not None else "")
        closing = isinstance(step, CloseGate)
        if self.fails or not machine:
            why = self._rest.why if self.fails else "which machine of it this is cannot be told"
            raise Refused(f"{vm.name}: the broker was not asked: {why}", hint="look: gpuops broker show")
        try:
            broker = self._opened()
            refused = (broker.enter_maintenance if closing else broker.exit_maintenance)([machine])
        except OutcomeUnknown:
            self.applied = None
            raise
        except NotConnected as error:
            self._rest.failed(error)
            raise Refused(f"{vm.name}: {error.message}", hint="look: gpuops broker show") from error
        self._rest.answered()
        if machine in refused:
            where = "into maintenance" if closing else "out of maintenance"
            raise Refused(f"{vm.name}: the broker does not put it {where}: {refused[machine]}")
        self.applied = True


def _doubt(match: MachineMatch, vm: str, *, is_known: bool) -> str:
    """Why it is not certain that the VM has no gate; empty if it is.

    A machine in maintenance whose VM is not found may be any VM that no machine fits: it was renamed in the night. Of a
    VM whose machine was known by its id (`is_known`), and is gone, this is certain.
    """
    doubt = match.doubt(vm)
    if doubt or is_known:
        return doubt
    closed = [machine.name for machine in match.without_vm if machine.in_maintenance]
    return f"machine {min(closed)} is in maintenance at the broker, and may be this VM" if closed else ""


def _gate(machine: DesktopMachine, pools: Mapping[str, DesktopPool]) -> Gate:
    """What its record says, and why its pool cannot be gated."""
    if machine.in_maintenance is None:
        return Gate(None, machine.id, "the broker does not tell whether it is in maintenance")
    pool = pools.get(machine.pool or "")
    refusal = pool.refusal if pool is not None else "its pool is not told"
    return Gate(
        machine.in_maintenance,
        machine.id,
        f"its pool cannot be gated: {refusal}" if refusal else "",
        (pool.spare_machines or 0) if pool is not None else 0,
    )
