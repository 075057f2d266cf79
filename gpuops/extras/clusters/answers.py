"""The outcomes of calls about clusters: what was made, removed or shown."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuops.errors import report_exit_code
from gpuops.extras.clusters.cluster_members import MarkedVm
from gpuops.extras.clusters.cluster_plan import ClusterPlan
from gpuops.plan.core.rejection import Rejection, summarize_similar


@dataclass(frozen=True, slots=True)
class ClusterMade:
    """The outcome of `cluster create`."""

    plan: ClusterPlan
    applied: bool
    addresses: dict[str, str] = field(default_factory=dict)
    """IP address of each guest, by the name of its VM."""
    failed: str = ""
    """The error; empty if the call succeeded."""
    undone: bool = False
    """Whether everything that was made is removed again."""
    left: tuple[str, ...] = ()
    """VMs that could not be removed, each with the reason."""

    @property
    def exit_code(self) -> int:
        """Return 3 if nothing was begun, 4 if the call failed."""
        return report_exit_code(refused=self.plan.rejections, partly=self.failed)

    @property
    def changed(self) -> bool:
        """Return whether vCenter was changed, or would be."""
        return self.plan.feasible and self.plan.changes and not self.undone


@dataclass(frozen=True, slots=True)
class ClusterRemoved:
    """The outcome of `cluster delete`, or the outcome that it would have."""

    name: str
    vms: tuple[MarkedVm, ...]
    """The VMs of the cluster that existed."""
    left: tuple[str, ...] = ()
    """The VMs that could not be removed, each with the reason."""
    rejections: tuple[Rejection, ...] = ()
    applied: bool = False
    overrides: tuple[str, ...] = ()
    """Names of VMs that stay and whose override of DRS is removed, or would be."""

    @property
    def deeds(self) -> tuple[object, ...]:
        return tuple(member.vm.ref for member in self.vms), self.overrides

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return a line for each reason to refuse the removal, with its next move."""
        return tuple(rejection.line for rejection in summarize_similar(self.rejections))

    @property
    def changed(self) -> bool:
        """Return whether vCenter was changed, or would be."""
        return bool(self.vms or self.overrides) and not self.rejections

    @property
    def exit_code(self) -> int:
        return report_exit_code(refused=self.rejections, partly=self.left)
