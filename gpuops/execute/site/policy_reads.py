"""Read what a policy needs beyond the bulk read: tags, performance counters, use of vGPUs, sessions and gates.

Sessions are read from the connection broker into a snapshot. The gate of a desktop is the maintenance mode of its
machine at the broker: it is closed, opened and read here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from gpuops import clock
from gpuops.advise.desktop_sessions import NO_AGENT, NOT_IN_LIST, MachineMatch, read_sessions
from gpuops.advise.desktop_sessions import match_machines as match_machines_to_vms
from gpuops.advise.idle import Use, idleness
from gpuops.errors import GpuopsError, LoginRefused, NotConnected, OutcomeUnknown, Refused
from gpuops.model.desktops.broker import (
    NO_MACHINE,
    BrokerVcenter,
    DesktopBroker,
    DesktopMachine,
    DesktopPool,
    Gate,
    unknown_gate,
)
from gpuops.model.desktops.evidence import SessionCount, Source
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm

if TYPE_CHECKING:
    from gpuops.execute.site.ports import DesktopGates, SessionSource, Vcenter, VgpuUseSource
    from gpuops.model.nights.rotation_policy import Policy
    from gpuops.plan.core.steps import GateStep

ASK_AGAIN: Final = timedelta(seconds=60)
"""How long a broker that did not answer is not asked: otherwise each read would wait for it."""


class BrokerRest:
    """Decides whether the broker is asked now, for all its users in a run.

    After a failure it is not asked for a minute, by a clock that cannot be set; its next answer ends the rest. After a
    refused login, which would count towards a lockout, or a missing permission it is not asked again in this run.
    """

    def __init__(self, passed_s: Callable[[], float] = clock.passed_s) -> None:
        """`passed_s` counts seconds since a fixed moment, whatever is done to the clock."""
        self._passed_s = passed_s
        self._failed_s: float | None = None
        self._for_good = False
        self.why = ""
        """The message of the last failure."""

    @property
    def rests(self) -> bool:
        """Whether the broker is not asked now."""
        if self._failed_s is None:
            return False
        return self._for_good or self._passed_s() - self._failed_s < ASK_AGAIN.total_seconds()

    def note_failure(self, error: GpuopsError) -> None:
        """Note that the broker did not answer or refused the request."""
        self._failed_s, self.why = self._passed_s(), error.message
        self._for_good = isinstance(error, LoginRefused) or not isinstance(error, NotConnected)

    def note_answer(self) -> None:
        self._failed_s, self.why = None, ""


class BrokerSessions:
    """Implements `SessionSource` by a connection broker. The connection is opened at the first request and stays open.

    Each call reads all machines and all sessions: a machine that was created again has another id, and an older list
    could not match its session to a VM. `machine_match` finds which machine is which VM. A VM without a machine has no
    count. The vCenters of the broker are read again when machines name other ones.
    """

    def __init__(
        self,
        open_broker: Callable[[], DesktopBroker],
        say: Callable[[str], None] = lambda line: None,
        broker_rest: BrokerRest | None = None,
    ) -> None:
        """`say` is called once with each reason why the broker does not answer. All users share `broker_rest`."""
        self._open_broker = open_broker
        self.say = say
        self.broker_rest = broker_rest or BrokerRest()
        self.match: MachineMatch | None = None
        """Which machine is which VM, by the last read."""
        self._vcenters: tuple[BrokerVcenter, ...] | None = None
        self._vcenter_ids: frozenset[str | None] = frozenset()
        """The vCenters that machines named when the vCenters were read."""
        self._reported: set[str] = set()

    def match_machines(
        self, broker: DesktopBroker, machines: Sequence[DesktopMachine], inventory: Inventory
    ) -> MachineMatch:
        """Return which of the machines is which VM of the inventory."""
        ids = frozenset(machine.vcenter for machine in machines)
        if self._vcenters is None or ids != self._vcenter_ids:
            self._vcenters, self._vcenter_ids = broker.vcenters(), ids
        return match_machines_to_vms(inventory.vms.values(), inventory.vcenter, machines, self._vcenters)

    def sessions(self, vms: Sequence[Vm], inventory: Inventory) -> Mapping[str, SessionCount]:
        """Return VM (ref) -> its sessions by the broker; unknown for all these VMs if it could not be asked."""
        if not self.broker_rest.rests:
            try:
                return self._read(vms, inventory)
            except GpuopsError as error:
                self.broker_rest.note_failure(error)
                self._report_once(error.message)
        unknown_count = SessionCount(None, None, inventory.taken_at, because="the broker could not be asked")
        return dict.fromkeys((vm.ref for vm in vms), unknown_count)

    def _read(self, vms: Sequence[Vm], inventory: Inventory) -> Mapping[str, SessionCount]:
        broker = self._open_broker()
        self.match = self.match_machines(broker, broker.machines(), inventory)
        listed_sessions = read_sessions(self.match, broker.sessions(), inventory.taken_at)
        self.broker_rest.note_answer()
        counts = {vm.ref: count for vm in vms if (count := listed_sessions.of(vm.ref)) is not None}
        without_agent = [vm.ref for vm in vms if vm.power is PowerState.ON and self._lacks_agent(vm.ref)]
        unknown_count = SessionCount(None, None, inventory.taken_at, because=NO_AGENT)
        return counts | {ref: unknown_count for ref in without_agent if counts[ref].used is not True}

    def _lacks_agent(self, ref: str) -> bool:
        machine = self.match.machine_of.get(ref) if self.match is not None else None
        return machine is not None and machine.lacks_agent

    def _report_once(self, why: str) -> None:
        if why not in self._reported:
            self._reported.add(why)
            self.say(f"broker: {why} (gpuops help broker)")


MOST_READ_SINGLY: Final = 64
"""Up to this many machines with known ids are read one by one, which is current; more are read in one list."""

LIST_READS: Final = 2
"""How often the list of machines is read at most, if it lacks a machine."""

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
        by_id = {ref: broker.machine(machine) for ref, machine in ids.items()} if len(ids) <= MOST_READ_SINGLY else {}
        machine_of = {ref: machine for ref, machine in by_id.items() if machine is not None}
        gates: dict[str, Gate] = {}
        for _ in range(LIST_READS):  # a list may lack a machine that the broker has: it is read again
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
            raise Refused(
                f"{vm.name}: gpuops did not ask the broker: {why}", hint="check the broker: gpuops broker show"
            )
        try:
            broker = self._open_broker()
            refused = (broker.enter_maintenance if closing else broker.exit_maintenance)([machine])
        except OutcomeUnknown:
            self.applied = None  # the broker may have changed the gate
            raise
        except NotConnected as error:
            self._broker_rest.note_failure(error)
            raise Refused(f"{vm.name}: {error.message}", hint="check the broker: gpuops broker show") from error
        self._broker_rest.note_answer()
        if machine in refused:
            where = "into maintenance" if closing else "out of maintenance"
            raise Refused(
                f"{vm.name}: the broker refuses to take its machine {where}: {refused[machine]}",
                hint="look at the machine in Horizon Console",
            )
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


NO_SOURCES: Final[Mapping[Source, SessionSource]] = MappingProxyType({})
NO_MACHINES: Final[Mapping[str, str]] = MappingProxyType({})


def with_policy_reads(
    vcenter: Vcenter,
    inventory: Inventory,
    policy: Policy,
    vms: Collection[str] | None = None,
    sources: Mapping[Source, SessionSource] = NO_SOURCES,
    gates: DesktopGates | None = None,
    machines: Mapping[str, str] = NO_MACHINES,
    vgpu_use: VgpuUseSource | None = None,
) -> Inventory:
    """Return the snapshot with what the policy needs beyond the bulk read, for `vms`; None = for all VMs.

    `machines`: VM (ref) -> the broker's id of its machine, for machines whose record must be current.
    """
    if policy.needs_tags:
        inventory = vcenter.with_tags(inventory, vms)
    candidates = inventory.vms.values() if vms is None else [inventory.vms[ref] for ref in vms if ref in inventory.vms]
    measured = policy.running_by_counters(candidates)
    if measured:
        inventory = vcenter.with_counters(inventory, measured, policy.counters, policy.counters_for_s)
    judged_by_use = policy.by_vgpu_use(candidates) if vgpu_use is not None else ()
    if vgpu_use is not None and judged_by_use:
        vms_to_ask = [inventory.vms[ref] for ref in sorted(judged_by_use)]
        use_of_vms = vgpu_use.use(vms_to_ask, inventory)
        inventory = inventory.completed(vms=[replace(vm, vgpu_use=use_of_vms.get(vm.ref)) for vm in vms_to_ask])
    if policy.gates:
        gated = {ref: machines.get(ref, "") for ref in policy.behind_gates(candidates)}
        inventory = with_gates(inventory, gated, gates)
        sources = {**sources, Source.BROKER: gates} if gates is not None else sources
    inventory = _with_sessions(inventory, policy.running_in_pools(candidates) if sources else (), sources)
    inventory = _with_machines_not_found(inventory, sources.get(Source.BROKER))
    return _with_guest_sessions(inventory, policy, candidates, sources.get(Source.SESSIONS))


def with_gates(inventory: Inventory, machines: Mapping[str, str], gates: DesktopGates | None) -> Inventory:
    """Return the snapshot with the broker's gates of these VMs. `machines`: VM (ref) -> id of its machine, or empty."""
    vms_to_ask = [inventory.vms[ref] for ref in sorted(machines) if ref in inventory.vms]
    if not vms_to_ask:
        return inventory
    if gates is None:
        gate_of = {vm.ref: unknown_gate("no connection broker is configured for this vCenter") for vm in vms_to_ask}
    else:
        gate_of = dict(gates.gates(vms_to_ask, machines, inventory))
    return inventory.completed(vms=[replace(vm, gate=gate_of[vm.ref]) for vm in vms_to_ask])


