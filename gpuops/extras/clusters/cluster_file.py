"""A cluster of VMs for training as YAML, checked and made into a wish.

`templates/cluster.yaml` is the commented example. `gpuops cluster` reads it here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta

from gpuops.config.decoding import Section, read_as
from gpuops.files.yaml_file import parse_yaml, read_text
from gpuops.model.file_keys import Reads, Text, reads_by
from gpuops.model.workloads.cluster import Arrangement, ClusterWish, LatencyLevel, RdmaKind
from gpuops.model.workloads.workload import memory_mib

MOST_NODES: Final = 100
MEMORY_STEP_MIB: Final = 4
"""vSphere API reference, VirtualMachineConfigSpec.memoryMB: a multiple of 4 MiB is asked for (from memory)."""
_HINT: Final = "templates/cluster.yaml shows every key, with comments"
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?")
_TYPE: Final = re.compile(r"[0-9a-f]{4}:[0-9a-f]{4}")


def _cluster_name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError("should be a name for guests too: at most 50 small letters and digits, with - between them")
    return text


def _size_mib(text: str) -> int:
    size_mib = memory_mib(text)
    if size_mib % MEMORY_STEP_MIB:
        raise ValueError(f"{text} is not a multiple of {MEMORY_STEP_MIB} MiB, which vSphere requires")
    return size_mib


def _pci_type(text: str) -> str:
    if not _TYPE.fullmatch(text.lower()):
        raise ValueError(f"{text!r} is no PCI type; write vendor:device in hexadecimal, in quotes: '15b3:101d'")
    return text.lower()


class ClusterGpusSection(Section):
    """The GPUs of each VM: vGPUs of a profile, or whole GPUs of a model."""

    profile: Text | None = None
    model: Text | None = None
    count: Annotated[int, Meta(ge=1, le=16)] = 1

    def __post_init__(self) -> None:
        if (self.profile is None) == (self.model is None):
            raise ValueError("set either `profile`, for vGPUs, or `model`, for whole GPUs")


class ClusterRdmaSection(Section):
    """The RDMA network card of each VM."""

    kind: RdmaKind
    port_group: Text | None = None
    device: Annotated[str, Reads(_pci_type, Text)] | None = None

    def __post_init__(self) -> None:
        on_port_group, whole = self.kind in (RdmaKind.PVRDMA, RdmaKind.SRIOV), self.kind is RdmaKind.DIRECTPATH
        if on_port_group is not (self.port_group is not None):
            verb = "needs" if on_port_group else "has no"
            raise ValueError(f"kind {self.kind} {verb} `port_group`, the name of a distributed port group")
        if whole is not (self.device is not None):
            raise ValueError(f"kind {self.kind} {'needs' if whole else 'has no'} `device`, a PCI type: '15b3:101d'")


class ClusterFile(Section):
    """The whole YAML file."""

    version: Literal[1]
    name: Annotated[str, Reads(_cluster_name)]
    template: Text
    nodes: Annotated[int, Meta(ge=1, le=MOST_NODES)]
    gpus: ClusterGpusSection
    rdma: ClusterRdmaSection
    placement: Arrangement = Arrangement.PACKED
    cpus: Annotated[int, Meta(ge=1, le=768)] | None = None
    memory: Annotated[int, reads_by(_size_mib)] | None = None
    huge_pages: bool = False
    latency_sensitivity: LatencyLevel = LatencyLevel.NORMAL
    folder: Text | None = None
    datastore: Text | None = None

    def wish(self) -> ClusterWish:
        return ClusterWish(
            name=self.name,
            template=self.template,
            nodes=self.nodes,
            gpus=self.gpus.count,
            profile=self.gpus.profile,
            model=self.gpus.model,
            rdma=self.rdma.kind,
            port_group=self.rdma.port_group,
            device=self.rdma.device,
            placement=self.placement,
            cpus=self.cpus,
            memory_mib=self.memory,
            huge_pages=self.huge_pages,
            latency=self.latency_sensitivity,
            folder=self.folder,
            datastore=self.datastore,
        )


def load_cluster(path: Path) -> ClusterWish:
    """The cluster in this file. Raises PolicyError, one line: file, place, reason."""
    return parse_cluster(read_text(path), str(path))


def parse_cluster(text: str, name: str) -> ClusterWish:
    """The cluster of a YAML text; `name` is what an error calls it. Raises PolicyError."""
    return read_as(ClusterFile, parse_yaml(text, name), name, _HINT).wish()
