"""What `rotate plan` prints, as text and JSON: who is suspended for whom, who stays and why, and the way back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, tzinfo

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpuops.model.rotation import Role
from gpuops.model.window import Weekday
from gpuops.plan.placement.return_order import role_of
from gpuops.plan.rotation.foresight import Foresight, Win
from gpuops.plan.rotation.proof import HostProof
from gpuops.report.plan_json import SCHEMA_VERSION, Document, rejection_document
from gpuops.report.plan_text import plan_text
from gpuops.report.rotation_status import NO_LOCK_VM
from gpuops.report.text import count, visible


def foresight_text(found: Foresight) -> RenderableType:
    """The night, table by table, and what it wins."""
    return Group(*_parts(found))


def _parts(found: Foresight) -> Iterator[RenderableType]:
    yield Text(_headline(found), "bold")
    yield Text(f"planned on what vCenter showed at {found.inventory.taken_at:%Y-%m-%d %H:%M %Z}", "dim")
    if found.prospect.refusals:
        yield plan_text(found.prospect.plan(), found.inventory)
    if found.wins:
        yield from _table("ML VMs that start", ("VM", "host", "GPUs", "runs", "GPU-hours", "why"), _win_rows(found))
    desktops = list(_desktop_rows(found))
    if desktops:
        yield from _table("desktops that make room", ("VM", "host", "how", "for"), desktops)
    staying = [(choice.subject, choice.reason) for choice in found.prospect.choices if not choice.chosen]
    if staying:
        yield from _table("what stays as it is", ("VM", "why"), staying)
    if found.proofs:
        yield from _table("the way back, in this order", ("host", "from", "VM", "to"), _proof_rows(found))
    yield from (Text(f"warning: {visible(text)}", "yellow") for text in found.warnings)
    if found.prospect.policy.lock_vm is None:
        yield Text(NO_LOCK_VM, "dim")
    yield Text(_summary(found), "bold")


def _headline(found: Foresight) -> str:
    night = found.night
    text = f"policy {visible(found.prospect.policy.name)}, night {found.prospect.night}"
    if night is None:
        return f"{text}, at {_moment(found.at, found)}"
    window = f"open from {_clock(night.opens, found)} to {_clock(night.closes, found)}"
    return f"{text}, at {_moment(found.at, found)}: {window}, desktops back by {_clock(night.back_by, found)}"


def _summary(found: Foresight) -> str:
    if found.prospect.refusals:
        return f"no night: refused for {count(len(found.prospect.refusals), 'reason')}"
    if found.prospect.over:
        return f"no night: night {found.prospect.night} is {found.prospect.ended}"
    hours = f"{found.gpu_hours:.1f} GPU-hours" if found.gpu_hours is not None else "GPU-hours unknown without a window"
    desktops = count(len(found.prospect.served.desktops), "desktop")
    return f"{count(len(found.wins), 'ML VM')} would start, {desktops} would make room: {hours}{_doubt(found)}"


def _doubt(found: Foresight) -> str:
    unproved = [proof.host.name for proof in found.proofs if proof.refusals]
    if unproved:
        return f"; the return to {', '.join(unproved)} is not proved"
    proved = sum(len(proof.order) for proof in found.proofs)
    return f"; {proved} come back, proved" if proved else ""


def _win_rows(found: Foresight) -> Iterator[tuple[str, ...]]:
    chosen = [choice.reason for choice in found.prospect.served.choices if choice.chosen]
    for win, reason in zip(found.wins, chosen, strict=True):
        hours = "unknown" if win.gpu_hours is None else f"{win.gpu_hours:.1f}"
        yield win.start.vm.name, win.start.host.name, f"{win.gpus:g}", _run(win, found), hours, reason


def _run(win: Win, found: Foresight) -> str:
    ends = "" if win.run.ends is None else _clock(win.run.ends, found)
    return f"{_clock(win.run.begins, found)} to {ends or 'the morning'}"


def _desktop_rows(found: Foresight) -> Iterator[tuple[str, ...]]:
    for start in found.prospect.served.starts:
        for vm in start.desktops:
            yield vm.name, start.host.name, _how(role_of(vm)), start.vm.name


def _how(role: Role) -> str:
    return "its guest shuts down" if role is Role.SHUT_DOWN else "suspend"


def _proof_rows(found: Foresight) -> Iterator[tuple[str, ...]]:
    times = found.prospect.return_times
    for proof in found.proofs:
        begins = _clock(times[proof.host.ref], found) if proof.host.ref in times else "any time"
        for comeback in proof.order:
            yield proof.host.name, begins, comeback.vm.name, ", ".join(str(seat) for seat in comeback.seats)
        for refusal in proof.refusals:
            yield proof.host.name, begins, "not proved", str(refusal)


def _table(title: str, columns: Iterable[str], rows: Iterable[tuple[str, ...]]) -> Iterator[RenderableType]:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    yield Text(title, "bold cyan")
    yield table


def _zone(found: Foresight) -> tzinfo:
    windows = found.prospect.policy.windows
    return found.night.zone if found.night is not None else windows[0].zone if windows else UTC


def _moment(moment: datetime, found: Foresight) -> str:
    zone = _zone(found)
    local = moment.astimezone(zone)
    # not `%a`: Ansible switches the locale on, and the day would be named in its language
    return f"{Weekday.of(local.date()).title()} {local:%Y-%m-%d %H:%M} {zone}"


def _clock(moment: datetime, found: Foresight) -> str:
    return f"{moment.astimezone(_zone(found)):%H:%M}"


def foresight_document(found: Foresight) -> Document:
    """The same for programs; every moment in UTC."""
    prospect, night = found.prospect, found.night
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "rotation-plan",
        "vcenter": found.inventory.vcenter,
        "read_at": found.inventory.taken_at.isoformat(),
        "policy": prospect.policy.name,
        "at": _utc(found.at),
        "night": prospect.night,
        "window": None
        if night is None
        else {
            "zone": str(night.zone),
            "opens": _utc(night.opens),
            "closes": _utc(night.closes),
            "back_by": _utc(night.back_by),
        },
        "feasible": not prospect.refusals,
        "exit_code": found.exit_code,
        "over": prospect.over,
        "because": list(prospect.plan().because),
        "rejections": [rejection_document(refusal) for refusal in prospect.refusals],
        "warnings": list(found.warnings),
        "gpu_hours": found.gpu_hours,
        "ml": [_win(win) for win in found.wins],
        "desktops": [
            {
                "ref": vm.ref,
                "name": vm.name,
                "host": start.host.name,
                "how": _word(vm.has_passthrough),
                "for": start.vm.name,
            }
            for start in prospect.served.starts
            for vm in start.desktops
        ],
        "choices": [
            {"subject": choice.subject, "chosen": choice.chosen, "reason": choice.reason} for choice in prospect.choices
        ],
        "returns": [_proof(proof, found) for proof in found.proofs],
    }


def _word(passthrough: bool | None) -> str:
    return "shut-down-guest" if passthrough else "suspend"


def _win(win: Win) -> Document:
    return {
        "ref": win.start.vm.ref,
        "name": win.start.vm.name,
        "host": win.start.host.name,
        "moves": win.start.moves,
        "gpus": win.gpus,
        "begins": _utc(win.run.begins),
        "ends": _utc(win.run.ends) if win.run.ends is not None else None,
        "gpu_hours": win.gpu_hours,
    }


def _proof(proof: HostProof, found: Foresight) -> Document:
    begins = found.prospect.return_times.get(proof.host.ref)
    return {
        "host": {"ref": proof.host.ref, "name": proof.host.name},
        "nothing_taken_from": _utc(begins) if begins is not None else None,
        "proved": not proof.refusals,
        "instants": proof.instants,
        "refusals": [rejection_document(refusal) for refusal in proof.refusals],
        "order": [
            {
                "ref": comeback.vm.ref,
                "name": comeback.vm.name,
                "seats": [{"gpu": str(seat.gpu), "place": seat.place} for seat in comeback.seats],
            }
            for comeback in proof.order
        ],
    }


def _utc(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()
