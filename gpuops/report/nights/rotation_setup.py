"""Text and documents of `rotate init` and `rotate skip-next`: what a policy needs, and a skipped night."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Self

from gpuops.model.time_text import format_clock, format_minute
from gpuops.plan.core.rejection import some_names
from gpuops.plan.core.steps import CreateVm
from gpuops.plan.rotation.nights.bounds import Skip
from gpuops.plan.rotation.setup import NO_SNAPSHOTS, Setup, Unmarked, may_be_reverted
from gpuops.report.document import DocumentRecord, Moment, PrintedDocument, printed
from gpuops.report.layout import Shown, Text
from gpuops.report.text import count

SHOWN: Final = 8
"""Number of desktops named in one line; the document has all of them."""


def setup_text(setup: Setup) -> Shown:
    """Return what exists, what was made or is missing, and which desktops their owners have not marked."""
    return _lines(setup)


def _lines(setup: Setup) -> Iterator[Text]:
    word, style = ("made", "green") if setup.made else ("missing", "yellow")
    for name in setup.attributes:
        missing = name in setup.undefined
        yield _line(word if missing else "there", f"custom attribute {name}", style if missing else "dim")
    new = setup.lock_vm_missing
    if new is not None:
        yield _line(word, f"VM {new.name} on {new.host_name}, datastore {new.datastore}, powered off", style)
    elif setup.lock_vm is not None:
        yield _line("there", f"VM {setup.lock_vm}", "dim")
    else:
        yield Text("note: the policy has no lock_vm: a run on another machine is not seen", "dim")
    if setup.lock_vm is not None and (wrong := may_be_reverted(setup.lock_vm_snapshots)):
        yield Text(f"warning: {setup.lock_vm} {wrong}; {NO_SNAPSHOTS}", "yellow")
    if setup.lock_vm is not None:
        yield Text(f"note: nights need VirtualMachine.Config.AdvancedConfig on {setup.lock_vm}", "dim")
    if setup.keeps_drs_off:
        yield Text("note: nights need Host.Inventory.EditCluster on the clusters of the ML VMs (drs_override)", "dim")
    yield from (Text(_unmarked_text(unmarked), "yellow") for unmarked in setup.unmarked)
    yield Text(_summary(setup), "bold")


def _line(word: str, subject: str, style: str) -> Text:
    return Text(f"{word:<8} {subject}", style)


def _unmarked_text(unmarked: Unmarked) -> str:
    """Return the warning about desktops of a pool that lack their owner's mark."""
    names = some_names(unmarked.desktops, SHOWN)
    return (
        f"warning: pool {unmarked.pool}: {len(unmarked.desktops)} of {count(unmarked.of, 'desktop')} "
        f"without {unmarked.mark}, so they stay: {names}; gpuops help marks says how to set it"
    )


def _summary(setup: Setup) -> str:
    number = len(setup.undefined) + (setup.lock_vm_missing is not None)
    if not number:
        return "all is there: nothing to do"
    return f"{count(number, 'thing')} made" if setup.made else f"{count(number, 'thing')} missing, nothing changed"


class AttributeRecord(DocumentRecord, frozen=True):
    """A custom attribute that the policy names."""

    name: str
    defined: bool


class LockVmPlaceRecord(DocumentRecord, frozen=True):
    """Where the lock VM is made."""

    host: str
    datastore: str

    @classmethod
    def made_of(cls, new: CreateVm) -> Self:
        return cls(new.host_name, new.datastore)


class UnmarkedRecord(DocumentRecord, frozen=True):
    """Desktops of a pool that lack its owner's mark."""

    pool: str
    mark: str
    desktops: list[str]


@printed("rotate-init", by="gpuops rotate init")
class RotateInitDocument(PrintedDocument, frozen=True):
    """What a policy needs in a vCenter, and what of it is missing."""

    policy: Annotated[str, "its name"]
    attributes: list[AttributeRecord]
    lock_vm: str | None
    lock_vm_made_on: Annotated[LockVmPlaceRecord | None, "null = it exists, or the policy has none"]
    lock_vm_snapshots: int | None
    keeps_drs_off: bool
    unmarked: list[UnmarkedRecord]
    complete: bool
    changed: Annotated[bool, "whether the missing parts were made"]


def setup_document(setup: Setup) -> RotateInitDocument:
    """Return the setup as a document."""
    return RotateInitDocument.from_attributes(
        setup,
        attributes=[AttributeRecord(name, name not in setup.undefined) for name in setup.attributes],
        lock_vm_made_on=setup.lock_vm_missing,
        lock_vm_snapshots=setup.lock_vm_snapshots if setup.lock_vm is not None else None,
        complete=setup.complete or setup.made,
        changed=setup.made,
    )


def skip_text(skip: Skip) -> Text:
    """Return which night is skipped, or is not skipped any more."""
    opens, closes = (moment.astimezone(skip.night.zone) for moment in (skip.night.opens, skip.night.closes))
    night = f"night {skip.night.id} of policy {skip.policy}, from {format_minute(opens)} to {format_clock(closes)}"
    if not skip.skipped:
        return Text(f"{night}, is not skipped{' any more' if skip.changed else ''}")
    already = "" if skip.changed else "already "
    return Text(f"{night}, is {already}skipped; gpuops rotate skip-next --undo takes that back")


@printed("rotate-skip-next", by="gpuops rotate skip-next")
class RotateSkipNextDocument(PrintedDocument, frozen=True):
    """Which night is left out."""

    policy: Annotated[str, "its name"]
    night: str
    opens: Moment
    closes: Moment
    skipped: bool
    changed: Annotated[bool, "false = nothing was to be changed"]


def skip_document(skip: Skip) -> RotateSkipNextDocument:
    """Return the skipped night as a document."""
    return RotateSkipNextDocument.from_attributes(skip, skip.night, night=skip.night.id)
