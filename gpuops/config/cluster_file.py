"""A cluster of VMs for training as YAML, checked and made into a wish.

`templates/cluster.yaml` is the commented example. `gpuops cluster` reads it here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from gpuops.config.sections.section import Section, Text
from gpuops.errors import PolicyError, UsageError
from gpuops.files.wrong_value import first_wrong
from gpuops.files.yaml_file import parse_yaml, read_text
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
        raise ValueError("should be a name for guests too: small letters, digits and - between them, 50 at the most")
    return text


def _size(text: str) -> str:
    try:
        size_mib = memory_mib(text)
    except UsageError as error:
        raise ValueError(f"{error.message}; {error.hint}") from error
    if size_mib % MEMORY_STEP_MIB:
        raise ValueError(f"{text} is no multiple of {MEMORY_STEP_MIB} MiB, as the memory of each VM is")
    return text


def _pci_type(text: str) -> str:
    if not _TYPE.fullmatch(text.lower()):
        raise ValueError(f"{text!r} is no PCI type; write vendor:device in hexadecimal, in quotes: '15b3:101d'")
    return text.lower()


class ClusterGpusSection(Section):
    """The GPUs of each VM: vGPUs of a profile, or whole GPUs of a model."""

    profile: Text | None = None
    model: Text | None = None
    count: int = Field(default=1, ge=1, le=16)

    @model_validator(mode="after")
    def _one_kind(self) -> ClusterGpusSection:
        if (self.profile is None) == (self.model is None):
            raise ValueError("say either `profile`, for vGPUs, or `model`, for whole GPUs")
        return self


class ClusterRdmaSection(Section):
    """The RDMA network card of each VM."""

    kind: Literal["pvrdma", "sriov", "directpath", "none"]
    port_group: Text | None = None
    device: Annotated[Text, AfterValidator(_pci_type)] | None = None

    @model_validator(mode="after")
    def _where(self) -> ClusterRdmaSection:
        on_port_group, whole = self.kind in ("pvrdma", "sriov"), self.kind == "directpath"
        if on_port_group is not (self.port_group is not None):
            verb = "needs" if on_port_group else "has no"
            raise ValueError(f"kind {self.kind} {verb} `port_group`, the name of a distributed port group")
        if whole is not (self.device is not None):
            raise ValueError(f"kind {self.kind} {'needs' if whole else 'has no'} `device`, a PCI type: '15b3:101d'")
        return self


class ClusterFile(Section):
    """The whole YAML file."""

    version: Literal[1]
    name: Annotated[str, AfterValidator(_cluster_name)]
    template: Text
    nodes: int = Field(ge=1, le=MOST_NODES)
    gpus: ClusterGpusSection
    rdma: ClusterRdmaSection
    placement: Literal["packed", "spread"] = "packed"
    cpus: int | None = Field(default=None, ge=1, le=768)
    memory: Annotated[Text, AfterValidator(_size)] | None = None
    huge_pages: bool = False
    latency_sensitivity: Literal["normal", "high"] = "normal"
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
            rdma=RdmaKind(self.rdma.kind),
            port_group=self.rdma.port_group,
            device=self.rdma.device,
            placement=Arrangement(self.placement),
            cpus=self.cpus,
            memory_mib=memory_mib(self.memory) if self.memory is not None else None,
            huge_pages=self.huge_pages,
            latency=LatencyLevel(self.latency_sensitivity),
            folder=self.folder,
            datastore=self.datastore,
        )


def load_cluster(path: Path) -> ClusterWish:
    """The cluster in this file. Raises PolicyError, one line: file, place, reason."""
    return parse_cluster(read_text(path), str(path))


def parse_cluster(text: str, name: str) -> ClusterWish:
    """The cluster of a YAML text; `name` is what an error calls it. Raises PolicyError."""
    try:
        return ClusterFile.model_validate(parse_yaml(text, name)).wish()
    except ValidationError as error:
        raise PolicyError(f"{name}: {first_wrong(error)}", hint=_HINT) from error
