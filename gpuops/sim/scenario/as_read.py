"""Keys of a scenario for a cluster, host or VM that was read from a vCenter, in addition to those of any scenario.

`gpuops bundle` writes such scenarios. The rules of the simulated hosts place a declared VM, but a VM that was read runs
where it ran: the search for a wrong rule needs the original state.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from msgspec import Struct, field

from gpuops.sim.state.drs import HaAdmission


class _AsRead(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Checked by msgspec, as the rest of a scenario."""


class NodeAsRead(_AsRead, frozen=True):
    id: int
    logical_cpus: int
    memory_mib: int


class HostAsRead(_AsRead, frozen=True):
    moid: str
    connection: Literal["connected", "disconnected"] = "connected"
    in_maintenance: bool = False
    booted: datetime | None = None
    default_graphics_type: Literal["shared", "sharedDirect"] = "sharedDirect"
    datastores: tuple[str, ...] | None = None
    """Moids of those that it sees; None = all."""


class RuleAsRead(_AsRead, frozen=True):
    """One DRS rule; VMs, and the hosts that they are to be on and off, are moids."""

    name: str
    kind: Literal["together", "apart", "hosts"]
    vms: tuple[str, ...]
    on: tuple[str, ...] | None = None
    off: tuple[str, ...] = ()
    mandatory: bool = False


class ClusterAsRead(_AsRead, frozen=True):
    moid: str | None = None
    standalone: bool = False
    """Whether it is the place of a host that is in no cluster."""
    ha: HaAdmission | None = None
    """None = HA refuses no power-on."""
    overrides: Mapping[str, Literal["manual", "partiallyAutomated", "fullyAutomated", "off"]] = field(
        default_factory=dict
    )
    """By a VM's moid: a behavior of DRS, or `off`."""
    rules: tuple[RuleAsRead, ...] = ()


class VmAsRead(_AsRead, frozen=True):
    """One VM. What is known of its devices is in their order."""

    moid: str
    datastore: str | None = None
    """Moid; None = the first one."""
    gpus: tuple[str, ...] = ()
    """The PCI address under each of its vGPUs while it runs; () = where its host puts it."""
    starts: tuple[int | None, ...] = ()
    """Where each lies on its GPU, as far as the host told."""
    held: tuple[str | None, ...] = ()
    """The PCI address under each of its DirectPath devices."""
    device_keys: tuple[int, ...] = ()
    """() = they are numbered anew."""
    nodes: tuple[int | None, ...] = ()
    """The virtual NUMA node of each device."""
    group: str | None = None
    """The device group that its vGPUs are."""
    cores_per_socket: int = 1
    cores_per_numa_node: int | None = None
    memory_reservation_mib: int = 0
    cpu_reservation_mhz: int = 0
    memory_locked: bool = False
    cpu_hot_add: bool = False
    nested_virtualization: bool = False
    booted: datetime | None = None
    suspended: datetime | None = None
