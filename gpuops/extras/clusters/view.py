"""The output of `gpuops cluster`: prerequisites, the host of each VM, the outcome, and existing clusters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Final, Self

from gpuops.extras.clusters.answers import ClusterMade, ClusterRemoved
from gpuops.extras.clusters.plan import ClusterPlan, PlannedMember
from gpuops.model.vcenter.vm import PowerState
from gpuops.model.workloads.cluster import RdmaKind
from gpuops.plan.core.passthru_devices import is_no_gpu
from gpuops.plan.core.steps import PowerOnVm, ReconfigureVm, SetVmDrs
from gpuops.plan.hosts.pvrdma import Prerequisite
from gpuops.report.document import DocumentRecord, NamedRecord, PrintedDocument, printed
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.plan_json import RefusalRecord
from gpuops.report.text import count

_STYLES: Final = {"pass": "green", "fail": "bold red", "unknown": "yellow"}
_WIDTH: Final = 9


def cluster_plan_text(plan: ClusterPlan) -> Shown:
    """Return the checks of the template and hosts, then a table with host and steps of each VM, and warnings."""
    lines: list[Shown] = list(_rows(plan))
    if plan.new:
        first, gpus = plan.new[0], plan.wish.profile or f"whole {plan.wish.model}"
        size = f"{first.vcpus} vCPUs, {first.memory_mib} MiB, all reserved"
        lines.append(f"each: {size}, GPUs: {plan.wish.gpus} x {gpus}, RDMA: {plan.wish.rdma}")
    table = TextTable("rank", "VM", "host", "steps", "where", right=(0,))
    for member in plan.members:
        table.add_row(
            str(member.rank), member.name, member.host.name, ", ".join(_steps_of(member)) or "none", member.says
        )
    lines.append(table)
    lines += [Text(f"warning: {line}", "yellow") for line in plan.warnings]
    return lines


def _rows(plan: ClusterPlan) -> Iterator[Text]:
    """Yield one line with the checks that pass for each template or host, then each other row with its next move."""
    for subject in dict.fromkeys(row.subject for row in plan.rows):
        rows = [row for row in plan.rows if row.subject == subject]
        passed = ", ".join(row.check for row in rows if row.passed)
        if passed:
            yield Text(f"{'pass':<{_WIDTH}}", _STYLES["pass"]).append(f"{subject}: {passed}")
        for row in rows:
            if not row.passed:
                yield from _row(row)


def _row(row: Prerequisite) -> Iterator[Text]:
    line = f"{row.subject}: {row.check}: {row.says}"
    yield Text(f"{row.state:<{_WIDTH}}", _STYLES[row.state]).append(line)
    yield Text(f"{'':<{_WIDTH}}next: {row.next_move}", "dim")


def _steps_of(member: PlannedMember) -> Iterator[str]:
    """Yield the name of each planned step of the VM, for people."""
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


def cluster_made_text(outcome: ClusterMade) -> Shown:
    """Return the plan and the outcome of `cluster create`; () if it was refused, because refusals go to stderr."""
    if outcome.plan.rejections:
        return ()
    name = outcome.plan.wish.name
    lines: list[Shown] = [cluster_plan_text(outcome.plan)]
    if outcome.failed:
        lines.append(Text(f"failed: {outcome.failed}", "bold red"))
        if outcome.undone:
            lines.append(Text("all that was made is removed again", "dim"))
        lines += [Text(f"left: {line}", "red") for line in outcome.left]
        if not outcome.undone:
            lines.append(
                Text("run the same command again to continue; gpuops cluster delete removes what exists", "dim")
            )
        return lines
    if not outcome.plan.changes:
        lines.append(Text(f"cluster {name} is complete: nothing to do", "bold"))
    elif outcome.applied:
        members = ((member, outcome.addresses.get(member.name, "")) for member in outcome.plan.members)
        lines += [Text(f"{member.name} {address}") for member, address in members if address]
        lines.append(Text(f"cluster {name} runs: {count(len(outcome.plan.members), 'VM')}", "bold"))
    else:
        lines.append(Text("dry run: nothing was changed", "dim"))
    return lines


class ClusterRowRecord(DocumentRecord, frozen=True):
    """One prerequisite."""

    subject: Annotated[str, "the template, a host or a port group"]
    check: Annotated[str, "what was looked at"]
    state: Annotated[str, "pass, fail or unknown"]
    says: Annotated[str, "what is there"]
    next: Annotated[str, "what to do about it; empty where it passes"]

    @classmethod
    def made_of(cls, row: Prerequisite) -> Self:
        return cls.from_attributes(row, next=row.next_move)


class ClusterMemberRecord(DocumentRecord, frozen=True):
    """One VM as it is planned."""

    rank: int
    name: str
    host: Annotated[str, "its name"]
    does: Annotated[list[str], "what is done, in words; empty = nothing"]
    says: Annotated[str, "whether GPU and network card are on one NUMA node"]
    address: Annotated[str | None, "of its guest, once it runs"]


@printed("cluster-create", by="gpuops cluster create")
class ClusterCreateDocument(PrintedDocument, frozen=True):
    """What makes a cluster of VMs, and what became of it."""

    cluster: Annotated[str, "its name"]
    id: Annotated[str, "eight hexadecimal digits, drawn for it"]
    applied: bool
    changed: Annotated[bool, "whether vCenter was changed, or would be"]
    feasible: Annotated[bool, "whether nothing speaks against it"]
    rows: Annotated[list[ClusterRowRecord], "what template and hosts must have"]
    rejections: Annotated[list[RefusalRecord], "every reason against it"]
    warnings: list[str]
    members: Annotated[list[ClusterMemberRecord], "by rank"]
    failed: Annotated[str, "what went wrong; empty = nothing did"]
    undone: Annotated[bool, "whether all that was made is removed again"]
    left: Annotated[list[str], "VMs that are to be removed and could not be, each with its reason"]

    @classmethod
    def made_of(cls, outcome: ClusterMade) -> Self:
        members = [
            ClusterMemberRecord.from_attributes(
                member,
                host=member.host.name,
                does=list(_steps_of(member)),
                address=outcome.addresses.get(member.name),
            )
            for member in outcome.plan.members
        ]
        return cls.from_attributes(outcome, outcome.plan, cluster=outcome.plan.wish.name, members=members)


def clusters_text(clusters: Sequence[ShownTrainingClusterRecord]) -> Shown:
    """Return a table with the VMs of each cluster, followed by its problems."""
    if not clusters:
        return "no cluster is there"
    lines: list[Shown] = []
    for cluster in clusters:
        state = "runs" if cluster.whole else "is not complete"
        lines.append(Text(f"{cluster.name}: {count(cluster.nodes, 'VM')}, {state}, id {cluster.id}", "bold"))
        table = TextTable("rank", "VM", "host", "power", "devices", "address", "RDMA", right=(0, 4))
        for member in cluster.members:
            power, host = member.power or "unknown", member.host or "unknown"
            cells = (str(member.devices), member.address or "-", member.rdma)
            table.add_row(str(member.rank), member.vm.name, host, power, *cells)
        lines.append(table)
        lines += [Text(problem, "yellow") for problem in cluster.problems]
    return lines


class ShownTrainingVmRecord(DocumentRecord, frozen=True):
    """One VM that carries the marker of a cluster."""

    rank: int
    vm: NamedRecord
    host: Annotated[str | None, "its name"]
    power: PowerState | None
    devices: Annotated[int, "GPUs and other devices given whole"]
    address: Annotated[str | None, "of its guest"]
    rdma: RdmaKind


class ShownTrainingClusterRecord(DocumentRecord, frozen=True):
    """One cluster."""

    name: str
    id: Annotated[str, "eight hexadecimal digits, drawn for it"]
    nodes: Annotated[int, "how many VMs it has when it is whole"]
    whole: Annotated[bool, "whether it runs whole"]
    problems: list[str]
    members: Annotated[list[ShownTrainingVmRecord], "by rank"]


@printed("cluster-show", by="gpuops cluster show")
class ClusterShowDocument(PrintedDocument, frozen=True):
    """Clusters of VMs that are there."""

    clusters: Annotated[list[ShownTrainingClusterRecord], "by name"]


def cluster_removed_text(removal: ClusterRemoved) -> Shown:
    """Return what was or would be removed; () if it was refused, because refusals go to stderr."""
    if removal.rejections:
        return ()
    name = removal.name
    if not removal.vms and not removal.overrides:
        return f"there is no VM of a cluster {name}: nothing to do"
    verb = "removed" if removal.applied else "to remove"
    remaining_names = {line.partition(":")[0] for line in removal.left}
    lines: list[Shown] = [
        f"{verb}: {cluster_vm.vm.name}" for cluster_vm in removal.vms if cluster_vm.vm.name not in remaining_names
    ]
    lines += [Text(f"left: {line}", "red") for line in removal.left]
    verb_of_override = "override of DRS taken back" if removal.applied else "override of DRS to take back"
    lines += [f"{verb_of_override}: {vm}, which stays" for vm in removal.overrides]
    return lines


@printed("cluster-delete", by="gpuops cluster delete")
class ClusterDeleteDocument(PrintedDocument, frozen=True):
    """What there was of a cluster, and whether it is removed."""

    cluster: Annotated[str, "its name"]
    applied: bool
    changed: Annotated[bool, "whether vCenter was changed, or would be"]
    rejections: Annotated[list[RefusalRecord], "every reason against it"]
    vms: Annotated[list[NamedRecord], "by rank"]
    left: Annotated[list[str], "those that could not be removed, each with its reason"]
    overrides: Annotated[list[str], "VMs that stay, whose override of DRS is taken back, or would be"]

    @classmethod
    def made_of(cls, removed: ClusterRemoved) -> Self:
        return cls.from_attributes(removed, cluster=removed.name, vms=[cluster_vm.vm for cluster_vm in removed.vms])
