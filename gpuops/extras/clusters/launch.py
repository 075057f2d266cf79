"""Builds the command lines of mpirun, torchrun and horovodrun, and the hostfile with the guests of a cluster.

Sources of each option:
* Open MPI 4.1, mpirun(1), https://www.open-mpi.org/doc/v4.1/man1/mpirun.1.php: `--hostfile`, `-np`, `-x`, `--mca`,
  `--bind-to none`, `--map-by slot`; its FAQ, https://www.open-mpi.org/faq/?category=tcp: `btl_tcp_if_include` takes
  networks (CIDR), one that holds for every node; https://www.open-mpi.org/faq/?category=rsh: `plm_rsh_no_tree_spawn`,
  for only the guest of rank 0 has the key.
* UCX, https://openucx.readthedocs.io/en/master/faq.html: `UCX_TLS=^tcp` is every transport but TCP: where there is no
  RDMA the run fails, and never goes over TCP unseen.
* Horovod, https://horovod.readthedocs.io/en/stable/running.html: `horovodrun -np 6 --hostfile FILE python train.py`,
  lines `HOST slots=N`; https://horovod.readthedocs.io/en/stable/mpi.html: why ranks are not bound to cores;
  https://github.com/horovod/horovod/blob/master/horovod/runner/launch.py: `--disable-cache`, else what was found of the
  guests is kept in the home directory and holds for an hour, whatever key the next run has.
* PyTorch, https://docs.pytorch.org/docs/stable/elastic/run.html: torchrun in each node, static or `c10d`, with
  `--nnodes`, `--nproc-per-node`, `--node-rank`, `--master-addr` (an IPv6 address in brackets), `--master-port`,
  `--rdzv-id`, `--rdzv-backend`, `--rdzv-endpoint`; `--local-addr`, by which the other nodes reach this one, else by its
  name, which no other may know. https://docs.pytorch.org/docs/stable/elastic/rendezvous.html, C10d backend: `is_host`,
  said by `--rdzv-conf`; else the name of the guest must lead to the address of the endpoint, which Debian's 127.0.1.1
  does not.
* NCCL, https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html: `NCCL_IB_DISABLE=1` is sockets in place of
  RDMA; `NCCL_NET` (`IB`, `Socket`) forces one, where NCCL would fall back on sockets unseen.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network, ip_address
from typing import Final, assert_never

from gpuops.extras.clusters.run_request import Launcher, Rendezvous, RunWish, Transport
from gpuops.model.workloads.cluster import Member, TrainingCluster
from gpuops.plan.core.guest_address import unicast_address
from gpuops.plan.core.rejection import Rejection, summarize_similar

TORCH_PORT: Final = 29500
"""The port of the node with rank 0 (torchrun, `--master-port`)."""
MARK: Final = "GPUOPS_CLUSTER_RUN"
"""The variable that every process of a run has, in every guest: `CLUSTER/RUN`."""
DIRECTORY: Final = ".gpuops-cluster"
"""The directory of all runs, in the home directory of a guest's user."""
_LOOPBACK: Final = "127.0.0.0/8"
_UNBUFFERED: Final = {"PYTHONUNBUFFERED": "1"}
"""Lets Python print without a buffer; otherwise output appears only after 8 KiB."""
_ENVIRONMENT: Final[Mapping[Transport, Mapping[str, str]]] = {
    Transport.TCP: {"NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket"},
    Transport.RDMA: {"NCCL_IB_DISABLE": "0", "NCCL_NET": "IB", "UCX_TLS": "^tcp"},
}


