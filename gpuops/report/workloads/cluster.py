"""What `gpuops cluster` prints: prerequisites, where each VM goes, what became of it, and what is there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from gpuops.plan.cluster.answers import ClusterMade, ClusterRemoved, ShownCluster
from gpuops.plan.cluster.plan import ClusterPlan, PlannedMember
from gpuops.plan.cluster.prerequisites import Prerequisite
from gpuops.plan.core.device_signature import is_no_gpu
from gpuops.plan.core.plan import Rejection
from gpuops.plan.core.steps import PowerOnVm, ReconfigureVm, SetVmDrs
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.text import count, visible

_STYLES: Final = {"pass": "green", "fail": "bold red", "unknown": "yellow"}
_WIDTH: Final = 9


def cluster_plan_text(plan: ClusterPlan) -> Shown:
    """The rows, then a line for each VM."""
    lines: list[Shown] = list(_rows(plan))
    if plan.new:
        first, gpus = plan.new[0], plan.wish.profile or f"whole {plan.wish.model}"
        size = f"{first.vcpus} vCPUs, {first.memory_mib} MiB, all reserved"
        lines.append(f"each: {size}, GPUs: {plan.wish.gpus} x {visible(gpus)}, RDMA: {plan.wish.rdma}")
    table = TextTable("rank", "VM", "host", "steps", "where", right=(0,))
    for each in plan.members:
        table.add_row(str(each.rank), visible(each.name), visible(each.host.name), _deeds_text(each), each.says)
    lines.append(table)
    lines += [Text(f"warning: {visible(line)}", "yellow") for line in plan.warnings]
    return lines


def _rows(plan: ClusterPlan) -> Iterator[Text]:
    """What passes in one line for each template or host, the rest row by row with its next move."""
    for subject in dict.fromkeys(row.subject for row in plan.rows):
        rows = [row for row in plan.rows if row.subject == subject]
        passed = ", ".join(row.check for row in rows if row.passed)
        if passed:
            yield Text(f"{'pass':<{_WIDTH}}", _STYLES["pass"]).append(f"{visible(subject)}: {passed}")
        for row in rows:
            if not row.passed:
                yield from _row(row)


def _row(row: Prerequisite) -> Iterator[Text]:
    line = f"{visible(row.subject)}: {row.check}: {visible(row.says)}"
    yield Text(f"{row.state:<{_WIDTH}}", _STYLES[row.state]).append(line)
    yield Text(f"{'':<{_WIDTH}}next: {visible(row.next_move)}", "dim")


def _deeds_text(member: PlannedMember) -> str:
    return ", ".join(_deeds(member)) or "none"


def _deeds(member: PlannedMember) -> Iterator[str]:
    if member.new is not None:
        yield "clone"
    for step in member.steps:
        match step:
            case ReconfigureVm(change=change):
                yield "network adapter" if any(map(is_no_gpu, change.add)) else "GPUs"
            case SetVmDrs():
                yield "DRS override"
            case PowerOnVm():
                yield "start"
            case _:
                yield step.noun


def cluster_made_text(made: ClusterMade) -> Shown:
    """What became of a call; nothing where it was refused, whose reasons are no result."""
    if made.plan.rejections:
        return ()
    name = visible(made.plan.wish.name)
    lines: list[Shown] = [cluster_plan_text(made.plan)]
    if made.failed:
        lines.append(Text(f"failed: {visible(made.failed)}", "bold red"))
        if made.undone:
            lines.append(Text("all that was made is removed again", "dim"))
        lines += [Text(f"left: {visible(line)}", "red") for line in made.left]
        if not made.undone:
            lines.append(Text("the same again goes on; gpuops cluster delete removes what is there", "dim"))
        return lines
    if not made.plan.changes:
        lines.append(Text(f"cluster {name} is there, whole: nothing to do", "bold"))
    elif made.applied:
        members = ((each, made.addresses.get(each.name, "")) for each in made.plan.members)
        lines += [Text(f"{visible(each.name)} {visible(address)}") for each, address in members if address]
        lines.append(Text(f"cluster {name} runs: {count(len(made.plan.members), 'VM')}", "bold"))
    else:
        lines.append(Text("dry run: nothing was changed", "dim"))
    return lines


def cluster_made_document(made: ClusterMade) -> Document:
    """The same for programs."""
    plan = made.plan
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "cluster-create",
        "cluster": plan.wish.name,
        "id": plan.id,
        "applied": made.applied,
        "changed": made.changed,
        "feasible": plan.feasible,
        "rows": [_row_values(row) for row in plan.rows],
        "rejections": [_rejection(each) for each in plan.rejections],
        "warnings": list(plan.warnings),
        "members": [
            {
                "rank": each.rank,
                "name": each.name,
                "host": each.host.name,
                "does": list(_deeds(each)),
                "says": each.says,
                "address": made.addresses.get(each.name),
            }
            for each in plan.members
        ],
        "failed": made.failed,
        "undone": made.undone,
        "left": list(made.left),
    }


def _row_values(row: Prerequisite) -> dict[str, Any]:
    return {"subject": row.subject, "check": row.check, "state": row.state, "says": row.says, "next": row.next_move}


def _rejection(each: Rejection) -> dict[str, str]:
    return {"subject": each.subject, "reason": each.reason, "next": each.hint}


def clusters_text(found: tuple[ShownCluster, ...]) -> Shown:
    """Cluster by cluster its VMs, and what is wrong with it."""
    if not found:
        return "no cluster is there"
    lines: list[Shown] = []
    for each in found:
        state = "runs" if not each.problems else "is not whole"
        lines.append(Text(f"{visible(each.name)}: {count(each.nodes, 'VM')}, {state}, id {visible(each.id)}", "bold"))
        table = TextTable("rank", "VM", "host", "power", "devices", "address", "RDMA", right=(0, 4))
        for one in each.members:
            power, host = one.power or "unknown", visible(one.host or "unknown")
            cells = (str(one.devices), visible(one.address or "-"), one.rdma)
            table.add_row(str(one.rank), visible(one.name), host, power, *cells)
        lines.append(table)
        lines += [Text(visible(problem), "yellow") for problem in each.problems]
    return lines


def clusters_document(found: tuple[ShownCluster, ...]) -> Document:
    """The same for programs."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "cluster-show",
        "clusters": [
            {
                "name": each.name,
                "id": each.id,
                "nodes": each.nodes,
                "whole": not each.problems,
                "problems": list(each.problems),
                "members": [
                    {
                        "rank": one.rank,
                        "vm": {"ref": one.vm, "name": one.name},
                        "host": one.host,
                        "power": one.power,
                        "devices": one.devices,
                        "address": one.address,
                        "rdma": one.rdma,
                    }
                    for one in each.members
                ],
            }
            for each in found
        ],
    }


def cluster_removed_text(found: ClusterRemoved) -> Shown:
    """What is removed, or was; nothing where it was refused."""
    if found.rejections:
        return ()
    name = visible(found.name)
    if not found.vms and not found.overrides:
        return f"there is no VM of a cluster {name}: nothing to do"
    verb = "removed" if found.applied else "to remove"
    left = {line.partition(":")[0] for line in found.left}
    lines: list[Shown] = [f"{verb}: {visible(each.vm.name)}" for each in found.vms if each.vm.name not in left]
    lines += [Text(f"left: {visible(line)}", "red") for line in found.left]
    taken = "override of DRS taken back" if found.applied else "override of DRS to take back"
    lines += [f"{taken}: {visible(vm)}, which stays" for vm in found.overrides]
    return lines


def cluster_removed_document(found: ClusterRemoved) -> Document:
    """The same for programs."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "cluster-delete",
        "cluster": found.name,
        "applied": found.applied,
        "changed": found.changed,
        "rejections": [_rejection(each) for each in found.rejections],
        "vms": [{"ref": each.vm.ref, "name": each.vm.name} for each in found.vms],
        "left": list(found.left),
        "overrides": list(found.overrides),
    }
