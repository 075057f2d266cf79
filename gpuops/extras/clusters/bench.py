"""Measures an all-reduce over the first nodes of a cluster, by TCP and by RDMA: one run for each number of nodes."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gpuops.errors import Refused, UsageError
from gpuops.execute.lease.lease import HeldLease
from gpuops.execute.site.guest_work import guest_work
from gpuops.extras.clusters import all_reduce, guests, running
from gpuops.extras.clusters.cluster_run import AllReduceProgram, BenchCell, BenchResult, BenchWish, RunWish, Transport
from gpuops.extras.clusters.launch import Launch, plan_launch
from gpuops.extras.clusters.run import used_alone
from gpuops.guest_scripts.commands import shell_command
from gpuops.model.workloads.cluster import TrainingCluster
from gpuops.plan.core.rejection import said_once

if TYPE_CHECKING:
    from gpuops.execute.site import Site

_MOST_PRINTED: Final = 1 << 20
"""The limit for bytes that are read of a measurement."""
SIMULATED: Final = "simulated: not measured"


def bench(wish: BenchWish, cluster: TrainingCluster, site: Site) -> BenchResult:
    """Return the measurements, and the reasons for missing ones. Raises Refused if none is possible, NotConnected."""
    port = guest_work(site.vcenter)
    run_id = secrets.token_hex(8)
    launch_plan = plan_launch(RunWish(("true",)), _part(cluster, max(wish.nodes)), run_id)
    if launch_plan.launch is None:
        reasons = said_once(launch_plan.rejections)
        raise Refused("; ".join(map(str, reasons)), hint=reasons[0].hint)
    with used_alone(site, cluster, "cluster bench") as lease:
        look = shell_command("all_reduce_programs")
        program = wish.program or all_reduce.chosen_program(guests.look(launch_plan.launch, look, port))
        if program is None:
            raise Refused(
                f"{cluster.members[0].name}: its guest has nothing that measures an all-reduce",
                hint="install NCCL tests, the OSU micro-benchmarks or python3-mpi4py in the template",
            )
        cells: list[BenchCell] = []
        for transport in wish.transports:
            for nodes in wish.nodes:
                cells.append(_cell(wish, program, cluster, nodes, transport, site, lease, simulated=port.is_simulated))
                if cells[-1].left:
                    break
    return BenchResult(cluster.name, program, tuple(cells), simulated=port.is_simulated)


def _part(cluster: TrainingCluster, nodes: int) -> TrainingCluster:
    """Return the cluster with only its first nodes. Raises UsageError if it has fewer."""
    if nodes > len(cluster.members):
        most = len(cluster.members)
        raise UsageError(f"--nodes {nodes}: cluster {cluster.name} has {most}", hint=f"--nodes {most} is the most")
    return replace(cluster, members=cluster.members[:nodes])


def _cell(
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
    first_nodes = _part(cluster, nodes)
    cell = BenchCell(len(first_nodes.members), sum(member.gpus for member in first_nodes.members), transport)
    if transport is Transport.RDMA and simulated:
        return replace(cell, why_not=SIMULATED)
    run_id = secrets.token_hex(8)
    lines: list[str] = []
    launch: Launch | None = None
    for command in all_reduce.measuring_commands(program, wish.sizes):
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

    launch = replace(launch, command_lines=(" && ".join(lines),), unused=cluster.members[nodes:])
    end = running.run(launch, site, lease, hear)
    text = printed.decode("utf-8", "replace")
    if end.exit_code:
        last = next((line for line in reversed(text.splitlines()) if line.strip()), "it printed nothing")
        why = f"ended after {wish.limit_s} s" if end.exit_code == running.TIMED_OUT else f"exit code {end.exit_code}"
        return replace(cell, why_not=f"{why}: {last.strip()[:200]}", left=end.left)
    try:
        return replace(cell, times=all_reduce.parse_times(program, text, wish.sizes), left=end.left)
    except UsageError as error:
        return replace(cell, why_not=error.message, left=end.left)
