"""What `rotate init` and `rotate skip-next` print, as text and JSON: what a policy needs, and a skipped night."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuops.plan.rotation.nights.bounds import Skip
from gpuops.plan.rotation.setup import NO_SNAPSHOTS, Setup, Unmarked, may_be_reverted
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.layout import Shown, Text
from gpuops.report.text import count, visible

SHOWN: Final = 8
"""Names of desktops in one line; the document has them all."""


def setup_text(setup: Setup) -> Shown:
    """What is there, what was made or is missing, and which desktops no owner has agreed to."""
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
        yield Text(f"warning: {visible(setup.lock_vm)} {wrong}; {NO_SNAPSHOTS}", "yellow")
    if setup.lock_vm is not None:
        yield Text(f"note: nights need VirtualMachine.Config.AdvancedConfig on {visible(setup.lock_vm)}", "dim")
    if setup.keeps_drs_off:
        yield Text("note: nights need Host.Inventory.EditCluster on the clusters of the ML VMs (drs_override)", "dim")
    yield from (Text(_unmarked(each), "yellow") for each in setup.unmarked)
    yield Text(_summary(setup), "bold")


def _line(word: str, what: str, style: str) -> Text:
    return Text(f"{word:<8} {visible(what)}", style)


def _unmarked(each: Unmarked) -> str:
    more = len(each.desktops) - SHOWN
    shown = ", ".join(each.desktops[:SHOWN]) + (f" and {more} more" if more > 0 else "")
    return visible(
        f"warning: pool {each.pool}: {len(each.desktops)} of {count(each.of, 'desktop')} without {each.mark}, "
        f"so they stay: {shown}; gpuops help marks says how to set it"
    )


def _summary(setup: Setup) -> str:
    number = len(setup.undefined) + (setup.lock_vm_missing is not None)
    if not number:
        return "all is there: nothing to do"
    return f"{count(number, 'thing')} made" if setup.made else f"{count(number, 'thing')} missing, nothing changed"


def setup_document(setup: Setup) -> Document:
    """The same for programs."""
    new = setup.lock_vm_missing
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "rotate-init",
        "policy": setup.policy,
        "attributes": [{"name": name, "defined": name not in setup.undefined} for name in setup.attributes],
        "lock_vm": setup.lock_vm,
        "lock_vm_made_on": {"host": new.host_name, "datastore": new.datastore} if new is not None else None,
        "lock_vm_snapshots": setup.lock_vm_snapshots if setup.lock_vm is not None else None,
        "keeps_drs_off": setup.keeps_drs_off,
        "unmarked": [
            {"pool": each.pool, "mark": each.mark, "desktops": list(each.desktops)} for each in setup.unmarked
        ],
        "complete": setup.complete or setup.made,
        "changed": setup.made,
    }


def skip_text(skip: Skip) -> Text:
    """Which night it is, and whether it is taken."""
    opens, closes = (moment.astimezone(skip.night.zone) for moment in (skip.night.opens, skip.night.closes))
    night = f"night {skip.night.id} of policy {visible(skip.policy)}, from {opens:%Y-%m-%d %H:%M} to {closes:%H:%M}"
    if not skip.skipped:
        return Text(f"{night}, is not skipped{' any more' if skip.changed else ''}")
    already = "" if skip.changed else "already "
    return Text(f"{night}, is {already}skipped; gpuops rotate skip-next --undo takes that back")


def skip_document(skip: Skip) -> Document:
    """The same for programs."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "rotate-skip-next",
        "policy": skip.policy,
        "night": skip.night.id,
        "opens": skip.night.opens.isoformat(),
        "closes": skip.night.closes.isoformat(),
        "skipped": skip.skipped,
        "changed": skip.changed,
    }