@dataclass(frozen=True, slots=True)
class Launch:
    """The programs that are started, and the guests in which they are started."""

    cluster: str
    """The name of the cluster, changed so that it is safe in paths and shells."""
    run: str
    """The unique word of the run."""
    launcher: Launcher
    members: tuple[Member, ...]
    """In the order of their ranks."""
    ranks: int
    slots: tuple[int, ...]
    """The number of ranks of each member."""
    command_lines: tuple[str, ...]
    """Shell commands for the first members: one for a launcher that starts the others itself, else one per member."""
    environment: Mapping[str, str]
    limit_s: int | None = None
    ssh_port: int = 22
    unused: tuple[Member, ...] = ()
    """VMs of the cluster without a rank in this run; an earlier run may have left something there."""

    @property
    def over_ssh(self) -> bool:
        """Return whether the launcher enters the other guests itself."""
        return self.launcher is not Launcher.TORCHRUN

    @property
    def mark(self) -> str:
        """Return the value of `MARK` of the run's processes."""
        return f"{self.cluster}/{self.run}"

    @property
    def directory(self) -> str:
        """Return the directory of the run's files, in the home directory of a guest's user."""
        return f"{DIRECTORY}/{self.mark}"

    @property
    def hostfile(self) -> str:
        """Return the hostfile, with a line such as `10.1.2.11 slots=4` for each member."""
        return hostfile(self.members, self.slots)


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The launch, or every reason to refuse it."""

    launch: Launch | None
    rejections: tuple[Rejection, ...] = ()

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return a line for each problem, with its next move."""
        return tuple(refusal.line for refusal in summarize_similar(self.rejections))


def hostfile(members: Sequence[Member], slots: Sequence[int]) -> str:
    """Return the hostfile for mpirun and horovodrun, without members that have no ranks.

    >>> hostfile([Member("vm-1", "train-00", "esx-01", 2, "10.1.2.11", None)], [2])
    '10.1.2.11 slots=2\\n'
    """
    lines = (f"{member.address} slots={count}\n" for member, count in zip(members, slots, strict=True) if count)
    return "".join(lines)


def plan_launch(wish: RunWish, cluster: TrainingCluster, run: str) -> LaunchPlan:
    """Return how to launch the program of `wish` on a cluster, or all reasons to refuse it.

    `run`: a unique word for this run, used in the names of its files and in `MARK` of its processes.
    """
    refusals = tuple(_refusals(wish, cluster))
    if refusals:
        return LaunchPlan(None, refusals)
    slots = _ranks_per_member(wish.ranks, cluster.members)
    used_members = tuple((member, count) for member, count in zip(cluster.members, slots, strict=True) if count)
    members, counts = tuple(member for member, _ in used_members), tuple(count for _, count in used_members)
    environment = {**_UNBUFFERED, **(_ENVIRONMENT[wish.transport] if wish.transport is not None else {})}
    # the name is part of a path in the guests
    name = re.sub(r"[^A-Za-z0-9.-]", "_", cluster.name)
    ranks, port = sum(counts), wish.ssh_port
    unused = tuple(member for member in cluster.members if member not in members)
    launch = Launch(name, run, wish.launcher, members, ranks, counts, (), environment, wish.limit_s, port, unused)
    return LaunchPlan(replace(launch, command_lines=tuple(map(shlex.join, _command_lines(wish, launch)))))


def _refusals(wish: RunWish, cluster: TrainingCluster) -> Iterator[Rejection]:
    """Yield the reasons why the program cannot be launched: addresses, GPUs or network cards of VMs, ranks, command."""
    for member in cluster.members:
        if member.address is None:
            hint = "wait until VMware Tools report one, or check the guest with gpuops guest check"
            yield Rejection(member.name, "its guest reports no IP address", hint=hint)
        elif unicast_address(member.address) is None:
            hint = "give its guest an address in the cluster's network"
            yield Rejection(member.name, "its guest reports an address that other guests cannot reach", hint=hint)
        if not member.gpus:
            yield Rejection(member.name, "it has no GPU", hint="gpuops cluster show lists the devices of its VMs")
        if wish.transport is Transport.RDMA and member.rdma is None:
            yield Rejection(member.name, "it has no RDMA network card", hint="use --transport tcp, which needs none")
    yield from _shared_addresses(cluster)
    gpus = sum(member.gpus for member in cluster.members)
    if wish.ranks is not None and wish.ranks > gpus:
        hint = f"--ranks {gpus} is the maximum: each rank needs its own GPU"
        yield Rejection(cluster.name, "more ranks than GPUs", wish.ranks, gpus, "GPUs", hint=hint)
    if not wish.command:
        yield Rejection(cluster.name, "no program is named", hint="add it: gpuops cluster run NAME -- python3 train.py")


