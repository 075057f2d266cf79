"""`gpuops cluster run` and `cluster bench`: finds the running cluster by its markers, and runs a program over its VMs.

The benchmark measures an all-reduce over the first nodes, by TCP and by RDMA: one run for each number of nodes.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gpuops.errors import Refused, UsageError, report_exit_code
from gpuops.execute.lease.lease import HeldLease
from gpuops.execute.site import Site
from gpuops.execute.site.guest_work import guest_work
from gpuops.extras.clusters import run_request, running
from gpuops.extras.clusters.guests import LaunchGuests
from gpuops.extras.clusters.launch import Launch, plan_launch
from gpuops.extras.clusters.members import MarkedVm, marked_vms
from gpuops.extras.clusters.run import used_alone
from gpuops.extras.clusters.run_request import AllReduceProgram, BenchCell, BenchResult, BenchWish, RunWish, Transport
from gpuops.guest_scripts.commands import shell_command
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.model.workloads.cluster import Member, RdmaKind, TrainingCluster
from gpuops.plan.core.plan import said_once

if TYPE_CHECKING:
    from gpuops.extras.clusters.launch import LaunchPlan
    from gpuops.extras.clusters.run_request import RunEnd
    from gpuops.plan.core.plan import Rejection

_MOST_PRINTED: Final = 1 << 20
"""The most bytes of a measurement's output that are kept."""
SIMULATED: Final = "simulated: not measured"


def _part(cluster: TrainingCluster, nodes: int) -> TrainingCluster:
    """Return the cluster with only its first nodes. Raises UsageError if it has fewer."""
    if nodes > len(cluster.members):
        most = len(cluster.members)
        raise UsageError(f"--nodes {nodes}: cluster {cluster.name} has {most}", hint=f"use --nodes {most} or less")
    return replace(cluster, members=cluster.members[:nodes])


def _measure(
    wish: BenchWish,
    program: AllReduceProgram,
    cluster: TrainingCluster,
    nodes: int,
    transport: Transport,
    site: Site,
    lease: HeldLease,
    *,
    simulated: bool,
) -> BenchCell:
    """Measure all sizes over the first `nodes` VMs by one transport. Return the times, or why they are missing.

    Raises the errors of `running.run`.
    """
    first_nodes = _part(cluster, nodes)
    cell = BenchCell(len(first_nodes.members), sum(member.gpus for member in first_nodes.members), transport)
    if transport is Transport.RDMA and simulated:
        return replace(cell, why_not=SIMULATED)
    run_id = secrets.token_hex(8)
    lines: list[str] = []
    launch: Launch | None = None
    for command in run_request.measuring_commands(program, wish.sizes):
        plan = plan_launch(
            RunWish(command, transport=transport, limit_s=wish.limit_s, ssh_port=wish.ssh_port), first_nodes, run_id
        )
        if plan.launch is None:
            return replace(cell, why_not="; ".join(map(str, said_once(plan.rejections))))
        launch = plan.launch
        lines += launch.command_lines
    assert launch is not None, "there is a size"
    site.say(f"{transport}, {len(first_nodes.members)} of {max(wish.nodes)} nodes")
    printed = bytearray()

    def hear(piece: bytes) -> None:
        printed.extend(piece[: _MOST_PRINTED - len(printed)])

    # one launch for the commands of all sizes, so that the guests are prepared once
    launch = replace(launch, command_lines=(_in_turn(lines),), unused=cluster.members[nodes:])
    end = running.run(launch, site, lease, hear)
    text = printed.decode("utf-8", "replace")
    if end.exit_code:
        last_line = next((line for line in reversed(text.splitlines()) if line.strip()), "it printed nothing")
        why = f"ended after {wish.limit_s} s" if end.exit_code == running.TIMED_OUT else f"exit code {end.exit_code}"
        return replace(cell, why_not=f"{why}: {last_line.strip()[:200]}", left=end.left)
    try:
        return replace(cell, times=run_request.parse_times(program, text, wish.sizes), left=end.left)
    except UsageError as error:
        return replace(cell, why_not=error.message, left=end.left)


def _in_turn(lines: Sequence[str]) -> str:
    """Return one command line that runs these one after another, up to the first that fails.

    >>> _in_turn(["mpirun a -m 1", "mpirun a -m 2"])
    "sh -c 'mpirun a -m 1 && mpirun a -m 2'"
    """
    return lines[0] if len(lines) == 1 else shlex.join(("sh", "-c", " && ".join(lines)))


def standing(name: str, site: Site) -> TrainingCluster:
    """Return the running cluster of this name, with the current addresses of its guests.

    Raises UsageError if it does not exist, if a VM is missing or does not run, or if two clusters have the name.
    """
    inventory = site.vcenter.inventory()
    members = marked_vms(inventory, name)
    if not members:
        cluster_names = ", ".join(sorted({member.marker.cluster for member in marked_vms(inventory)}))
        hint = (
            f"clusters there: {cluster_names}"
            if cluster_names
            else "gpuops cluster create --file cluster.yaml makes one"
        )
        raise UsageError(f"there is no cluster {name!r}", hint=hint)
    _require_complete(name, members)
    return TrainingCluster(name, tuple(_member(member, inventory, site) for member in members))


