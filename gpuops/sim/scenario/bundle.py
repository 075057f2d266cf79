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
    from gpuops.sim.scenario.declared import HostsDeclared, VmsDeclared
    from gpuops.sim.scenario.scenario_file import ScenarioFile

_PREFIXES: Final = {"VM": "vm-?", "host": "host-?", "cluster": "domain-[cs]-?", "datastore": "datastore-?"}
"""Of ids as a vCenter numbers them; a pseudonym of another one begins with `id-`."""
_MOST_SIZE: Final = 1 << 40
"""Of any number, MiB and MHz among them: none that a vSphere has is larger."""
_MOST_NODES: Final = 64
_MOST_CPUS: Final = 4096
_MOST: Final = {
    **dict.fromkeys(("sockets", "numa_nodes"), _MOST_NODES),
    **dict.fromkeys(
        ["cpus", "logical_cpus", "cores_per_socket", "threads_per_core", "cores_per_numa_node"], _MOST_CPUS
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


def moids_read(scenario: ScenarioFile) -> Iterator[tuple[str, str]]:
    """The kind and the id of everything that was read from a vCenter."""
    yield from (("VM", vm.as_read.moid) for vm in scenario.vms if vm.as_read is not None)
    for cluster in scenario.clusters:
        yield from (("host", host.as_read.moid) for host in cluster.hosts if host.as_read is not None)
        if cluster.as_read is not None and cluster.as_read.moid is not None:
            yield "cluster", cluster.as_read.moid
    yield from (("datastore", store.moid) for store in scenario.datastores if store.moid is not None)


def _reasons(scenario: ScenarioFile) -> Iterator[str]:
    """Yield why this scenario cannot come from a bundle. The caller reads only the first reason: each check relies on
    the ones before it."""
    hosts = [host for cluster in scenario.clusters for host in cluster.hosts]
    things: tuple[HostsDeclared | VmsDeclared, ...] = (*hosts, *scenario.vms)
    if scenario.parameters or any(thing.as_read is None for thing in things):
        yield "a host or VM is not as it was read"
    if any(thing.count != 1 for thing in things):
        yield "a host or VM is declared several times over"
    if scenario.desktop_pools:
        yield "there are desktop pools"
    if any("{" in thing.name or "}" in thing.name for thing in (*scenario.clusters, *things)):
        yield "a name has a field for a number"
    if not scenario.datastores or not scenario.networks:
        yield "there is no datastore" if not scenario.datastores else "there is no network"
    if scenario.start.year < _FIRST_START:
        yield f"it starts before {_FIRST_START}"
    yield from _out_of_bounds(msgspec.to_builtins(scenario, builtin_types=(datetime,)))
    yield from _wrong_models(scenario)
    yield from _wrong_ids(scenario)


def _wrong_models(scenario: ScenarioFile) -> Iterator[str]:
    for model in scenario.models.values():
        if model.sockets * model.cores_per_socket * model.threads_per_core > _MOST_CPUS:
            yield f"a server model has more than {_MOST_CPUS} logical CPUs"
        if len(model.nodes) > _MOST_NODES:
            yield f"a server model has more than {_MOST_NODES} NUMA nodes"


def _wrong_ids(scenario: ScenarioFile) -> Iterator[str]:
    """Yield a reason for each id that does not have the form of its type or that several objects have, and for each
    datastore that a host or VM is on and the scenario does not have."""
    hosts = [host for cluster in scenario.clusters for host in cluster.hosts]
    moids = list(moids_read(scenario))
    for kind, moid in moids:
        # a bundle replaces an id that does not have vCenter's form by a pseudonym: `id-` and hexadecimal digits
        if not re.fullmatch(rf"{_PREFIXES[kind]}[0-9]{{1,10}}|id-[0-9a-f]{{1,12}}", moid):
            yield f"{moid!r:.40} is not the id of one {kind}"
    for moid, count in Counter(moid for _, moid in moids).items():
        if count > 1:
            yield f"{moid!r:.40} is not the id of one thing"
    stores = {store for host in hosts if host.as_read is not None for store in host.as_read.datastores or ()}
    stores |= {vm.as_read.datastore for vm in scenario.vms if vm.as_read is not None and vm.as_read.datastore}
    yield from (f"there is no datastore {store!r:.40}" for store in sorted(stores) if ("datastore", store) not in moids)


def _out_of_bounds(value: Any, at: str = "", key: str = "") -> Iterator[str]:
    """Yield each number and time of the nested `value` that is out of range; `at` is its path, `key` its last name."""
    match value:
        case dict():
            for name, part in value.items():
                yield from _out_of_bounds(part, f"{at}.{name:.40}" if at else f"{name:.40}", name)
        case list() | tuple():
            for number, part in enumerate(value):
                yield from _out_of_bounds(part, f"{at}.{number}", key)
        case int() | float() if not isinstance(value, bool):
            most = _MOST.get(key, _MOST_SIZE)
            if not 0 <= value <= most:  # also true for NaN, with which every comparison is false
                yield f"{at} is {value}, and not from 0 to {most}"
        case datetime() if value.tzinfo is None or value.year not in _YEARS:
            yield f"{at} is no moment of a time zone from {_YEARS[0]} to {_YEARS[-1]}"
