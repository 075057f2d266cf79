"""What `rotate status`, `rotate overdue` and `rotate audit` print, as text and JSON.

What the nights took, where each VM is now, and whether the journal is as gpuops wrote it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from gpuops.model.nights.journal import Audit, AuditedChain
from gpuops.plan.rotation.lease import Lease, lease_holder_text
from gpuops.plan.rotation.returns.overdue import Overdue
from gpuops.plan.rotation.status import RotationStatus
from gpuops.plan.rotation.taken_vms import RETURN_COMMAND, TakenVm, Whereabouts
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.hosts.given_up import missed_documents, missed_lines
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.text import count, visible

_STYLES = {
    Whereabouts.AWAY: "yellow",
    Whereabouts.CHANGING: "cyan",
    Whereabouts.BACK: "green",
    Whereabouts.UNTOUCHED: "dim",
    Whereabouts.LOST: "bold red",
    Whereabouts.GONE: "bold red",
    Whereabouts.FOREIGN: "yellow",
    Whereabouts.GIVEN_UP: "magenta",
    Whereabouts.UNKNOWN: "yellow",
}

NO_LOCK_VM: Final = "the policy has no lock_vm: a run on another machine is not seen"


def status_text(status: RotationStatus) -> Shown:
    """What is open, VM by VM, and the command that closes it."""
    lines: list[Shown] = []
    if status.journal_lost:
        lines.append(Text(f"{visible(status.journal_lost)}: this is what vCenter's markers say", "bold red"))
        lines.append(Text("next: gpuops rotate day --policy FILE brings back what they name"))
    if status.under_way is not None:
        seen = status.under_way.seen
        last = f", last sign of life {seen:%Y-%m-%d %H:%M:%S %Z}" if seen is not None else ""
        lines.append(Text(f"{status.doing or 'a rotation'} is under way: {status.under_way}{last}", "bold cyan"))
    if status.cut_off is not None:
        lines.append(Text(f"{status.cut_off} began {_since(status)}and did not end", "bold red"))
        lines.append(Text("next: gpuops rotate resume finishes it"))
    lines += _lease_lines(status)
    lines += [
        Text(f"night {night} is skipped: gpuops rotate skip-next --undo takes that back", "yellow")
        for night in status.skipped
    ]
    lines += _overdue_lines(status.overdue, status.overdue_unknown)
    lines += [Text(f"warning: {visible(text)}", "yellow") for text in status.timers]
    heard = [] if status.remembered or status.journal_lost else [Text(_no_journal(status), "dim")]
    heard += missed_lines(status.given_up)
    if status.policy is not None and status.lock_vm is None:
        heard.append(Text(NO_LOCK_VM, "dim"))
    if not status.vms:
        return (*lines, Text("no night is open: nothing is suspended or running for a rotation", "bold"), *heard)
    policy = f"policy {visible(status.policy)}: " if status.policy else ""
    closing = Text(f"{policy}{count(len(status.away), 'VM')} away{_others(status)}", "bold")
    return (*lines, closing, *heard, _table(status))


def status_document(status: RotationStatus) -> Document:
    """The same for programs."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "rotation-status",
        "vcenter": status.vcenter,
        "policy": status.policy,
        "remembered": status.remembered,
        "journal_lost": status.journal_lost or None,
        "under_way": _under_way(status),
        "cut_off": status.cut_off,
        "cut_off_since": status.cut_off_since.isoformat() if status.cut_off_since else None,
        "lock_vm": status.lock_vm,
        "lease": lease_document(status.lease) if status.lease else None,
        "lock_trouble": status.lock_trouble or None,
        "skipped": list(status.skipped),
        "given_up": missed_documents(status.given_up),
        "overdue": [overdue_document(each) for each in status.overdue],
        "overdue_unknown": list(status.overdue_unknown),
        "timers": list(status.timers),
        "away": len(status.away),
        "changing": len(status.changing),
        "vms": [_vm(taken_vm, status) for taken_vm in status.vms],
    }


def lease_document(lease: Lease) -> Document:
    """Who holds it, and until when by vCenter's clock."""
    return {
        "owner": lease.owner,
        "id": lease.nonce,
        "epoch": lease.epoch,
        "expires": lease.expires.isoformat(),
    }


def overdue_document(overdue: Overdue) -> Document:
    """A vCenter that nobody seems to return."""
    return {
        "vcenter": overdue.vcenter,
        "vms": list(overdue.vms),
        "closed": overdue.closed.isoformat(),
        "last_return": overdue.last_return.isoformat() if overdue.last_return is not None else None,
    }


def _lease_lines(status: RotationStatus) -> list[Shown]:
    if status.lock_trouble:
        return [Text(f"warning: {visible(status.lock_trouble)}", "yellow")]
    if status.lease is not None:
        return [Text(f"{visible(lease_holder_text(status.lease))} (id {visible(status.lease.nonce)})", "cyan")]
    return []


