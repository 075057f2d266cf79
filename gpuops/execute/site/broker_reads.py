"""Read sessions from the connection broker into a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final

from gpuops import clock
from gpuops.advise.desktop_sessions import NO_AGENT, read_sessions
from gpuops.advise.machine_match import MachineMatch
from gpuops.advise.machine_match import match_machines as match_machines_to_vms
from gpuops.errors import GpuopsError, LoginRefused, NotConnected
from gpuops.model.desktops.broker import BrokerVcenter, DesktopBroker, DesktopMachine
from gpuops.model.desktops.evidence import SessionCount
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm

ASK_AGAIN: Final = timedelta(seconds=60)
"""How long a broker that did not answer is not asked: otherwise each read would wait for it. Our own figure."""


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
        read = read_sessions(self.match, broker.sessions(), inventory.taken_at)
        self.broker_rest.note_answer()
        counts = {vm.ref: count for vm in vms if (count := read.of(vm.ref)) is not None}
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
