"""Says why a cluster is not made, for each host and VM, and in one line for each thing that is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from gpuops.model.vcenter.host import Host
from gpuops.model.workloads.cluster import ClusterWish
from gpuops.plan.cluster.one_vm import MemberSteps
from gpuops.plan.cluster.prerequisites import Prerequisite
from gpuops.plan.core.plan import Rejection
from gpuops.plan.core.rejection import said_once

ROOM: Final = "VMs that hosts have room for"
_TAKES: Final = "takes "
_LESS: Final = "change in the file what each VM gets: gpus, cpus, memory, datastore"

HostRoom = tuple[tuple[MemberSteps, ...], tuple[Rejection, ...]]
"""The VMs that a host takes, and why not one more."""


def row_refusal(row: Prerequisite) -> Rejection:
    return Rejection(row.subject, f"{row.check}: {row.says}", hint=row.next_move)


def no_room(
    wish: ClusterWish, hosts: Sequence[Host], room: Mapping[str, HostRoom], wanted: int, rows: Sequence[Prerequisite]
) -> Iterator[Rejection]:
    """First how many there is room for, then why not more, host by host, with the rows of hosts that fail. `wanted`: so
    many of its VMs are not there yet, and `room` is for these."""
    failed = [row_refusal(row) for row in rows if row.passed is False]
    if not hosts and not failed:
        where = "" if wish.datastore is not None else " and sees a datastore of the template"
        hint = "gpuops inventory --hosts shows them; the file's key datastore names another datastore"
        yield Rejection(wish.name, f"no host that can be reached has GPUs{where}", hint=hint)
        return
    holds = sum(len(found) for found, _ in room.values())
    hints = [reason.hint for _, reasons in room.values() for reason in reasons[:1] if reason.hint]
    hint = f"ask for {wish.nodes - wanted + holds} nodes or fewer" if holds else next(iter(hints), _LESS)
    yield Rejection(wish.name, ROOM, wanted, holds, hint=hint)
    for host in hosts:
        found, reasons = room[host.ref]
        for reason in reasons[:1]:
            of_gpu = reason.subject.startswith(f"{host.name} ")
            if found and of_gpu:  # held by a VM that is nowhere yet
                yield Rejection(host.name, f"{_TAKES}{len(found)} of them, and has GPUs for no more")
                continue
            said = str(reason).removeprefix(f"{host.name}{' ' if of_gpu else ': '}")
            takes = f"{_TAKES}{len(found)} of them, not one more" if found else f"{_TAKES}none"
            yield Rejection(host.name, f"{takes}: {said}", hint=reason.hint)
    yield from failed


def refused_once(rejections: Sequence[Rejection]) -> tuple[Rejection, ...]:
    """One for each thing that is wrong, worst first, with the hosts or VMs that it is said of summed up in it.

    Too little room is one thing, with its reasons. Where no host passes its checks the checks are what is wrong, those
    of one next move in one line. Of each host the first that fails is said: a switch without RDMA has no VMkernel
    adapter for it either.
    """
    if not rejections or rejections[0].rule != ROOM:
        return said_once(rejections)
    room, *others = rejections
    firsts: dict[str, Rejection] = {}
    for each in others:
        firsts.setdefault(each.subject, each)
    reasons = said_once(firsts.values())
    if others and not any(each.rule.startswith(_TAKES) for each in others):
        moves = dict.fromkeys(each.hint for each in reasons)
        of_one_move = ([each for each in reasons if each.hint == move] for move in moves)
        return tuple(_with_others(first, rest) for first, *rest in of_one_move)
    return (_with_others(room, reasons),)


def _with_others(first: Rejection, others: Sequence[Rejection]) -> Rejection:
    return replace(first, rule="; ".join((first.reason, *map(str, others))), needed=None, available=None)