def _others(status: RotationStatus) -> str:
    """What is neither away nor as it was: `, 2 changing, 1 lost`."""
    quiet = (Whereabouts.AWAY, Whereabouts.BACK, Whereabouts.UNTOUCHED)
    numbers = Counter(taken_vm.whereabouts for taken_vm in status.vms if taken_vm.whereabouts not in quiet)
    return "".join(f", {numbers[kind]} {kind}" for kind in Whereabouts if numbers[kind])


def _no_journal(status: RotationStatus) -> str:
    looked = f"the journal of this machine knows no night of this vCenter: looked for the marker {status.marker} alone"
    return visible(looked if status.policy else f"{looked}; --policy FILE looks for that of a policy")


def _under_way(status: RotationStatus) -> Document | None:
    holder = status.under_way
    if holder is None:
        return None
    return {
        "kind": status.doing,
        "pid": holder.pid,
        "since": holder.since.isoformat() if holder.since else None,
    }


def _since(status: RotationStatus) -> str:
    return f"at {status.cut_off_since:%Y-%m-%d %H:%M %Z} " if status.cut_off_since else ""


def _table(status: RotationStatus) -> TextTable:
    idle = status.under_way is None  # while a run is under way, no other command is the next move
    table = TextTable("VM", "role", "night", "was on", "now", "why", *(("next",) if idle else ()))
    for taken_vm in status.vms:
        original = taken_vm.original
        table.add_row(
            visible(original.name),
            original.role.value,
            visible(original.night),
            visible(status.names.get(original.host or "", original.host or "unknown")),
            Text(taken_vm.whereabouts.value, _STYLES[taken_vm.whereabouts]),
            visible(taken_vm.reason),
            *((visible(_advice(taken_vm, status)),) if idle else ()),
        )
    return table


def _advice(taken_vm: TakenVm, status: RotationStatus) -> str:
    """Return what to type for one VM; nothing if `rotate resume`, which is named above the table, brings it back."""
    if status.cut_off is not None and taken_vm.advice == RETURN_COMMAND:
        return ""
    return taken_vm.advice


def _vm(taken_vm: TakenVm, status: RotationStatus) -> Document:
    original = taken_vm.original
    return {
        "ref": original.vm,
        "name": original.name,
        "instance_uuid": original.uuid,
        "role": original.role.value,
        "night": original.night,
        "host": status.names.get(original.host or "", original.host),
        "profiles": list(original.profiles),
        "whereabouts": taken_vm.whereabouts.value,
        "reason": taken_vm.reason,
        "first": taken_vm.first,
        "command": taken_vm.command,
    }


def all_overdue_text(vcenters: Sequence[Overdue], unreadable: Sequence[str]) -> Shown:
    """One line for each overdue vCenter and for each one whose journal cannot be read."""
    lines = _overdue_lines(vcenters, unreadable)
    return lines or Text("no vCenter is overdue: each night that is over has a return")


def _overdue_lines(vcenters: Sequence[Overdue], unreadable: Sequence[str]) -> list[Text]:
    lines = [Text(visible(f"overdue: {vcenter}; next: {vcenter.next_move}"), "bold red") for vcenter in vcenters]
    return lines + [Text(visible(f"whether it is returned is not known: {reason}"), "red") for reason in unreadable]


def all_overdue_document(vcenters: Sequence[Overdue], unreadable: Sequence[str]) -> Document:
    """The same for programs."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "rotation-overdue",
        "overdue": [overdue_document(vcenter) for vcenter in vcenters],
        "overdue_unknown": list(unreadable),
    }


def audit_text(audit: Audit) -> Shown:
    """A line for each vCenter, and one for all of it."""
    lines = [Text(visible(_chain_line(chain)), "red" if chain.bad else "") for chain in audit.chains]
    if audit.damage:
        lines.append(Text(visible(audit.damage), "red"))
    lines.append(Text(visible(f"{_audit_verdict(audit)}: {audit.journal}"), "bold"))
    if not audit.whole:
        lines.append(
            Text("next: gpuops rotate day --policy FILE goes by vCenter's markers; then move the journal aside")
        )
    return lines


def audit_document(audit: Audit) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "rotate-audit",
        "journal": audit.journal,
        "whole": audit.whole,
        "damage": audit.damage or None,
        "vcenters": [
            {
                "vcenter": chain.vcenter,
                "good_records": chain.good,
                "first_at": chain.first.isoformat() if chain.first is not None else None,
                "last_at": chain.last.isoformat() if chain.last is not None else None,
                "head": chain.head,
                "bad": chain.bad or None,
            }
            for chain in audit.chains
        ],
    }


def _chain_line(chain: AuditedChain) -> str:
    between = f" from {_minute(chain.first)} to {_minute(chain.last)}" if chain.first and chain.last else ""
    good = f"{chain.good:,} record{'' if chain.good == 1 else 's'}{between}"
    if chain.bad:
        return f"vCenter {chain.vcenter}: {chain.bad}; only the {good} before it can be trusted"
    return f"vCenter {chain.vcenter}: {good}, head {chain.head}"


def _audit_verdict(audit: Audit) -> str:
    if not audit.whole:
        return "changed by something else than gpuops"
    return "as gpuops wrote it" if audit.chains else "nothing was recorded yet"


def _minute(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M %Z}"
