"""Explains why a cluster is not made: by host and VM, and in one line for each problem."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from gpuops.extras.clusters.one_vm import MemberSteps
from gpuops.model.vcenter.host import Host
from gpuops.model.workloads.cluster import ClusterWish
from gpuops.plan.core.plan import Rejection
from gpuops.plan.core.rejection import said_once
from gpuops.plan.hosts.pvrdma import Prerequisite

ROOM: Final = "VMs that hosts have room for"
_TAKES: Final = "takes "
_LESS: Final = "change in the file what each VM gets: gpus, cpus, memory, datastore"

HostRoom = tuple[tuple[MemberSteps, ...], tuple[Rejection, ...]]
"""The VMs that fit on a host, and the reasons why no further one fits."""


def row_refusal(row: Prerequisite) -> Rejection:
    return Rejection(row.subject, f"{row.check}: {row.says}", hint=row.next_move)


def no_room(
    wish: ClusterWish,
    hosts: Sequence[Host],
    room: Mapping[str, HostRoom],
    missing_vms: int,
    rows: Sequence[Prerequisite],
) -> Iterator[Rejection]:
    """Yield how many VMs there is room for, then the reasons host by host, then the failed rows.

    `missing_vms`: the number of VMs that do not exist yet, to which `room` applies.
    """
    failed = [row_refusal(row) for row in rows if row.passed is False]
    if not hosts and not failed:
        where = "" if wish.datastore is not None else " and sees a datastore of the template"
        hint = "gpuops inventory --hosts shows them; the file's key datastore names another datastore"
        yield Rejection(wish.name, f"no host that can be reached has GPUs{where}", hint=hint)
        return
    holds = sum(len(fitting) for fitting, _ in room.values())
    hints = [reason.hint for _, reasons in room.values() for reason in reasons[:1] if reason.hint]
    hint = f"ask for {wish.nodes - missing_vms + holds} nodes or fewer" if holds else next(iter(hints), _LESS)
    yield Rejection(wish.name, ROOM, missing_vms, holds, hint=hint)
    for host in hosts:
        fitting, reasons = room[host.ref]
        for reason in reasons[:1]:
            of_gpu = reason.subject.startswith(f"{host.name} ")
            if fitting and of_gpu:  # held by a VM that is only planned
                yield Rejection(host.name, f"{_TAKES}{len(fitting)} of them, and has GPUs for no more")
                continue
            reason_text = str(reason).removeprefix(f"{host.name}{' ' if of_gpu else ': '}")
            takes = f"{_TAKES}{len(fitting)} of them, not one more" if fitting else f"{_TAKES}none"
            yield Rejection(host.name, f"{takes}: {reason_text}", hint=reason.hint)
    yield from failed


def refused_once(rejections: Sequence[Rejection]) -> tuple[Rejection, ...]:
    """Return one refusal for each problem, the worst first, with its hosts or VMs summed up.

    Too little room is one problem, with its reasons. If no host passes its checks, the checks are the problems; those
    with the same next move share a line. Only the first failed check of a host counts: a switch without RDMA also has
    no VMkernel adapter for it.
    """
    if not rejections or rejections[0].rule != ROOM:
        return said_once(rejections)
    room, *host_refusals = rejections
    firsts: dict[str, Rejection] = {}
    for refusal in host_refusals:
        firsts.setdefault(refusal.subject, refusal)
    reasons = said_once(firsts.values())
    if host_refusals and not any(refusal.rule.startswith(_TAKES) for refusal in host_refusals):
        moves = dict.fromkeys(refusal.hint for refusal in reasons)
        of_one_move = ([refusal for refusal in reasons if refusal.hint == move] for move in moves)
        return tuple(_with_others(first, more_refusals) for first, *more_refusals in of_one_move)
    return (_with_others(room, reasons),)


def _with_others(first_refusal: Rejection, more_refusals: Sequence[Rejection]) -> Rejection:
    return replace(
        first_refusal, rule="; ".join((first_refusal.reason, *map(str, more_refusals))), needed=None, available=None
    )
