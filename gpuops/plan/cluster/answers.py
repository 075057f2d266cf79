"""What calls about clusters come to: what was made, removed, or is there."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuops.errors import report_exit_code
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.cluster.members import MarkedVm
from gpuops.plan.cluster.plan import ClusterPlan
from gpuops.plan.core.plan import Rejection
from gpuops.plan.core.rejection import said_once


@dataclass(frozen=True, slots=True)
class ClusterMade:
    """What a call came to."""

    plan: ClusterPlan
    applied: bool
    addresses: dict[str, str] = field(default_factory=dict)
    """IP address of each guest, by the name of its VM."""
    failed: str = ""
    """What went wrong; empty = nothing did."""
    undone: bool = False
    """Whether all that was made is removed again."""
    left: tuple[str, ...] = ()
    """VMs that are to be removed and could not be, each with its reason."""

    @property
    def exit_code(self) -> int:
        """3 = nothing was begun, 4 = it failed."""
        return report_exit_code(refused=self.plan.rejections, partly=self.failed)

    @property
    def changed(self) -> bool:
        """Whether vCenter was changed, or would be."""
        return self.plan.feasible and self.plan.changes and not self.undone


@dataclass(frozen=True, slots=True)
class ClusterRemoved:
    """What a removal came to, or would."""

    name: str
    vms: tuple[MarkedVm, ...]
    """Those that were there."""
    left: tuple[str, ...] = ()
    """Those that could not be removed, each with its reason."""
    rejections: tuple[Rejection, ...] = ()
    applied: bool = False
    overrides: tuple[str, ...] = ()
    """Names of VMs that stay, whose override of DRS is taken back, or would be."""

    @property
    def reasons(self) -> tuple[str, ...]:
        """A line for each thing that speaks against it, with its next move."""
        return tuple(each.line for each in said_once(self.rejections))

    @property
    def changed(self) -> bool:
        """Whether vCenter was changed, or would be."""
        return bool(self.vms or self.overrides) and not self.rejections

    @property
    def exit_code(self) -> int:
        return report_exit_code(refused=self.rejections, partly=self.left)


@dataclass(frozen=True, slots=True)
class ShownMember:
    """One VM of a cluster."""

    rank: int
    vm: str
    """Managed object id."""
    name: str
    host: str | None
    power: PowerState | None
    devices: int
    """GPUs and other devices given whole that it has."""
    address: str | None
    rdma: str


@dataclass(frozen=True, slots=True)
class ShownCluster:
    """One cluster."""

    name: str
    id: str
    nodes: int
    members: tuple[ShownMember, ...]
    problems: tuple[str, ...]
    """Empty = it runs whole."""
