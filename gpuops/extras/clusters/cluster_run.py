"""A program that runs over the VMs of a cluster, and an all-reduce that was measured over some of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Launcher(StrEnum):
    """What starts the ranks of a program."""

    MPIRUN = "mpirun"
    """Of Open MPI: one, in the guest of rank 0, which enters the others over SSH."""
    TORCHRUN = "torchrun"
    """Of PyTorch: one in each guest; no SSH."""
    HOROVODRUN = "horovodrun"
    """Of Horovod: one, in the guest of rank 0, which enters the others over SSH."""


class Transport(StrEnum):
    """Over what ranks of several VMs exchange data."""

    TCP = "tcp"
    RDMA = "rdma"


class Rendezvous(StrEnum):
    """How the nodes of torchrun find each other."""

    STATIC = "static"
    """gpuops assigns the numbers: the first VM of the cluster has rank 0."""
    C10D = "c10d"
    """They agree on their numbers: rank 0 may be on any of them."""


class AllReduceProgram(StrEnum):
    """What measures an all-reduce."""

    NCCL = "nccl"
    """`all_reduce_perf` of NVIDIA's NCCL tests, built with MPI: the memory of GPUs."""
    OSU = "osu"
    """`osu_allreduce` of the OSU micro-benchmarks: the memory of hosts."""
    MPI4PY = "mpi4py"
    """A program that gpuops sends; it needs python3 and mpi4py in the guests: the memory of hosts."""


@dataclass(frozen=True, slots=True)
class RunWish:
    """What is to run over a cluster."""

    command: tuple[str, ...]
    """The program and its arguments, as words."""
    launcher: Launcher = Launcher.MPIRUN
    transport: Transport | None = None
    """None = what launcher and libraries choose themselves."""
    ranks: int | None = None
    """None = one for each GPU."""
    rendezvous: Rendezvous = Rendezvous.STATIC
    """Of torchrun."""
    limit_s: int | None = None
    """It is ended when it takes longer; None = it is not."""
    ssh_port: int = 22
    """Of the SSH servers of the guests, where the launcher enters them."""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run over a cluster ended."""

    exit_code: int
    """Of the launcher in the guest of rank 0; 124 = it was ended after its limit, as timeout(1) says it."""
    took_s: float
    """From its start on, as seen from here."""
    printed_bytes: int
    cut: bool = False
    """Whether it printed more than is shown."""
    failed_on: str = ""
    """Name of the VM whose launcher failed first, where that is not the one of rank 0."""
    left: tuple[str, ...] = ()
    """What could not be stopped or removed in a guest, each with its reason; the next run tries again."""


@dataclass(frozen=True, slots=True)
class AllReduceTime:
    """What one all-reduce took."""

    size_bytes: int
    """Of the buffer of each rank."""
    seconds: float
    """Of one of many, in the middle."""
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
    """Why there are no times."""
    left: tuple[str, ...] = ()
    """What could not be stopped or removed in a guest, each with its reason."""


@dataclass(frozen=True, slots=True)
class BenchWish:
    """All-reduces that are to be measured."""

    nodes: tuple[int, ...]
    """Over so many nodes each, the first of the cluster; in rising order."""
    sizes: tuple[int, ...]
    """Bytes of each rank's buffer."""
    transports: tuple[Transport, ...]
    program: AllReduceProgram | None = None
    """None = the first of NCCL, OSU, mpi4py that the guest of rank 0 has."""
    limit_s: int = 600
    """What all sizes over one number of nodes may take."""
    ssh_port: int = 22


@dataclass(frozen=True, slots=True)
class BenchResult:
    """What was measured over a cluster."""

    cluster: str
    program: AllReduceProgram
    cells: tuple[BenchCell, ...]
    simulated: bool
    """Whether its guests are processes of one machine, so that TCP is its loopback."""

    @property
    def complete(self) -> bool:
        """Return whether every possible time was measured, with right sums, and nothing was left in the guests."""
        measured = all(cell.times or (self.simulated and cell.transport is Transport.RDMA) for cell in self.cells)
        right = not any(time.wrong for cell in self.cells for time in cell.times)
        return measured and right and not any(cell.left for cell in self.cells)
