"""Rebuilds an unfinished change from the journal: which hosts are done, and which VMs left the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from gpuops.execute.journal.remembered import Intended, IntentState
from gpuops.execute.journal.step_json import Recorded, load_step
from gpuops.plan.core.steps import (
    ConfigureGraphics,
    ConfigureMig,
    ConfigureModes,
    ConfigureModule,
    ConfigurePassthrough,
    EndTurn,
    EnterMaintenance,
    LeaveMaintenance,
    PowerOffVm,
    PowerOnVm,
    RebootHost,
    RelocateVm,
    ShutDownGuest,
)


@dataclass(frozen=True, slots=True)
class DisplacedVm:
    """A VM that was taken from its host and is not back for certain."""

    vm: str
    name: str
    stopped: bool
    """It was shut down; else it runs on another host."""
    uuid: str | None = None
    """Its instance uuid; None = not known."""


@dataclass(slots=True)
class History:
    """The state of a change after the intents of a run, taken in order."""

    ended: set[str] = field(default_factory=set)
    """Hosts that are done."""
    begun: set[str] = field(default_factory=set)
    """Hosts that were begun, those that are done too."""
    reboots: dict[str, RebootHost] = field(default_factory=dict)
    """The reboot that was requested, by host."""
    reboot_requested_at: dict[str, datetime] = field(default_factory=dict)
    """The time of that request by vCenter's clock, by host."""
    taken: dict[str, dict[str, DisplacedVm]] = field(default_factory=dict)
    given_up: frozenset[str] = frozenset()
    """Hosts and VMs that an admin gave up."""

    @property
    def left_open(self) -> frozenset[str]:
        """Return the hosts that were begun and are not done."""
        return frozenset(self.begun - self.ended - self.given_up)

    def _note(self, intended: Intended) -> None:
        step, failed = load_step(intended.step), intended.state is IntentState.FAILED
        match step:
            case EndTurn(host=host):
                self.ended.add(host)
                self.taken.pop(host, None)
            case RebootHost(host=host):
                self.begun.add(host)
                if not failed:
                    self.reboots[host] = step
                    self.reboot_requested_at[host] = intended.seen
            case EnterMaintenance(host=host) | LeaveMaintenance(host=host):
                self.begun.add(host)
            case ConfigureModule(host=host) | ConfigureGraphics(host=host):
                self.begun.add(host)
            case ConfigurePassthrough(host=host) | ConfigureModes(host=host) | ConfigureMig(host=host):
                self.begun.add(host)
            case _:
                self._note_vm(step, intended)

    def _note_vm(self, step: Recorded, intended: Intended) -> None:
        match step:
            case RelocateVm(vm=vm, host=host) if vm in self.taken.get(host, {}):
                self._note_return(host, vm, intended)
            case PowerOnVm(vm=vm):
                for host in self.taken:
                    self._note_return(host, vm, intended)
            case RelocateVm(vm=vm):
                self._note_taken(vm, intended, stopped=False)
            case ShutDownGuest(vm=vm) | PowerOffVm(vm=vm):
                self._note_taken(vm, intended, stopped=True)
            case _:
                pass

    def _note_taken(self, vm: str, intended: Intended, *, stopped: bool) -> None:
        host = str(intended.before.get("host") or "")
        self.begun.add(host)
        # failed steps count too: the guest may still shut down later; and a VM that runs on its own host is not touched
        name = str(intended.before.get("name", vm))
        already = self.taken.setdefault(host, {}).get(vm)
        stopped = stopped or (already is not None and already.stopped)
        self.taken[host][vm] = DisplacedVm(vm, name, stopped, intended.before.get("uuid"))

    def _note_return(self, host: str, vm: str, intended: Intended) -> None:
        if intended.state is IntentState.DONE:
            self.taken.get(host, {}).pop(vm, None)


def history_of(intents: Iterable[Intended], given_up: Collection[str] = ()) -> History:
    """Return the history that these intents make, without what an admin gave up.

    Raises StateDamaged for a step that this version cannot read.
    """
    history = History(given_up=frozenset(given_up))
    for intended in intents:
        history._note(intended)
    return history


def vms_taken_from(host: str, history: History) -> Mapping[str, DisplacedVm]:
    """Return the VMs that belong to the host and are not back, by ref."""
    if host in history.given_up:
        return {}
    return {ref: vm for ref, vm in history.taken.get(host, {}).items() if ref not in history.given_up}
