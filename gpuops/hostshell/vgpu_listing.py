"""Reads which vGPUs run on the GPUs of a host, and where each lies, from what its nvidia-smi writes.

Sources: NVIDIA vGPU documentation, `nvidia-smi vgpu -q` (a `GPU` header for each GPU, then `Key : value` lines for each
vGPU; `Placement ID` in GB of frame buffer, `GPU Instance ID` in MIG mode, else `N/A`; under
`Utilization` the lines `Gpu` and `Encoder`; from memory: `License Status` begins with Licensed or Unlicensed); NVIDIA
Multi-Instance GPU User Guide, `nvidia-smi mig -lgi` (a table whose last column is `Start:Size` in memory slices). Where
no GPU is in vGPU mode, R580.159.04 prints one line instead, with exit status 0 (seen on an H100).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from gpuops.hostshell.gpu_lines import read_notices
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host_settings import SmiVgpu

INDEX: Final = "nvidia-smi --query-gpu=index,pci.bus_id --format=csv,noheader"
VGPUS: Final = "nvidia-smi vgpu -q"
INSTANCES: Final = "nvidia-smi mig -lgi"
_NO_VGPU_MODE: Final = "No supported devices in vGPU mode"
_GPU: Final = re.compile(r"GPU (?P<address>[^\s:]+:\S+)")
_LINE: Final = re.compile(r"\s+(?P<key>[^:]+?)\s*: (?P<value>.*)")
_INSTANCE: Final = re.compile(r"\|\s*(\d+)\s+MIG \S+\s+\d+\s+(\d+)\s+(\d+):(\d+)\s*\|")

Instances = Mapping[tuple[PciAddress, str], tuple[int, int]]
"""By GPU and id of a GPU instance, the memory slice at which it starts, and how many it has."""


def has_instances(listing: str) -> bool:
    """Return whether a vGPU of the listing runs in a GPU instance."""
    instance_ids = (
        line["value"].strip() for line in map(_LINE.fullmatch, listing.splitlines()) if line and _is_instance(line)
    )
    return any(instance_id != "N/A" for instance_id in instance_ids)


def _is_instance(line: re.Match[str]) -> bool:
    return line["key"] == "GPU Instance ID"


def read_vgpus(listing: str, instances: Instances) -> Iterator[SmiVgpu]:
    """Yield each vGPU of `nvidia-smi vgpu -q`.

    A GPU with a vGPU that cannot be read is left out: it would seem emptier than it is. Raises ValueError for a text
    that is not such a listing.
    """
    by_gpu: dict[PciAddress, list[SmiVgpu | None]] = {}
    for gpu, facts in _blocks(listing):
        vgpus = by_gpu.setdefault(gpu, [])
        if facts is not None:
            vgpus.append(_vgpu(gpu, facts, instances))
    if not by_gpu and not read_notices(listing) and listing.strip() != _NO_VGPU_MODE:
        raise ValueError("no GPU is named")
    readable = {gpu: vgpus for gpu, vgpus in by_gpu.items() if None not in vgpus}
    if by_gpu and not readable:
        raise ValueError(f"a vGPU of {next(iter(by_gpu))} has no name")
    for vgpus in readable.values():
        yield from (vgpu for vgpu in vgpus if vgpu is not None)


def _blocks(listing: str) -> Iterator[tuple[PciAddress, dict[str, str] | None]]:
    """Yield each GPU (with None), and the facts of each vGPU on it. An unreadable header ends the block before it."""
    gpu: PciAddress | None = None
    facts: dict[str, str] | None = None
    for line in listing.splitlines():
        header, fact = _GPU.fullmatch(line.strip()), _LINE.fullmatch(line)
        if header is not None:
            if gpu is not None and facts is not None:
                yield gpu, facts
            gpu, facts = PciAddress.parse_or_none(header["address"]), None
            if gpu is not None:
                yield gpu, None
        elif fact is not None and fact["key"] == "vGPU ID":
            if gpu is not None and facts is not None:
                yield gpu, facts
            facts = {}
        elif fact is not None and facts is not None:
            facts.setdefault(fact["key"], fact["value"].strip())
    if gpu is not None and facts is not None:
        yield gpu, facts


def _vgpu(gpu: PciAddress, facts: Mapping[str, str], instances: Instances) -> SmiVgpu | None:
    if not facts.get("VM Name") or not facts.get("vGPU Name"):
        return None
    profile = facts["vGPU Name"].lower().replace(" ", "_")
    instance, placement = facts.get("GPU Instance ID", "N/A"), facts.get("Placement ID", "N/A")
    placed = instances.get((gpu, instance), (None, None)) if instance != "N/A" else (_number(placement), None)
    return SmiVgpu(
        gpu,
        facts["VM Name"],
        profile,
        placed[0],
        _percent(facts.get("Gpu", "")),
        _percent(facts.get("Encoder", "")),
        _read_licence(facts.get("License Status", "")),
        placed[1],
    )


def read_instances(index: str, table: str) -> Instances:
    """Return the GPU instances of `nvidia-smi mig -lgi`, which numbers the GPUs; `index` holds their addresses."""
    addresses = {}
    for row in filter(str.strip, index.splitlines()):
        number, _, text = row.partition(",")
        address = PciAddress.parse_or_none(text)
        if address is not None:
            addresses[number.strip()] = address
    rows = (match.groups() for match in map(_INSTANCE.match, table.splitlines()) if match)
    return {
        (addresses[gpu], instance): (int(start), int(size)) for gpu, instance, start, size in rows if gpu in addresses
    }


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _percent(text: str) -> int | None:
    percent = _number(text.removesuffix("%").strip())
    return percent if percent is not None and percent <= 100 else None


def _read_licence(text: str) -> bool | None:
    word = text.partition(" ")[0].lower()
    return {"licensed": True, "unlicensed": False}.get(word)
