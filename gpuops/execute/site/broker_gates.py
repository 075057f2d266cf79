"""Close, open and read the gate of desktops: maintenance mode of their machines at the connection broker."""

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
"""Up to this many machines with known ids are read one by one, which is current; more are read in one list."""

LISTS: Final = 2
"""How often the list is read for a machine that is not in it."""

_NOT_LISTED: Final = "the broker's list of machines lacks it"


class BrokerGates:
    """Implements `DesktopGates` by a connection broker. The connection is opened at the first request and stays open.

    A VM is found by the id of its machine, if that is known, or by a certain match of `machine_match`. A list may be
    old or incomplete, so:
    - a machine that is about to be changed is read by itself;
    - a machine counts as missing only if the broker, asked for it or for its list again, does not know it either;
    - a VM whose machine names a session never counts as without a session.

    After the broker did not answer, it is not asked for a minute: a return must not wait for it at each step.
    """

    def __init__(self, open_broker: Callable[[], DesktopBroker], sessions: BrokerSessions) -> None:
        """`open_broker` returns the broker, logged in, the same one each time. `sessions` shares its rest."""
        self._open_broker = open_broker
        self._sessions = sessions
        self._broker_rest = sessions.broker_rest
        self._machines: dict[str, DesktopMachine] = {}
        """VM (ref) -> its machine as it was last read."""
        self.applied: bool | None = False
        """Whether a gate was changed; None = not known."""

    @property
    def fails(self) -> bool:
        """Whether the broker failed within the last minute."""
        return self._broker_rest.rests

    @property
    def match(self) -> MachineMatch | None:
        """Which machine is which VM, by the last read of sessions."""
        return self._sessions.match

    def sessions(self, vms: Sequence[Vm], inventory: Inventory) -> Mapping[str, SessionCount]:
        """Return `BrokerSessions.sessions`; unknown if the lists lack a known machine, or the session of one."""
        counts = dict(self._sessions.sessions(vms, inventory))
        for ref in {vm.ref for vm in vms} & self._machines.keys():
            count = counts.get(ref)
            if count is None or (count.used is True and count.count is None):
                counts[ref] = SessionCount(None, None, inventory.taken_at, because=_NOT_LISTED)
            elif count.used is False and self._machines[ref].session is not None:
                counts[ref] = SessionCount(None, None, inventory.taken_at, because=NOT_IN_LIST)
        return counts

    def gates(self, vms: Sequence[Vm], machines: Mapping[str, str], inventory: Inventory) -> Mapping[str, Gate]:
        """Return VM (ref) -> its gate now; unknown if the broker could not be asked. `machines`: known ids."""
        if not self.fails:
            try:
                gate_of_vm = self._read(vms, machines, inventory)
                self._broker_rest.note_answer()
                return gate_of_vm
            except GpuopsError as error:
                self._broker_rest.note_failure(error)
        return {vm.ref: unknown_gate(f"the broker could not be asked: {self._broker_rest.why}") for vm in vms}

    def _read(self, vms: Sequence[Vm], machines: Mapping[str, str], inventory: Inventory) -> dict[str, Gate]:
        """Return VM (ref) -> its gate by the broker's current records. `machines`: known ids of machines.

        Few known machines are read one by one, the others from the broker's list.
        """
        broker = self._open_broker()
        pools = {pool.id: pool for pool in broker.pools()}
        ids = {vm.ref: machine for vm in vms if (machine := machines.get(vm.ref, ""))}
        by_id = {ref: broker.machine(machine) for ref, machine in ids.items()} if len(ids) <= SINGLY else {}
        machine_of = {ref: machine for ref, machine in by_id.items() if machine is not None}
        gates: dict[str, Gate] = {}
        for _ in range(LISTS):  # a list may lack a machine that the broker has: it is read again
            missing_vms = [vm for vm in vms if vm.ref not in machine_of and vm.ref not in gates]
            if not missing_vms:
                break
            machines_read = {machine.id: machine for machine in broker.machines()}
            match = self._sessions.match_machines(broker, tuple(machines_read.values()), inventory)
            for vm in missing_vms:
                listed_machine = machines_read.get(ids.get(vm.ref, "")) or match.machine_of.get(vm.ref)
                if listed_machine is not None:
                    machine_of[vm.ref] = listed_machine
                elif (
                    # the list lacks a known machine that was not read by its id above
                    vm.ref in ids and vm.ref not in by_id and (machine_by_id := broker.machine(ids[vm.ref])) is not None
                ):
                    machine_of[vm.ref] = machine_by_id
                elif doubt := _doubt(match, vm.ref, is_known=vm.ref in ids):
                    gates[vm.ref] = unknown_gate(doubt)
        for vm in vms:
            vm_machine = machine_of.get(vm.ref)
            self._machines.pop(vm.ref, None)
            if vm_machine is not None:
                self._machines[vm.ref] = vm_machine
            gates.setdefault(vm.ref, NO_MACHINE if vm_machine is None else _gate(vm_machine, pools))
        return gates

    def change(self, step: GateStep, vm: Vm) -> None:
        """Ask the broker once to close or open the VM's gate.

        Raises OutcomeUnknown if the reply was lost, and Refused for any other failure.
        """
        from gpuops.plan.core.steps import CloseGate

        machine = step.machine or (vm.gate.machine if vm.gate is not None else "")
        closing = isinstance(step, CloseGate)
        if self.fails or not machine:
            why = self._broker_rest.why if self.fails else "gpuops cannot tell which of its machines this VM is"
            raise Refused(f"{vm.name}: the broker was not asked: {why}", hint="check: gpuops broker show")
        try:
            broker = self._open_broker()
            refused = (broker.enter_maintenance if closing else broker.exit_maintenance)([machine])
        except OutcomeUnknown:
            self.applied = None  # the broker may have changed the gate
            raise
        except NotConnected as error:
            self._broker_rest.note_failure(error)
            raise Refused(f"{vm.name}: {error.message}", hint="check: gpuops broker show") from error
        self._broker_rest.note_answer()
        if machine in refused:
            where = "into maintenance" if closing else "out of maintenance"
            raise Refused(f"{vm.name}: the broker does not put it {where}: {refused[machine]}")
        self.applied = True


def _doubt(match: MachineMatch, vm: str, *, is_known: bool) -> str:
    """Return why it is not certain that the VM has no gate; empty if it is certain.

    A machine in maintenance without a VM may belong to any VM that matches no machine, for example after a rename. It
    is certain for a VM whose machine was known by its id (`is_known`) and no longer exists.
    """
    doubt = match.doubt(vm)
    if doubt or is_known:
        return doubt
    closed = [machine.name for machine in match.without_vm if machine.in_maintenance]
    return f"machine {min(closed)} is in maintenance at the broker, and may be this VM" if closed else ""


def _gate(machine: DesktopMachine, pools: Mapping[str, DesktopPool]) -> Gate:
    """Return the gate of a machine by its record, with the reason if its pool cannot be gated."""
    if machine.in_maintenance is None:
        return Gate(None, machine.id, "the broker does not report whether it is in maintenance")
    pool = pools.get(machine.pool or "")
    refusal = pool.refusal if pool is not None else "its pool is unknown"
    return Gate(
        closed=machine.in_maintenance,
        machine=machine.id,
        refusal=f"its pool cannot be gated: {refusal}" if refusal else "",
        spare_machines=(pool.spare_machines or 0) if pool is not None else 0,
    )