def _require_complete(name: str, members: tuple[MarkedVm, ...]) -> None:
    """Raise UsageError for two clusters with this name, a missing VM, and VMs that do not run."""
    hint = "run gpuops cluster create with its file to complete it, or gpuops cluster delete to remove it"
    if len({member.marker.id for member in members}) > 1:
        raise UsageError(f"there are two clusters {name!r}", hint="gpuops cluster show shows their VMs")
    nodes = members[0].marker.nodes
    missing = sorted(set(range(nodes)) - {member.marker.rank for member in members})
    if missing:
        ranks = ", ".join(map(str, missing))
        raise UsageError(f"cluster {name} is not complete: of its {nodes} VMs rank {ranks} is missing", hint=hint)
    stopped = [member.vm.name for member in members if member.vm.power is not PowerState.ON]
    if stopped:
        raise UsageError(f"cluster {name}: not running: {', '.join(stopped)}", hint=hint)


def _member(marked: MarkedVm, inventory: Inventory, site: Site) -> Member:
    host = inventory.host_of(marked.vm)
    guest = site.vcenter.wait_for_guest(marked.vm.ref, 0.0, address=True)
    rdma = marked.marker.rdma.value if marked.marker.rdma is not RdmaKind.NONE else None
    return Member(
        marked.vm.ref, marked.vm.name, host.name if host is not None else "", marked.marker.gpus, guest.address, rdma
    )


PRIVILEGES: Final = (
    "VirtualMachine.GuestOperations.Execute",
    "VirtualMachine.GuestOperations.Modify",
    "VirtualMachine.GuestOperations.Query",
)
"""Needed on each VM of the cluster."""
MARKING: Final = "VirtualMachine.Config.AdvancedConfig"
"""Needed on its first VM too, whose settings mark that a run uses the cluster."""


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """A run over a cluster: its plan and its end."""

    cluster: str
    plan: LaunchPlan
    end: RunEnd | None = None
    """None = nothing was started."""

    @property
    def exit_code(self) -> int:
        """Return the exit code of the program; 3 if nothing was started, 4 if files remain in a guest."""
        if self.end is None:
            return report_exit_code(refused=self.plan.rejections)
        return self.end.exit_code or report_exit_code(partly=self.end.left)


def cluster_run(name: str, wish: RunWish, site: Site, hear: Callable[[bytes], None], *, apply: bool) -> ClusterRun:
    """Plan a run over a cluster and, with `apply`, carry it out to its end. Return the plan and the end.

    `hear` is called with the output of rank 0, piece by piece. Raises UsageError if a VM of the cluster does not run,
    Locked while another run uses the cluster, Refused if a guest cannot be prepared, NotConnected.
    """
    cluster = standing(name, site)
    plan = plan_launch(wish, cluster, secrets.token_hex(8))
    reasons = _missing_ways_in(cluster, site)
    if reasons:
        plan = replace(plan, launch=None, rejections=(*plan.rejections, *reasons))
    if plan.launch is None or not apply:
        return ClusterRun(name, plan)
    with used_alone(site, cluster, "cluster run") as hold:
        return ClusterRun(name, plan, running.run(plan.launch, site, hold, hear))


def cluster_bench(name: str, wish: BenchWish, site: Site) -> BenchResult:
    """Measure an all-reduce for each transport and each number of nodes in `wish`, one after the other.

    Returns the measured times, and the reason for each that is missing. Raises the errors of `cluster_run`, and
    Refused if nothing can be measured.
    """
    cluster = standing(name, site)
    work = guest_work(site.vcenter)
    # a plan that is never started: it checks the guests, and its launch is used to look for the programs
    launch_plan = plan_launch(RunWish(("true",)), _part(cluster, max(wish.nodes)), secrets.token_hex(8))
    reasons = said_once(_missing_ways_in(cluster, site) or launch_plan.rejections)
    if reasons or launch_plan.launch is None:
        raise Refused("; ".join(map(str, reasons)), hint=reasons[0].hint)
    with used_alone(site, cluster, "cluster bench") as lease:
        find_programs = shell_command("all_reduce_programs")
        program = wish.program or run_request.chosen_program(LaunchGuests(launch_plan.launch, work).look(find_programs))
        if program is None:
            raise Refused(
                f"{cluster.members[0].name}: its guest has no program that measures an all-reduce",
                hint="install NCCL tests, the OSU micro-benchmarks or python3-mpi4py in the template",
            )
        cells: list[BenchCell] = []
        for transport in wish.transports:
            for nodes in wish.nodes:
                cells.append(
                    _measure(wish, program, cluster, nodes, transport, site, lease, simulated=work.is_simulated)
                )
                if cells[-1].left:  # what still runs in a guest would disturb a measurement over more nodes
                    break
    return BenchResult(cluster.name, program, tuple(cells), simulated=work.is_simulated)


def _missing_ways_in(cluster: TrainingCluster, site: Site) -> tuple[Rejection, ...]:
    """Return the reasons why programs cannot be run in the guests: missing privileges, or no login for guests.

    Does not try a login in a guest.
    """
    from gpuops.plan.core.plan import Rejection
    from gpuops.plan.core.privileges import privilege_rejection
    from gpuops.plan.core.steps import RunInGuest

    needed = {member.vm: PRIVILEGES for member in cluster.members}
    # the lease that keeps other machines away is written into the settings of the first VM
    lacking = site.vcenter.lacking({**needed, cluster.members[0].vm: (MARKING, *PRIVILEGES)})
    reasons = [
        privilege_rejection(member.name, missing) for member in cluster.members if (missing := lacking.get(member.vm))
    ]
    # one login is used for all guests, so one VM is enough
    no_login = site.vcenter.no_way_in(RunInGuest(cluster.members[0].vm, "/bin/sh"))
    if no_login is not None:
        hint = "set GPUOPS_GUEST_USERNAME and GPUOPS_GUEST_PASSWORD_FILE"
        reasons.append(Rejection(cluster.name, no_login, hint=hint))
    return tuple(reasons)
