"""Clusters of VMs for training: what a file wants, the marker that each VM carries, and what runs.

A rank is the number of a VM in its cluster, from 0 on. The marker lies in extraConfig: it is part of the clone, so that
no VM of a cluster is ever there without it, and needs no custom attribute to be defined.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Final

from gpuops.model.stored import stored_as, to_stored

MARKER_KEY: Final = "gpuops.cluster"
"""Of extraConfig."""
_FORMAT: Final = "v1"


class RdmaKind(StrEnum):
    """The network card by which the VMs of a cluster reach each other's memory."""

    PVRDMA = "pvrdma"
    """Paravirtual RDMA on a distributed port group."""
    SRIOV = "sriov"
    """A virtual function of a physical network adapter."""
    DIRECTPATH = "directpath"
    """A whole network adapter, by DirectPath I/O."""
    NONE = "none"


class Arrangement(StrEnum):
    """How the VMs of a cluster lie on hosts."""

    PACKED = "packed"
    """On as few hosts as hold them."""
    SPREAD = "spread"
    """On as many hosts as there are, evenly."""


class LatencyLevel(StrEnum):
    """Latency sensitivity of a VM (vSphere API, LatencySensitivity)."""

    NORMAL = "normal"
    HIGH = "high"
    """All of its CPU is reserved too, and its vCPUs have cores of their own."""


@stored_as("ClusterWish")
@dataclass(frozen=True, slots=True)
class ClusterWish:
    """A cluster as its file wants it."""

    name: str
    template: str
    """Name, inventory path, `moid:vm-42` or `uuid:...` of a template."""
    nodes: int
    gpus: int
    """Of each VM."""
    profile: str | None = None
    """vGPU profile; None = whole GPUs of `model`."""
    model: str | None = None
    """GPU model as hosts name it, `l40s`: whole GPUs by Dynamic DirectPath I/O."""
    rdma: RdmaKind = RdmaKind.NONE
    port_group: str | None = None
    """Name of the distributed port group of the RDMA network card."""
    device: str | None = None
    """PCI type of the network adapter that is given whole, `15b3:101d`."""
    placement: Arrangement = Arrangement.PACKED
    cpus: int | None = None
    """None = those of the template."""
    memory_mib: int | None = None
    """None = that of the template."""
    huge_pages: bool = False
    latency: LatencyLevel = LatencyLevel.NORMAL
    folder: str | None = None
    """Inventory path of a folder for VMs; None = that of the template."""
    datastore: str | None = None
    """None = that of the template."""

    @property
    def digest(self) -> str:
        """Return twelve hexadecimal digits of a hash of the request; another request has other digits."""
        return sha256(json.dumps(to_stored(self), sort_keys=True).encode()).hexdigest()[:12]

    def vm_name(self, rank: int) -> str:
        """Return `train-00` or `train-01`: the name of the VM with this number."""
        return f"{self.name}-{rank:02}"


_MARKER: Final = re.compile(
    rf"{_FORMAT} ([a-z0-9-]{{1,50}}) rank=(\d{{1,4}}) nodes=(\d{{1,4}}) id=([0-9a-f]{{8}}) wish=([0-9a-f]{{12}}) "
    rf"gpus=(\d{{1,4}}) rdma=({'|'.join(RdmaKind)})",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class ClusterMarker:
    """What a VM of a cluster says of itself."""

    cluster: str
    rank: int
    nodes: int
    id: str
    """Eight hexadecimal digits, drawn for this cluster: one of the same name that was made another time has others."""
    wish: str
    """Digest of what was wanted."""
    gpus: int
    rdma: RdmaKind

    @property
    def text(self) -> str:
        """Return the extraConfig text: `v1 train rank=0 nodes=4 id=0a1b2c3d wish=0123456789ab gpus=1 rdma=pvrdma`."""
        place, origin = f"rank={self.rank} nodes={self.nodes}", f"id={self.id} wish={self.wish}"
        return f"{_FORMAT} {self.cluster} {place} {origin} gpus={self.gpus} rdma={self.rdma}"

    @property
    def devices(self) -> int:
        """Return the number of its devices: its GPUs, and an RDMA network card that is passed through."""
        return self.gpus + (self.rdma in (RdmaKind.SRIOV, RdmaKind.DIRECTPATH))

    @property
    def notes(self) -> str:
        """Return the notes of the VM. gpuops removes only a VM with these notes."""
        membership = f"rank {self.rank} of {self.nodes}, cluster {self.cluster}, id {self.id}"
        return f"Made by gpuops cluster create: {membership}. gpuops cluster delete removes it."


def parse_cluster_marker(text: str) -> ClusterMarker | None:
    """Return the marker in a text of extraConfig; None = gpuops did not write it."""
    match = _MARKER.fullmatch(text)
    if match is None:
        return None
    cluster, rank, nodes, id_, wish, gpus, rdma = match.groups()
    return ClusterMarker(cluster, int(rank), int(nodes), id_, wish, int(gpus), RdmaKind(rdma))


@dataclass(frozen=True, slots=True)
class Member:
    """A VM of a cluster that runs."""

    vm: str
    """Managed object id."""
    name: str
    host: str
    """Name of its host."""
    gpus: int
    address: str | None
    """IP address that its guest tells; None = it tells none."""
    rdma: str | None
    """`pvrdma`, `sriov` or `directpath`; None = it has no RDMA network card."""


@dataclass(frozen=True, slots=True)
class TrainingCluster:
    """A cluster that runs whole."""

    name: str
    members: tuple[Member, ...]
    """In the order of their ranks."""


Cluster = TrainingCluster
