"""Asks the connection broker who has a session, for a snapshot on which is then decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final

from gpuops import clock
from gpuops.advise.desktop_sessions import NO_AGENT, read_sessions
from gpuops.advise.machine_match import MachineMatch, match_machines
from gpuops.errors import GpuopsError, LoginRefused, NotConnected
from gpuops.model.desktops.broker import BrokerVcenter, DesktopBroker, DesktopMachine
from gpuops.model.desktops.evidence import SessionCount
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm

ASK_AGAIN: Final = timedelta(seconds=60)
"""A broker that did not answer is left alone for so long: each look would wait for it anew. Our own figure."""


class BrokerRest:
    """Whether the broker is asked now, or let rest: one answer for everything that asks it in a run.

    After it has failed it rests for a minute, by a clock that nobody sets; the first answer after that ends it. A login
    that is refused is not tried again, since it would count towards a lockout, nor is what the account may not do.
    """

    def __init__(self, passed_s: Callable[[], float] = clock.passed_s) -> None:
        """`passed_s` counts seconds since some moment, whatever is done to the clock."""
        self._passed_s = passed_s
        self._failed_s: float | None = None
        self._for_good = False
        self.why = ""
        """How it failed last."""

    @property
    def rests(self) -> bool:
        """Whether it is not asked now."""
        if self._failed_s is None:
            return False
        return self._for_good or self._passed_s() - self._failed_s < ASK_AGAIN.total_seconds()

    def failed(self, error: GpuopsError) -> None:
        """It did not answer, or refused to."""
        self._failed_s, self.why = self._passed_s(), error.message
        self._for_good = isinstance(error, LoginRefused) or not isinstance(error, NotConnected)

    def answered(self) -> None:
        self._failed_s, self.why = None, ""


class BrokerSessions:
    """Implements `SessionSource` by a connection broker, which is opened when it is first asked and stays open.

    Two bulk reads at each look, of machines and of sessions: a machine that was made anew has another id, and by an
    older list its session would be nobody's. `machine_match` says which machine is which VM. A VM that is no machine
    has no count. The vCenters of the broker are read again when machines name others.
    """

    def __init__(
        self,
        opened: Callable[[], DesktopBroker],
        say: Callable[[str], None] = lambda line: None,
        rest: BrokerRest | None = None,
    ) -> None:
        """`say` is told once of each way in which the broker does not answer. `rest` is shared by all that ask it."""
        self._opened = opened
        self.say = say
        self.rest = rest or BrokerRest()
        self.match: MachineMatch | None = None
        """Which machine is which VM, by the last look."""
        self._vcenters: tuple[BrokerVcenter, ...] | None = None
        self._vcenter_ids: frozenset[str | None] = frozenset()
        """The vCenters that machines named when the vCenters were read."""
        self._said: set[str] = set()

    def matched(self, broker: DesktopBroker, machines: Sequence[DesktopMachine], inventory: Inventory) -> MachineMatch:
        """Return which of the machines is which VM of the inventory."""
        ids = frozenset(machine.vcenter for machine in machines)
        if self._vcenters is None or ids != self._vcenter_ids:
            self._vcenters, self._vcenter_ids = broker.vcenters(), ids
        return match_machines(inventory.vms.values(), inventory.vcenter, machines, self._vcenters)

    def sessions(self, vms: Sequence[Vm], inventory: Inventory) -> Mapping[str, SessionCount]:
        """By VM (ref), what the broker tells of it; of each of these VMs that it could not be asked about, unknown."""
        if not self.rest.rests:
            try:
                return self._asked(vms, inventory)
            except GpuopsError as error:
                self.rest.failed(error)
                self._tell(error.message)
        unknown = SessionCount(None, None, inventory.taken_at, because="the broker could not be asked")
        return dict.fromkeys((vm.ref for vm in vms), unknown)

    def _asked(self, vms: Sequence[Vm], inventory: Inventory) -> Mapping[str, SessionCount]:
        broker = self._opened()
        self.match = self.matched(broker, broker.machines(), inventory)
        read = read_sessions(self.match, broker.sessions(), inventory.taken_at)
        self.rest.answered()
        counts = {vm.ref: count for vm in vms if (count := read.of(vm.ref)) is not None}
        without_agent = [vm.ref for vm in vms if vm.power is PowerState.ON and self._lacks_agent(vm.ref)]
        unknown = SessionCount(None, None, inventory.taken_at, because=NO_AGENT)
        return counts | {ref: unknown for ref in without_agent if counts[ref].used is not True}

    def _lacks_agent(self, ref: str) -> bool:
        machine = self.match.machine_of.get(ref) if self.match is not None else None
        return machine is not None and machine.lacks_agent

    def _tell(self, why: str) -> None:
        if why not in self._said:
            self._said.add(why)
            self.say(f"broker: {why} (gpuops help broker)")
