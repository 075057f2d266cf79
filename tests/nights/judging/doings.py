"""Doings: what the ledger of a night says that gpuops did, for the checkers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from gpuops.execute.runs import RunKind
from gpuops.sim.core.ledger import Entry
from gpuops.sim.core.sim_clock import REQUEST_COST
from gpuops.sim.state.vm_state import Power
from tests.nights.at_once.several import Several
from tests.nights.world.worlds import DAY, EVENING

if TYPE_CHECKING:
    from tests.nights.playing.played import Played

SUSPEND, START, OFF = "SuspendVM_Task", "PowerOnVM_Task", "PowerOffVM_Task"
MOVE, MARK, SHUT_DOWN = "RelocateVM_Task", "SetField", "ShutdownGuest"
CLONE: Final = "CloneVM_Task"
OLD_VALUES: Final = "reads.frozen"
"""Of the outside events of the simulator, the one after which a VM is shown for a while as it was."""
GONE: Final = "is gone from vCenter"
POWERS: Final = (SUSPEND, START, OFF)
CALL: Final = timedelta(seconds=60) + REQUEST_COST
"""The longest time of one call: its reply is a minute late (T11), in addition to the usual time."""


def is_ours(entry: Entry) -> bool:
    """Whether it has one of gpuops' op ids."""
    return entry.operation_id.startswith("gpuops-")


def effects(night: Played, *methods: str) -> list[Entry]:
    """Return what gpuops did, in order, without its writes to the lock VM."""
    ours = (change for change in night.world.ledger if is_ours(change) and not night.is_lock_vm(change.moid))
    return [entry for entry in ours if not methods or entry.method in methods]


def takes(entry: Entry) -> bool:
    """Whether a night took a desktop by it: suspended it, or shut its guest down, which ML VMs are as well."""
    return is_ours(entry) and (entry.method == SUSPEND or (entry.method == SHUT_DOWN and "desktop-" in entry.name))


def takings(night: Played) -> list[Entry]:
    """What nights took, in order: desktops, and GPUs for ML VMs that they started."""
    return [
        entry
        for entry in effects(night)
        if takes(entry) or (entry.method == START and not is_desktop(night, entry.moid, entry.name))
    ]


def machine_of(night: Played, entry: Entry) -> int:
    """The number of the machine whose run sent what this is the effect of; 2 is the one that acts while another is
    paused."""
    run, _, _ = night.sent_by.get(entry.operation_id, (0, "", 0))
    return 2 if run < 0 else night.machine_of[run] if run < len(night.machine_of) else 0


def not_back(ledger: Sequence[Entry]) -> set[str]:
    """Desktops (refs) that we took and that have not run since."""
    suspended_refs: set[str] = set()
    for change in ledger:
        if takes(change):
            suspended_refs.add(change.moid)
        elif change.after.get("power") == Power.ON:
            suspended_refs.discard(change.moid)
    return suspended_refs


def let_go(night: Played) -> set[str]:
    """The desktops (refs) that are gone from vCenter, and that mornings before the last night named: it closes them."""
    by_name = {name: moid for moid, name in night.names.items()}
    last = max((moment for half, _, moment in night.calls if half == RunKind.NIGHT), default=EVENING)
    return {
        by_name.get(refusal.subject, refusal.subject)
        for report, _ in night.told
        if last - report.before.taken_at > DAY / 2
        for refusal in report.plan.unmet
        if refusal.rule == GONE
    }


def told_late(night: Played) -> timedelta:
    """Return how old vCenter's values of a VM may be in this night."""
    ages = (rule.for_s for event in night.events for rule in event.rules if rule.happening == OLD_VALUES)
    return timedelta(seconds=max(ages, default=0.0))


def chosen_as(night: Played, moid: str) -> str:
    """The name by which nights choose a VM: that of the evening; of a VM that came in the night, the one that it had
    when gpuops first touched it. What it is called later changes nothing. A VM that neither is true of goes by its id.
    """
    return night.names.get(moid) or next((entry.name for entry in effects(night) if entry.moid == moid), moid)


def is_desktop(night: Played, moid: str, name: str = "") -> bool:
    """By the name that it has had all along; a VM that came in the night is known by `name` alone."""
    return night.names.get(moid, name).startswith("desktop-")


def clones(night: Played) -> dict[str, str]:
    """The clones that others made in the night: name by ref."""
    return {change.moid: change.name for change in night.world.ledger if change.method == CLONE and not is_ours(change)}


def has_one_journal(night: Played) -> bool:
    """Whether there is one journal, and one policy."""
    return night.site.several in (Several.NONE, Several.POOLS) and not any(
        event.fault == "K6" for event in night.events
    )
