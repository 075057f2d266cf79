"""What is written down of a night, for the checkers, and the same as text."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from gpuops.execute.journal.record import Record
from gpuops.plan.core.plan import Report
from gpuops.sim.objects.virtual_machine import VirtualMachine
from gpuops.sim.world import World
from tests.nights.at_once.machines import Beside
from tests.nights.faults.event import Event
from tests.nights.world.worlds import LOCK, Site

OVERRIDE: Final = "ReconfigureComputeResource_Task"


@dataclass
class Played:
    """A night that is over, for the checkers."""

    seed: int
    site: Site
    world: World
    events: tuple[Event, ...]
    running: frozenset[str]
    """Desktops (refs) that ran in the evening."""
    names: dict[str, str]
    uuids: dict[str, str]
    """Instance uuid of each VM (ref) in the evening."""
    takeable: frozenset[str] = frozenset()
    """Desktops (refs) that the policy and their owner both allow to take."""
    cut_sessions: list[tuple[str, datetime, datetime]] = field(default_factory=list)
    """(desktop, when its user sat down or began to work from afar, when we suspended it)."""
    stood: list[tuple[datetime, datetime]] = field(default_factory=list)
    """From when to when its machine was paused, or a process hung that went on."""
    ended: int = 0
    """How many processes hung until a return ended them."""
    in_spite: list[tuple[str, datetime, datetime]] = field(default_factory=list)
    """(desktop, when it was opted out or its owner's mark was taken off, when we suspended it)."""
    sent_by: dict[str, tuple[int, str, int]] = field(default_factory=dict)
    """op id -> number and half of the run that sent it, and how long the ledger was; -1 is the other machine's run."""
    asks: list[tuple[str, datetime, int]] = field(default_factory=list)
    """(op id, when, length of the ledger then) of each request that was sent, in order; the lease's among them."""
    refused: dict[int, str] = field(default_factory=dict)
    """By its number among `asks`, the type of the fault that vCenter answered a request with."""
    strays: frozenset[str] = frozenset()
    """VMs (refs) with the marker of another machine's night, in folders that no policy names."""
    left_over: frozenset[str] = frozenset()
    """VMs (refs) that carried the policy's marker in the evening: a night of which this machine's journal knows nothing
    has taken them, or was to."""
    unsuspendable: dict[str, datetime] = field(default_factory=dict)
    """Desktops (refs) that were given a device with which a VM cannot be suspended, and when."""
    foretold: list[str] = field(default_factory=list)
    """Where what a run did is not what somebody was shown just before that it would do."""
    asked: dict[str, datetime] = field(default_factory=dict)
    """op id -> when the engine sent it last, by the world's clock: what its journal says of that is not asked."""
    calls: list[tuple[str, str, datetime]] = field(default_factory=list)
    """(half, what it ended as, when) of each run; the half of the other machine, or under the other policy, says so."""
    machine_of: list[int] = field(default_factory=list)
    """Of each run, the number of its machine: 1 is the other one."""
    doubtful: frozenset[str] = frozenset()
    """VMs (refs) of which an effect may have happened, for all that anybody could find out."""
    last: Report | None = None
    """The last morning's report."""
    last_elsewhere: Report | None = None
    """The last morning's report of the other machine."""
    second: int = 0
    """Effects of the morning after the last one: none may be left."""
    told: list[tuple[Report, int]] = field(default_factory=list)
    """Each report, with the length of the ledger when it was made."""
    told_elsewhere: list[Report] = field(default_factory=list)
    """Those of them that the other machine made."""
    kept: list[tuple[Record, int]] = field(default_factory=list)
    """Each record of the journals, with the length of the ledger when it was durable."""
    kept_on: dict[int, int] = field(default_factory=dict)
    """By identity of a record, the number of the machine that keeps it; the one that acts while another is paused is
    2."""
    most_on_host: int = 0
    left_behind: frozenset[str] = frozenset()
    """Desktops (refs) still suspended by us in the end, that the simulator itself would let resume."""
    struck: dict[str, int] = field(default_factory=dict)
    most_in_flight: int = 0
    sessions: int = 0
    """The most that a run left behind which was not killed."""
    most_sessions: int = 0
    """That one run had at once."""
    busy: frozenset[str] = frozenset()
    """Desktops (refs) that were used in the evening, and are all night."""
    given_up: frozenset[str] = frozenset()
    """VMs (refs) that a person gave up."""
    asked_for: frozenset[str] = frozenset()
    """VMs (refs) that a person asked for by name."""
    beside: list[Beside] = field(default_factory=list)
    """Each run that was begun while another was under way."""
    lost_journal: bool = False
    """Whether the journal of the first machine was lost in the night."""
    on_a_wrong_clock: list[tuple[str, datetime]] = field(default_factory=list)
    """What was taken when the clocks had been apart for longer than a look may be old."""
    reached: frozenset[tuple[str, str]] = frozenset()
    """Each fault with each stage of the engine, and each whereabouts of a VM, in which it took effect."""

    def is_lock_vm(self, moid: str) -> bool:
        """Whether it is the lock VM, whatever it is called by now; one that came in the night, and may be gone again,
        was once called so."""
        if moid in self.names:
            return self.names[moid] == LOCK
        vm = self.world.find(moid)
        if vm is not None and not isinstance(vm, VirtualMachine):
            return False
        called_so = vm is not None and vm.name == LOCK
        return called_so or any(change.moid == moid and change.name == LOCK for change in self.world.ledger)


def lines(night: Played) -> list[str]:
    """The schedule, each run and its end, and every applied effect, in order of time."""
    log_lines = [f"{json.dumps(event.to_json(), default=str)}" for event in night.events]
    log_lines += [f"{at:%H:%M:%S.%f} {name}: {ended}" for name, ended, at in night.calls]
    for change in night.world.ledger:
        changes = json.dumps([change.before, change.after], sort_keys=True)
        log_lines.append(f"{change.at:%H:%M:%S.%f} {change.user} {change.method} {change.name} {changes}")
    return log_lines


def digest(night: Played) -> str:
    """A short name of the log."""
    return hashlib.sha256("\n".join(lines(night)).encode()).hexdigest()[:16]
