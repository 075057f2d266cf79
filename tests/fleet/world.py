"""The scenario and the policy of one of several vCenters: hosts with desktops in equal shares, and ML VMs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tests.harness import office

DESKTOPS_A_HOST: Final = 32
"""Highest number of vGPUs on a GPU."""
HOSTS_A_DATASTORE: Final = 10
MARKER: Final = "gpuops.rotation"
OPENS, BACK_BY = "21:00", "23:30"
DESKTOP, ML_VM = "vdi-{:04}", "ml-{:03}"


@dataclass(frozen=True, slots=True)
class Size:
    """Of one vCenter."""

    hosts: int
    desktops: int
    ml_vms: int
    """Each takes the only GPU of its host, from all desktops there."""
    memory_gib: int
    """Of a desktop. A datastore writes or reads 1 GiB/s, and a suspend has the 1 GiB of its vGPU to write as well."""
    in_flight: int
    """Operations that the policy allows at once."""


def desktop_names(size: Size) -> list[str]:
    return [DESKTOP.format(number) for number in range(1, size.desktops + 1)]


def scenario(size: Size) -> dict[str, Any]:
    """For `gpuops sim serve`."""
    if size.desktops > size.hosts * DESKTOPS_A_HOST or size.ml_vms > size.hosts:
        raise ValueError(f"{size} does not fit: {DESKTOPS_A_HOST} desktops and one ML VM a host")
    stores = -(-size.hosts // HOSTS_A_DATASTORE)
    desktops = office.desktop(
        1, "gpu", name=DESKTOP, count=size.desktops, memory_gib=size.memory_gib, devices=[{"vgpu": "nvidia_a40-1q"}]
    )
    return office.scenario(
        [desktops, office.ml_vm(1, "gpu", name=ML_VM, count=size.ml_vms)],
        office.hosts(size.hosts, name="esx-{:03}", group="gpu"),
        drs="partiallyAutomated",
        datastores=[
            {"name": f"ds-{number}", "capacity_gib": 10**6, "free_gib": 10**6} for number in range(1, stores + 1)
        ],
    )


def policy(name: str, closes: str, size: Size) -> dict[str, Any]:
    """Every desktop is idle and parked; `closes` is a clock time in UTC."""
    return office.policy(
        *(ML_VM.format(number) for number in range(1, size.ml_vms + 1)),
        pool={"floor": 0, "owner": "none"},
        name=name,
        windows=[{"opens": OPENS, "closes": closes, "back_by": BACK_BY, "zone": "UTC"}],
        ml={"stop": {"grace_s": 5, "then": "power-off"}},
        limits={"in_flight": size.in_flight, "per_host": 4},
    )
