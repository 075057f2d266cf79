"""Requests and results of `cluster run`, which runs a program over a cluster, and of `cluster bench`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Launcher(StrEnum):
    """The program that starts the ranks."""

    MPIRUN = "mpirun"
    """Open MPI's, in the guest of rank 0: it enters the other guests over SSH."""
    TORCHRUN = "torchrun"
    """PyTorch's, in each guest; it needs no SSH."""
    HOROVODRUN = "horovodrun"
    """Horovod's, in the guest of rank 0: it enters the other guests over SSH."""


class Transport(StrEnum):
    """The transport by which ranks of several VMs exchange data."""

    TCP = "tcp"
    RDMA = "rdma"


class Rendezvous(StrEnum):
    """How the nodes of torchrun find each other."""

    STATIC = "static"
    """gpuops assigns the numbers: the first VM of the cluster has rank 0."""
    C10D = "c10d"
    """The nodes agree on their numbers: rank 0 may be on any of them."""


class AllReduceProgram(StrEnum):
    """The program that measures an all-reduce."""

    NCCL = "nccl"
    """`all_reduce_perf` of NVIDIA's NCCL tests, built with MPI: measures with GPU memory."""
    OSU = "osu"
    """`osu_allreduce` of the OSU micro-benchmarks: measures with host memory."""
    MPI4PY = "mpi4py"
    """A program that gpuops sends; it needs python3 and mpi4py in the guests. Measures with host memory."""


@dataclass(frozen=True, slots=True)
class RunWish:
    """The program to run over a cluster."""

    command: tuple[str, ...]
    """The program and its arguments, as words."""
    launcher: Launcher = Launcher.MPIRUN
    transport: Transport | None = None
    """None = launcher and libraries choose."""
    ranks: int | None = None
    """None = one for each GPU."""
    rendezvous: Rendezvous = Rendezvous.STATIC
    """Only torchrun uses it."""
    limit_s: int | None = None
    """The program is ended after this time; None = never."""
    ssh_port: int = 22
    """The port of the guests' SSH servers, for launchers that use SSH."""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run over a cluster ended."""

    exit_code: int
    """Exit code of the launcher in the guest of rank 0; 124 = it was ended after its limit, as by timeout(1)."""
    took_s: float
    """Since its start, by the clock of this machine."""
    printed_bytes: int
    cut: bool = False
    """Whether it printed more than is shown."""
    failed_on: str = ""
    """Name of the VM whose launcher failed first, if it is not the VM of rank 0."""
    left: tuple[str, ...] = ()
    """What could not be stopped or removed in a guest, each with its reason; the next run tries again."""


@dataclass(frozen=True, slots=True)
class AllReduceTime:
    """The measured time of one all-reduce."""

    size_bytes: int
    """Size of the buffer of each rank."""
    seconds: float
    """The median of several."""
    wrong: int | None = None
    """Elements with a wrong sum; None = the program does not check."""


@dataclass(frozen=True, slots=True)
class BenchCell:
    """An all-reduce over some nodes by one transport."""

    nodes: int
    ranks: int
    transport: Transport
    times: tuple[AllReduceTime, ...] = ()
    why_not: str = ""
    """The reason if there are no times."""
    left: tuple[str, ...] = ()
    """What could not be stopped or removed in a guest, each with its reason."""


@dataclass(frozen=True, slots=True)
class BenchWish:
    """The all-reduces to measure."""

    nodes: tuple[int, ...]
    """The numbers of nodes, ascending. Each is measured over the first nodes of the cluster."""
    sizes: tuple[int, ...]
    """Sizes of each rank's buffer, in bytes."""
    transports: tuple[Transport, ...]
    program: AllReduceProgram | None = None
    """None = the first of NCCL, OSU, mpi4py that the guest of rank 0 has."""
    limit_s: int = 600
    """Time limit for all sizes over one number of nodes."""
    ssh_port: int = 22


@dataclass(frozen=True, slots=True)
class BenchResult:
    """The measurements over a cluster."""

    cluster: str
    program: AllReduceProgram
    cells: tuple[BenchCell, ...]
    simulated: bool
    """Whether the guests are processes of one machine, so that TCP is its loopback."""

    @property
    def complete(self) -> bool:
        """Return whether every possible time was measured, with right sums, and nothing was left in the guests."""
        measured = all(cell.times or (self.simulated and cell.transport is Transport.RDMA) for cell in self.cells)
        right = not any(time.wrong for cell in self.cells for time in cell.times)
        return measured and right and not any(cell.left for cell in self.cells)