def _with_machines_not_found(inventory: Inventory, broker: SessionSource | None) -> Inventory:
    """Return the snapshot with the broker's machines that are not certainly one of its VMs, by the last read."""
    if not isinstance(broker, BrokerSessions | BrokerGates) or broker.match is None:
        return inventory
    return inventory.with_machines_not_found(broker.match.reasons)


def _with_sessions(inventory: Inventory, refs: Collection[str], sources: Mapping[Source, SessionSource]) -> Inventory:
    """Return the snapshot with the sessions of these VMs from each source, with one request per source."""
    vms_to_ask = [inventory.vms[ref] for ref in sorted(refs)]
    if not vms_to_ask:
        return inventory
    # guests are read later, and only those that seem idle by these sources (`_with_guest_sessions`)
    other_sources = {source: reader for source, reader in sources.items() if source is not Source.SESSIONS}
    counts = {source: reader.sessions(vms_to_ask, inventory) for source, reader in other_sources.items()}
    return inventory.completed(
        vms=[
            replace(
                vm,
                sessions={
                    source: counts_of_source[vm.ref]
                    for source, counts_of_source in counts.items()
                    if vm.ref in counts_of_source
                },
            )
            for vm in vms_to_ask
        ]
    )


def _with_guest_sessions(
    inventory: Inventory, policy: Policy, candidates: Iterable[Vm], guests: SessionSource | None
) -> Inventory:
    """Return the snapshot with sessions read in guests: only of VMs whose pool requires it and that seem idle so far.

    No other guest is entered: the login may not exist there, and a refused login counts towards a lockout.
    """
    refs = policy.running_in_pools(candidates) if guests is not None else ()
    pooled = [(vm, policy.pool_of(vm)) for vm in (inventory.vms[ref] for ref in sorted(refs))]
    vms_with_rule = [(vm, pool.idle) for vm, pool in pooled if pool is not None and Source.SESSIONS in pool.idle.needed]
    if guests is None or not vms_with_rule:
        return inventory
    vms_to_ask = [vm for vm, rule in vms_with_rule if idleness(vm, rule).use is not Use.BUSY]
    not_asked = SessionCount(
        None, None, inventory.taken_at, because="it was not asked: another reading shows that it is in use"
    )
    counts = {vm.ref: not_asked for vm, _ in vms_with_rule} | dict(guests.sessions(vms_to_ask, inventory))
    return inventory.completed(
        vms=[replace(vm, sessions={**(vm.sessions or {}), Source.SESSIONS: counts[vm.ref]}) for vm, _ in vms_with_rule]
    )
