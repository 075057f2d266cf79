"""What `gpuops bundle --first-contact` reads of a vCenter beyond its inventory, to judge the table of assumptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from gpuops.model.desktops.broker import DesktopMachine
from gpuops.model.vcenter.inventory import Inventory


@dataclass(frozen=True, slots=True)
class PastTask:
    """One task of the history of vCenter that has ended."""

    ref: str
    """Managed object id of its VM."""
    kind: str
    """TaskInfo.descriptionId: `VirtualMachine.suspend`."""
    queued: datetime
    ran_s: float | None
    """Without its time in the queue; None = vCenter does not say."""
    fault: str = ""
    """Type of the fault that it ended in; empty = it succeeded."""
    names_vgpu: bool = False
    """Whether the message of the fault speaks of a vGPU or its plugin."""
    created_vm: str | None = None
    """Managed object id of the clone that it created."""
    by_user: bool = True
    """Whether a login asked for it; vCenter itself or a schedule otherwise."""


@dataclass(frozen=True, slots=True)
class PastEvent:
    """One event about the power state or the host of a VM."""

    ref: str
    kind: str
    """Its type: `VmSuspendedEvent`."""
    at: datetime
    host: str | None
    """Managed object id of the host where the VM was then, after a move of the one it moved to."""
    source: str | None = None
    """Of the host that it came from by a move."""


class SettingChange(NamedTuple):
    """One event about a setting that a user changed."""

    ref: str
    """Managed object id of the VM or cluster."""
    setting: str
    """`devices` (those with GPUs), `marks` or `cluster`."""
    user: str
    mark: str = ""
    """The custom attribute, of a change of `marks`."""


@dataclass(frozen=True, slots=True)
class Contact:
    """One read-only look at a vCenter, its hosts and its broker."""

    inventory: Inventory
    """With settings of the hosts, and with what their nvidia-smi reports where they could be asked."""
    tasks: tuple[PastTask, ...] = ()
    """Oldest first."""
    events: tuple[PastEvent, ...] = ()
    """In the order in which vCenter wrote them."""
    changes: tuple[PastEvent, ...] | None = None
    """Changes of VMs' advanced options and custom attributes by any user; None = they could not be read."""
    counter_instances: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    """By host (ref), the instances of its GPU counters."""
    counter_names: frozenset[str] = frozenset()
    """The counters that vCenter has: `gpu.utilization.average`; empty = none could be read."""
    reserved_mib: Mapping[str, int] = field(default_factory=dict, hash=False)
    """By cluster (ref), the memory that its VMs reserve, as its root resource pool counts it."""
    machines: tuple[DesktopMachine, ...] = ()
    """Of the connection broker."""
    unread: tuple[str, ...] = ()
    """What could not be read, with the reason."""