def _shared_addresses(cluster: TrainingCluster) -> Iterator[Rejection]:
    by_address: dict[str, list[str]] = {}
    for member in cluster.members:
        canonical = (
            unicast_address(member.address or "") or member.address or ""
        )  # an IPv6 address has several spellings
        by_address.setdefault(str(canonical), []).append(member.name)
    for address, names in by_address.items():
        if address and len(names) > 1:
            hint = "give each guest its own address"
            yield Rejection(cluster.name, f"{', '.join(names)} report the same address", hint=hint)


def _ranks_per_member(ranks: int | None, members: Sequence[Member]) -> tuple[int, ...]:
    """Return the number of ranks of each member. The first members are filled first, as with `--map-by slot`."""
    remaining, slots = ranks if ranks is not None else sum(member.gpus for member in members), []
    for member in members:
        slots.append(min(member.gpus, remaining))
        remaining -= slots[-1]
    return tuple(slots)


def _command_lines(wish: RunWish, launch: Launch) -> tuple[tuple[str, ...], ...]:
    """Return the words of each command line: one line in all if the launcher starts the other guests, else one each."""
    match wish.launcher:
        case Launcher.MPIRUN:
            return (_mpirun(wish, launch),)
        case Launcher.HOROVODRUN:
            file = f"{launch.directory}/hostfile"
            words = ("horovodrun", "-np", str(launch.ranks), "--hostfile", file, "--disable-cache")
            return ((*words, *wish.command),)
        case Launcher.TORCHRUN:
            return tuple(_torchrun(wish, launch, node) for node in range(len(launch.members)))
        case _:
            assert_never(wish.launcher)


def _mpirun(wish: RunWish, launch: Launch) -> tuple[str, ...]:
    # the sources of the options are in the docstring of this module; variables reach other guests only by `-x`
    words = ["mpirun", "-np", str(launch.ranks), "--hostfile", f"{launch.directory}/hostfile"]
    words += ["--bind-to", "none", "--map-by", "slot", "--mca", "plm_rsh_no_tree_spawn", "1"]
    if wish.transport is Transport.TCP:
        words += ["--mca", "pml", "ob1", "--mca", "btl", "self,vader,tcp"]
        addresses = [member.address or "" for member in launch.members]
        if all(ip_address(address).version == 4 for address in addresses):  # the option takes only IPv4
            words += ["--mca", "btl_tcp_if_include", common_network(addresses)]
    elif wish.transport is Transport.RDMA:
        words += ["--mca", "pml", "ucx"]
    for name in (MARK, *launch.environment):
        words += ["-x", name]
    return (*words, *wish.command)


def _torchrun(wish: RunWish, launch: Launch, node: int) -> tuple[str, ...]:
    first = launch.members[0].address or ""
    host = f"[{first}]" if ":" in first else first
    words = ["torchrun", f"--nnodes={len(launch.members)}", f"--nproc-per-node={launch.slots[node]}"]
    if wish.rendezvous is Rendezvous.C10D:
        words += [f"--rdzv-id={launch.run}", "--rdzv-backend=c10d", f"--rdzv-endpoint={host}:{TORCH_PORT}"]
        words += [f"--rdzv-conf=is_host={int(node == 0)}", f"--local-addr={launch.members[node].address}"]
    else:
        words += [f"--node-rank={node}", f"--master-addr={host}", f"--master-port={TORCH_PORT}"]
    return (*words, *wish.command)


def common_network(addresses: Sequence[str]) -> str:
    """Return the smallest network that contains all these IPv4 addresses.

    For loopback addresses it is 127.0.0.0/8: the interface has only 127.0.0.1, which a smaller network may lack.

    >>> common_network(["10.1.2.11", "10.1.2.14"])
    '10.1.2.8/29'
    """
    ip_addresses = [IPv4Address(address) for address in addresses]
    if all(address.is_loopback for address in ip_addresses):
        return _LOOPBACK
    # the bits in which the lowest and the highest address differ are the host part
    low, high = min(map(int, ip_addresses)), max(map(int, ip_addresses))
    return str(IPv4Network((low, 32 - (low ^ high).bit_length()), strict=False))
