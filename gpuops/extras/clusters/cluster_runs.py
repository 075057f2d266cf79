"""The functions that run a program over the VMs of a cluster, and that measure an all-reduce over them."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gpuops.errors import report_exit_code

if TYPE_CHECKING:
    from gpuops.execute.site import Site
    from gpuops.extras.clusters.cluster_run import BenchResult, BenchWish, RunEnd, RunWish
    from gpuops.extras.clusters.launch import LaunchPlan
    from gpuops.model.workloads.cluster import TrainingCluster
    from gpuops.plan.core.plan import Rejection

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
    """Plan a run over a cluster, and start it with `apply`; `hear` is called with the output of rank 0.

    Raises UsageError if a VM of the cluster does not run, Locked while another run uses it, Refused if a guest cannot
    be made ready, NotConnected.
    """
    from gpuops.extras.clusters.launch import plan_launch
    from gpuops.extras.clusters.standing import standing

    cluster = standing(name, site)
    plan = plan_launch(wish, cluster, secrets.token_hex(8))
    reasons = _missing_ways_in(cluster, site)
    if reasons:
        plan = replace(plan, launch=None, rejections=(*plan.rejections, *reasons))
    if plan.launch is None or not apply:
        return ClusterRun(name, plan)
    from gpuops.extras.clusters import running
    from gpuops.extras.clusters.run import used_alone

    with used_alone(site, cluster, "cluster run") as hold:
        return ClusterRun(name, plan, running.run(plan.launch, site, hold, hear))


def cluster_bench(name: str, wish: BenchWish, site: Site) -> BenchResult:
    """Measure all-reduces over the first nodes of a cluster. Raises as `cluster_run`, and Refused if none can run."""
    from gpuops.errors import Refused
    from gpuops.extras.clusters.bench import bench
    from gpuops.extras.clusters.standing import standing
    from gpuops.plan.core.rejection import said_once

    cluster = standing(name, site)
    reasons = said_once(_missing_ways_in(cluster, site))
    if reasons:
        raise Refused("; ".join(map(str, reasons)), hint=reasons[0].hint)
    return bench(wish, cluster, site)


def _missing_ways_in(cluster: TrainingCluster, site: Site) -> tuple[Rejection, ...]:
    """Return why programs cannot be run in the guests, as far as can be known without trying."""
    from gpuops.plan.core.plan import Rejection
    from gpuops.plan.core.steps import RunInGuest

    needed = {member.vm: PRIVILEGES for member in cluster.members}
    lacking = site.vcenter.lacking({**needed, cluster.members[0].vm: (MARKING, *PRIVILEGES)})
    reasons = [
        Rejection(
            member.name, f"this login lacks {', '.join(sorted(lacking[member.vm]))}", hint="ask for a role with it"
        )
        for member in cluster.members
        if lacking.get(member.vm)
    ]
    no_login = site.vcenter.no_way_in(RunInGuest(cluster.members[0].vm, "/bin/sh"))
    if no_login is not None:
        hint = "set GPUOPS_GUEST_USERNAME and GPUOPS_GUEST_PASSWORD_FILE"
        reasons.append(Rejection(cluster.name, no_login, hint=hint))
    return tuple(reasons)
