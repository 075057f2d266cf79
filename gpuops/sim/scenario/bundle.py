"""What the scenario of a bundle must be beyond any scenario: it comes from others, so it may be anything.

Each entry stands for one thing that was read, so that a bundle is a world of its own size: no counts, no parameters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuops.errors import PolicyError

if TYPE_CHECKING:
    from gpuops.sim.scenario.scenario_file import ScenarioFile

_MOIDS: Final = {
    "VM": re.compile(r"vm-?[0-9]{1,10}|id-[0-9a-f]{1,12}"),
    "host": re.compile(r"host-?[0-9]{1,10}|id-[0-9a-f]{1,12}"),
    "cluster": re.compile(r"domain-[cs]-?[0-9]{1,10}|id-[0-9a-f]{1,12}"),
    "datastore": re.compile(r"datastore-?[0-9]{1,10}|id-[0-9a-f]{1,12}"),
}
"""As a vCenter numbers them, or a pseudonym of another one's."""
_MOST_SIZE: Final = 1 << 40
"""Of any number, MiB and MHz among them: none that a vSphere has is larger."""
_MOST_NODES: Final = 64
_MOST_CPUS: Final = 4096
_MOST: Final = {
    **dict.fromkeys(("sockets", "numa_nodes"), _MOST_NODES),
    **dict.fromkeys(
        ("cpus", "logical_cpus", "cores_per_socket", "threads_per_core", "cores_per_numa_node"), _MOST_CPUS
    ),
    **dict.fromkeys(("memory_gib", "disk_gib", "capacity_gib", "free_gib"), _MOST_SIZE >> 10),
    **dict.fromkeys(("hardware_version", "first", "units", "failover_level"), 1 << 20),
}
"""Of the numbers that the simulator counts up to, or keeps in smaller units."""
_YEARS: Final = range(1970, 2200)
"""A host whose clock lost its battery booted in 1970."""
_FIRST_START: Final = 2000


def check(scenario: ScenarioFile, name: str) -> None:
    """Raises PolicyError for a scenario that no bundle has."""
    for reason in _reasons(scenario):
        raise PolicyError(f"scenario {name}: {reason}", hint="gpuops bundle writes such files")


def _reasons(scenario: ScenarioFile) -> Iterator[str]:
    """What no bundle has; only the first is asked for, and later ones go by what those before let through."""
    hosts = [host for cluster in scenario.clusters for host in cluster.hosts]
    read = [*(host.as_read for host in hosts), *(vm.as_read for vm in scenario.vms)]
    if scenario.parameters or any(each is None for each in read):
        yield "a host or VM is not as it was read"
    if any(count != 1 for count in (*(host.count for host in hosts), *(vm.count for vm in scenario.vms))):
        yield "a host or VM is declared several times over"
    if scenario.desktop_pools:
        yield "there are desktop pools"
    names = [*(each.name for each in scenario.clusters), *(host.name for host in hosts)]
    names += [vm.name for vm in scenario.vms]
    if any("{" in name or "}" in name for name in names):
        yield "a name has a field for a number"
    if not scenario.datastores or not scenario.networks:
        yield "there is no datastore" if not scenario.datastores else "there is no network"
    if scenario.start.year < _FIRST_START:
        yield f"it starts before {_FIRST_START}"
    yield from _out_of_bounds(msgspec.to_builtins(scenario, builtin_types=(datetime,)))
    for model in scenario.models.values():
        if model.sockets * model.cores_per_socket * model.threads_per_core > _MOST_CPUS:
            yield f"a server model has more than {_MOST_CPUS} logical CPUs"
        if len(model.nodes) > _MOST_NODES:
            yield f"a server model has more than {_MOST_NODES} NUMA nodes"
    yield from _wrong_ids(scenario)


def _out_of_bounds(value: Any, at: str = "", key: str = "") -> Iterator[str]:
    """Numbers and moments, wherever they are."""
    match value:
        case dict():
            for name, each in value.items():
                yield from _out_of_bounds(each, f"{at}.{name:.40}" if at else f"{name:.40}", name)
        case list() | tuple():
            for number, each in enumerate(value):
                yield from _out_of_bounds(each, f"{at}.{number}", key)
        case bool():
            pass
        case int() | float():
            most = _MOST.get(key, _MOST_SIZE)
            if not 0 <= value <= most:  # so it is for NaN too
                yield f"{at} is {value}, and not from 0 to {most}"
        case datetime():
            if value.tzinfo is None or value.year not in _YEARS:
                yield f"{at} is no moment of a time zone from {_YEARS[0]} to {_YEARS[-1]}"
        case _:
            pass


def _wrong_ids(scenario: ScenarioFile) -> Iterator[str]:
    """Each id is that of one thing, as a vCenter gives them to things of its kind."""
    hosts = [host for cluster in scenario.clusters for host in cluster.hosts]
    stores = [store.moid for store in scenario.datastores if store.moid is not None]
    moids = [
        *(("VM", vm.as_read.moid) for vm in scenario.vms if vm.as_read is not None),
        *(("host", host.as_read.moid) for host in hosts if host.as_read is not None),
        *(("cluster", each.as_read.moid) for each in scenario.clusters if each.as_read and each.as_read.moid),
        *(("datastore", store) for store in stores),
    ]
    for kind, moid in moids:
        if not _MOIDS[kind].fullmatch(moid):
            yield f"{moid!r:.40} is not the id of one {kind}"
    for moid, number in Counter(moid for _, moid in moids).items():
        if number > 1:
            yield f"{moid!r:.40} is not the id of one thing"
    named = [store for host in hosts if host.as_read is not None for store in host.as_read.datastores or ()]
    named += [vm.as_read.datastore for vm in scenario.vms if vm.as_read is not None and vm.as_read.datastore]
    known = frozenset(stores)
    yield from (f"there is no datastore {store!r:.40}" for store in named if store not in known)
