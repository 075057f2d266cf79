"""The output of `gpuops cluster`: prerequisites, the host of each VM, the outcome, and existing clusters.

The output of `gpuops cluster run` and `gpuops cluster bench`, and that of a program in a guest as safe lines."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Final, Self

from gpuops.extras.clusters.answers import ClusterMade, ClusterRemoved
from gpuops.extras.clusters.cluster_plan import ClusterPlan, PlannedMember
from gpuops.extras.clusters.run_request import (
    AllReduceProgram,
    BenchCell,
    BenchResult,
    Launcher,
    RunEnd,
    Transport,
    bus_bandwidth,
    efficiency,
)
from gpuops.model.time_text import format_duration
from gpuops.model.vcenter.target import Secret, without_secrets
from gpuops.model.vcenter.vm import PowerState
from gpuops.model.workloads.cluster import RdmaKind
from gpuops.plan.core.passthru_devices import is_no_gpu
from gpuops.plan.core.steps import PowerOnVm, ReconfigureVm, SetVmDrs
from gpuops.plan.hosts.pvrdma import Prerequisite
from gpuops.report.document import DocumentRecord, NamedRecord, PrintedDocument, printed
from gpuops.report.layout import Shown, Text, TextTable, visible
from gpuops.report.plan_json import RefusalRecord
from gpuops.report.text import count

if TYPE_CHECKING:
    from gpuops.extras.clusters.launch import LaunchPlan

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
        return "there is no cluster that gpuops made"
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


_MEMORY = {
    AllReduceProgram.NCCL: "all_reduce_perf of the NCCL tests, GPU memory",
    AllReduceProgram.OSU: "osu_allreduce, host memory",
    AllReduceProgram.MPI4PY: "mpi4py, host memory: what GPUs add is not in it",
}


def launch_text(plan: LaunchPlan) -> Shown:
    """Return which command line would be started in which guest; empty if the plan was refused."""
    launch = plan.launch
    if launch is None:
        return ()
    rows = (
        (str(rank), member.name, member.host, member.address or "-", str(member.gpus), str(slots))
        for rank, (member, slots) in enumerate(zip(launch.members, launch.slots, strict=True))
    )
    table = TextTable("rank", "VM", "host", "address", "GPUs", "ranks", right=(0, 4, 5), rows=rows)
    variables = " ".join(f"{name}={text}" for name, text in launch.environment.items())
    lines = [f"{launch.members[node].name}: {line}" for node, line in enumerate(launch.command_lines)]
    return [table, *lines, Text(f"with {variables}; nothing was started", "dim")]


def end_text(end: RunEnd) -> Shown:
    """Return lines about the end of a run: cut output, the launcher that failed, remains in guests, the exit code."""
    lines: list[Shown] = []
    if end.cut:
        lines.append(Text("cut: it printed more than is shown; write logs to files in the guest", "yellow"))
    if end.failed_on:
        lines.append(Text(f"the launcher in {end.failed_on} failed first", "red"))
    lines += [Text(f"left: {remnant}", "red") for remnant in end.left]
    if end.left:
        lines.append(Text("the next run of this cluster tries again to remove it", "dim"))
    lines.append(
        Text(f"exit code {end.exit_code} after {format_duration(end.took_s)}", "red" if end.exit_code else "dim")
    )
    return lines


class ClusterLaunchMemberRecord(DocumentRecord, frozen=True):
    """A VM in which ranks run."""

    vm: Annotated[str, "its name"]
    host: Annotated[str, "its name"]
    address: Annotated[str | None, "of its guest"]
    gpus: int
    ranks: int


class ClusterLaunchRecord(DocumentRecord, frozen=True):
    """What is started in which guest."""

    launcher: Launcher
    ranks: int
    command_lines: Annotated[list[str], "of the first VMs; one where the launcher enters the others itself"]
    environment: Annotated[dict[str, str], "what every rank has of it"]
    members: Annotated[list[ClusterLaunchMemberRecord], "by rank of their VM"]


class ClusterRunEndRecord(DocumentRecord, frozen=True):
    """How it ended."""

    exit_code: Annotated[int, "of the launcher; 124 = it was ended after its limit"]
    took_s: float
    printed_bytes: Annotated[int, "that were fetched"]
    cut: Annotated[bool, "whether it printed more than that"]
    failed_on: Annotated[str, "the VM whose launcher failed first, where that is not the one of rank 0"]
    left: Annotated[list[str], "what could not be stopped or removed in a guest, each with its reason"]

    @classmethod
    def made_of(cls, end: RunEnd) -> Self:
        return cls.from_attributes(end, took_s=round(end.took_s, 3))


@printed("cluster-run", by="gpuops cluster run")
class ClusterRunDocument(PrintedDocument, frozen=True):
    """What was started over the VMs of a cluster, and how it ended; what it printed is on stderr."""

    cluster: Annotated[str, "its name"]
    rejections: Annotated[list[str], "every reason why nothing was started"]
    launch: Annotated[ClusterLaunchRecord | None, "null = nothing can be started"]
    end: Annotated[ClusterRunEndRecord | None, "null = nothing was started"]
    exit_code: Annotated[int, "of this command"]


def run_document(cluster: str, plan: LaunchPlan, end: RunEnd | None, exit_code: int) -> ClusterRunDocument:
    """Return the document of a run, without the output of the program."""
    launch = plan.launch
    launched = None
    if launch is not None:
        members = [
            ClusterLaunchMemberRecord.from_attributes(member, vm=member.name, ranks=slots)
            for member, slots in zip(launch.members, launch.slots, strict=True)
        ]
        launched = ClusterLaunchRecord.from_attributes(launch, environment=dict(launch.environment), members=members)
    rejections = [rejection.line for rejection in plan.rejections]
    return ClusterRunDocument.from_attributes(
        cluster=cluster, rejections=rejections, launch=launched, end=end, exit_code=exit_code
    )


def bench_text(bench: BenchResult) -> Shown:
    """Return a table with a row for each number of nodes and buffer size, then the missing times with their reasons.

    Each transport has columns for seconds, bus bandwidth in GB/s and efficiency of scaling.
    """
    transports = tuple(dict.fromkeys(cell.transport for cell in bench.cells))
    heads = [f"{transport} {unit}" for transport in transports for unit in ("seconds", "GB/s", "scaling")]
    has_both = len(transports) == 2
    heads += ["rdma is faster"] if has_both else []
    table = TextTable("nodes", "ranks", "bytes", *heads, right=range(3 + len(heads)))
    for cells, index, size in _bench_rows(bench):
        table.add_row(
            str(cells[0].nodes), str(cells[0].ranks), str(size), *_columns(bench, cells, index, has_both=has_both)
        )
    lines: list[Shown] = [Text(f"{bench.cluster}: all-reduce by {_MEMORY[bench.program]}", "bold"), table]
    for cell in bench.cells:
        where = f"{cell.transport} over {count(cell.nodes, 'node')}"
        if cell.why_not:
            lines.append(Text(f"{where}: {cell.why_not}", "yellow"))
        wrong = sum(time.wrong or 0 for time in cell.times)
        if wrong:
            lines.append(Text(f"{where}: {count(wrong, 'element')} with a wrong sum", "red"))
        lines += [Text(f"left: {line}", "red") for line in cell.left]
    if bench.simulated:
        lines.append(Text("simulated guests: TCP is the loopback of one machine, no network", "yellow"))
    lines.append(Text("scaling: bus bandwidth beside that of the fewest nodes that have one", "dim"))
    return lines


class BenchTimeRecord(DocumentRecord, frozen=True):
    """One all-reduce."""

    size_bytes: Annotated[int, "of the buffer of each rank"]
    seconds: Annotated[float, "of the one in the middle of several"]
    bus_bytes_per_s: Annotated[float | None, "as the NCCL tests define it; null = a single rank exchanges nothing"]
    scaling_efficiency: Annotated[float | None, "bus bandwidth beside that of the fewest nodes that have one"]
    wrong: Annotated[int | None, "elements with a wrong sum; null = the program does not check"]


class BenchCellRecord(DocumentRecord, frozen=True):
    """An all-reduce over so many nodes by one transport."""

    nodes: int
    ranks: int
    transport: Transport
    why_not: Annotated[str, "why there are no times; empty = there are"]
    left: Annotated[list[str], "as of a run"]
    times: Annotated[list[BenchTimeRecord], "by size"]


@printed("cluster-bench", by="gpuops cluster bench")
class ClusterBenchDocument(PrintedDocument, frozen=True):
    """All-reduces over nodes of a cluster, by TCP and by RDMA."""

    cluster: Annotated[str, "its name"]
    program: Annotated[AllReduceProgram, "what measured"]
    simulated: Annotated[bool, "whether its guests are processes of one machine, and TCP its loopback"]
    complete: Annotated[bool, "whether all was measured that can be, with right sums, and nothing is left in a guest"]
    cells: Annotated[list[BenchCellRecord], "by transport, then by nodes"]

    @classmethod
    def made_of(cls, bench: BenchResult) -> Self:
        cells = [
            BenchCellRecord.from_attributes(cell, times=[_time(bench, cell, index) for index in range(len(cell.times))])
            for cell in bench.cells
        ]
        return cls.from_attributes(bench, cells=cells)


def _time(bench: BenchResult, cell: BenchCell, index: int) -> BenchTimeRecord:
    time = cell.times[index]
    bandwidth, scaling = bus_bandwidth(time, cell.ranks), efficiency(cell, index, bench.cells)
    return BenchTimeRecord.from_attributes(time, bus_bytes_per_s=bandwidth, scaling_efficiency=scaling)


def _bench_rows(bench: BenchResult) -> Iterator[tuple[tuple[BenchCell, ...], int, int]]:
    """Yield the cells of one number of nodes, one for each transport, with the index of a size and its bytes."""
    for nodes in dict.fromkeys(cell.nodes for cell in bench.cells):
        cells = tuple(cell for cell in bench.cells if cell.nodes == nodes)
        sizes = next((tuple(time.size_bytes for time in cell.times) for cell in cells if cell.times), ())
        yield from ((cells, index, size) for index, size in enumerate(sizes))


def _columns(bench: BenchResult, cells: tuple[BenchCell, ...], index: int, *, has_both: bool) -> Iterator[str]:
    """Yield the columns of one row; `cells` has one cell for each transport, `index` is that of the buffer size."""
    for cell in cells:
        if not cell.times:
            yield from ("-", "-", "-")
            continue
        bandwidth, scaling = bus_bandwidth(cell.times[index], cell.ranks), efficiency(cell, index, bench.cells)
        yield f"{cell.times[index].seconds:.6f}"
        yield f"{bandwidth / 1e9:.3f}" if bandwidth is not None else "-"
        yield f"{scaling:.0%}" if scaling is not None else "-"
    if not has_both:
        return
    times = {cell.transport: cell.times[index].seconds for cell in cells if cell.times}
    tcp, rdma = times.get(Transport.TCP), times.get(Transport.RDMA)
    yield f"{tcp / rdma:.1f} times" if tcp and rdma else "-"


LONGEST_LINE: Final = 16 * 1024
"""In characters; longer lines are broken."""


class ProgramLines:
    """Takes bytes in pieces and returns complete lines, with control characters written out (CWE-150).

    A carriage return ends a line, because progress bars use it so. Bytes that are not UTF-8 are written as `\\xff`.
    `withheld` are passwords that gpuops knows but never sent to the program: a note replaces each of them in a line. A
    password that is split over two pieces is found; one that the program has changed in any way is not.
    """

    def __init__(self, withheld: Iterable[Secret] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._unfinished = ""
        self._withheld = tuple(withheld)
        self._longest_secret = max((len(secret.reveal()) for secret in self._withheld), default=0)

    def add_output(self, piece: bytes) -> Sequence[str]:
        """Return the lines that this piece completes, safe to print. A line that is too long is broken."""
        *lines, self._unfinished = (self._unfinished + self._decoder.decode(piece)).replace("\r", "\n").split("\n")
        longest = LONGEST_LINE + self._longest_secret
        while len(self._unfinished) > longest:
            # passwords are replaced before the line is broken, or half of one could stay
            self._unfinished = without_secrets(self._unfinished, self._withheld)
            if len(self._unfinished) <= longest:
                break
            lines.append(self._unfinished[:LONGEST_LINE])
            self._unfinished = self._unfinished[LONGEST_LINE:]
        return tuple(map(self._make_printable, lines))

    def end(self) -> Sequence[str]:
        """Return the last line, if it has no end of line."""
        last_line = self._unfinished + self._decoder.decode(b"", final=True)
        self._unfinished = ""
        return (self._make_printable(last_line),) if last_line else ()

    def _make_printable(self, line: str) -> str:
        return "\t".join(visible(cell) for cell in without_secrets(line, self._withheld).split("\t"))
