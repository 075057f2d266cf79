"""Reads and checks scenario files: YAML that declares what a simulated vCenter contains (`declared.py`).

A scenario in a bundle gets further checks, because it may come from a stranger: each of its entries stands for one host
or VM that was read, without counts and parameters, so that the world cannot become larger than the file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
import yaml
from msgspec import Meta, field

from gpuops.errors import PolicyError
from gpuops.files.bundle_file import SCENARIO, SUFFIX, read_member
from gpuops.files.yaml_file import describe_mismatch, parse_yaml, read_text
from gpuops.sim.scenario.declared import (
    NAMES_AND_COUNTS,
    ClusterDeclared,
    DatastoreDeclared,
    Declared,
    DesktopPoolDeclared,
    DirectPathProfileDeclared,
    GuestDeclared,
    ModelDeclared,
    ReservationDeclared,
    SwitchDeclared,
    VmsDeclared,
    wrong_repetitions,
)

if TYPE_CHECKING:
    from gpuops.sim.scenario.declared import HostsDeclared

_PREFIXES: Final = {"VM": "vm-?", "host": "host-?", "cluster": "domain-[cs]-?", "datastore": "datastore-?"}
"""Patterns of the start of vCenter's ids; a pseudonym of any other id begins with `id-`."""
_MAX_SIZE: Final = 1 << 40
"""The limit of any number, MiB and MHz included: no vSphere has a larger one."""
_MAX_NODES: Final = 64
_MAX_CPUS: Final = 4096
_MAX: Final = {
    **dict.fromkeys(("sockets", "numa_nodes"), _MAX_NODES),
    **dict.fromkeys(["cpus", "logical_cpus", "cores_per_socket", "threads_per_core", "cores_per_numa_node"], _MAX_CPUS),
    **dict.fromkeys(("memory_gib", "disk_gib", "capacity_gib", "free_gib"), _MAX_SIZE >> 10),
    **dict.fromkeys(("hardware_version", "first", "units", "failover_level"), 1 << 20),
}
"""The limits of numbers that the simulator counts up to or stores in smaller units, by key."""
_YEARS: Final = range(1970, 2200)
"""A host whose clock lost its battery booted in 1970."""
_FIRST_START: Final = 2000


def check_bundle(scenario: ScenarioFile, name: str) -> None:
    """Raises PolicyError for a scenario that `gpuops bundle` cannot have written."""
    for reason in _bundle_reasons(scenario):
        raise PolicyError(f"scenario {name}: {reason}", hint="use a bundle as `gpuops bundle` wrote it")


def moids_read(scenario: ScenarioFile) -> Iterator[tuple[str, str]]:
    """The kind and the id of everything that was read from a vCenter."""
    yield from (("VM", vm.as_read.moid) for vm in scenario.vms if vm.as_read is not None)
    for cluster in scenario.clusters:
        yield from (("host", host.as_read.moid) for host in cluster.hosts if host.as_read is not None)
        if cluster.as_read is not None and cluster.as_read.moid is not None:
            yield "cluster", cluster.as_read.moid
    yield from (("datastore", store.moid) for store in scenario.datastores if store.moid is not None)


def _bundle_reasons(scenario: ScenarioFile) -> Iterator[str]:
    """Yield why this scenario cannot come from a bundle. The caller reads only the first reason: each check relies on
    the ones before it."""
    hosts = [host for cluster in scenario.clusters for host in cluster.hosts]
    things: tuple[HostsDeclared | VmsDeclared, ...] = (*hosts, *scenario.vms)
    if scenario.parameters or any(thing.as_read is None for thing in things):
        yield "a host or VM has no `as_read`, which a bundle always has"
    if any(thing.count != 1 for thing in things):
        yield "a host or VM has a `count` other than 1"
    if scenario.desktop_pools:
        yield "it declares desktop pools"
    if any("{" in thing.name or "}" in thing.name for thing in (*scenario.clusters, *things)):
        yield "a name has braces"
    if not scenario.datastores or not scenario.networks:
        yield "there is no datastore" if not scenario.datastores else "there is no network"
    if scenario.start.year < _FIRST_START:
        yield f"it starts before {_FIRST_START}"
    yield from _out_of_bounds(msgspec.to_builtins(scenario, builtin_types=(datetime,)))
    yield from _wrong_models(scenario)
    yield from _wrong_ids(scenario)


def _wrong_models(scenario: ScenarioFile) -> Iterator[str]:
    for model in scenario.models.values():
        if model.sockets * model.cores_per_socket * model.threads_per_core > _MAX_CPUS:
            yield f"a server model has more than {_MAX_CPUS} logical CPUs"
        if len(model.nodes) > _MAX_NODES:
            yield f"a server model has more than {_MAX_NODES} NUMA nodes"


def _wrong_ids(scenario: ScenarioFile) -> Iterator[str]:
    """Yield a reason for each id that does not have the form of its type or that several objects have, and for each
    datastore that a host or VM is on and the scenario does not have."""
    hosts = [host for cluster in scenario.clusters for host in cluster.hosts]
    moids = list(moids_read(scenario))
    for kind, moid in moids:
        # a bundle replaces an id that does not have vCenter's form by a pseudonym: `id-` and hexadecimal digits
        if not re.fullmatch(rf"{_PREFIXES[kind]}[0-9]{{1,10}}|id-[0-9a-f]{{1,12}}", moid):
            yield f"{moid!r:.40} does not have the form of the id of a {kind}"
    for moid, count in Counter(moid for _, moid in moids).items():
        if count > 1:
            yield f"the id {moid!r:.40} is used {count} times"
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
            most = _MAX.get(key, _MAX_SIZE)
            if not 0 <= value <= most:  # also true for NaN, with which every comparison is false
                yield f"{at} is {value}; it must be from 0 to {most}"
        case datetime() if value.tzinfo is None or value.year not in _YEARS:
            yield f"{at} must be a time with a time zone, from {_YEARS[0]} to {_YEARS[-1]}"


_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's parser where PyYAML was built with it: eight times faster. For the scenarios that gpuops brings alone: it
has no limit of depth, and a file of 50,000 brackets ends the process."""


class ScenarioFile(Declared, frozen=True, kw_only=True):
    """A whole scenario."""

    description: str
    start: Annotated[datetime, Meta(extra_json_schema={"format": "date-time"})]
    parameters: dict[str, int] = field(default_factory=dict)
    limits: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The least and the most a parameter may be."""
    options: dict[str, bool] = field(default_factory=dict)
    """Advanced settings of the vCenter: `vgpu.hotmigrate.enabled`."""
    busy: Literal["queue", "refuse"] = "queue"
    """What becomes of a task of a VM that has one already (`vcenter/tasks.py`)."""
    datacenter: str
    models: dict[str, ModelDeclared]
    guests: dict[str, GuestDeclared]
    datastores: tuple[DatastoreDeclared, ...]
    networks: tuple[str, ...]
    clusters: tuple[ClusterDeclared, ...]
    vms: tuple[VmsDeclared, ...]
    switches: tuple[SwitchDeclared, ...] = ()
    """Distributed switches."""
    desktop_pools: tuple[DesktopPoolDeclared, ...] = ()
    api_version: str | None = None
    """`9.0.0.0`: of vSphere's API, whose release the hosts have too; None = that of `world.py`."""
    direct_path_profiles: tuple[DirectPathProfileDeclared, ...] = ()
    reservations: tuple[ReservationDeclared, ...] = ()

    @classmethod
    def of(cls, content: object) -> ScenarioFile:
        """The scenario that plain values declare. Raises msgspec.ValidationError for the first that is wrong."""
        return msgspec.convert(content, cls)


def names() -> tuple[str, ...]:
    """The scenarios that gpuops brings; a `NAME-policy.yaml` beside one is a rotation policy made for it."""
    files = resources.files("gpuops.sim").joinpath("scenarios").iterdir()
    names = (file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))
    return tuple(sorted(name for name in names if not name.endswith("-policy")))


def read(spelled: str) -> tuple[ScenarioFile, dict[str, int]]:
    """Return a scenario and its parameters.

    `spelled` is a name such as `lab` or `fleet:hosts=200,vms=2000`, a YAML file, or a bundle that `gpuops bundle`
    wrote. Raises PolicyError for an unknown name or parameter, a value out of range, or a file with wrong fields.
    """
    name, _, settings = spelled.partition(":")
    if name.endswith(SUFFIX):
        scenario = _decode_scenario(read_member(Path(name), SCENARIO), name)
        check_bundle(scenario, name)
    elif name.endswith((".yaml", ".yml")):
        scenario = parse(read_text(Path(name)), name)
    else:
        scenario = _decode_scenario(_bundled_text(name), name)
    return scenario, _parameters(scenario, name, settings)


@cache
def _bundled_text(name: str) -> object:
    """The content of a scenario that gpuops brings; read once, as it never changes."""
    if name not in names():
        raise PolicyError(
            f"no scenario {name!r}", hint=f"use one of {', '.join(names())}, or a file NAME.yaml or a bundle"
        )
    text = resources.files("gpuops.sim").joinpath("scenarios", f"{name}.yaml").read_text(encoding="utf-8")
    return yaml.load(text, Loader=_LOADER)  # noqa: S506  safe either way


def parse(text: str, name: str) -> ScenarioFile:
    """The scenario in the YAML text of a file. Raises PolicyError."""
    return _decode_scenario(parse_yaml(text, name, merges=True), name)


def _decode_scenario(content: object, name: str) -> ScenarioFile:
    """The scenario that plain values declare. Raises PolicyError for the first that is wrong."""
    try:
        scenario = ScenarioFile.of(content)
    except msgspec.ValidationError as error:
        raise PolicyError(f"scenario {name}: {_wrong_entry(content) or describe_mismatch(error)}") from error
    if reason := next(wrong_repetitions(scenario), None):
        raise PolicyError(f"scenario {name}: {reason}", hint=NAMES_AND_COUNTS)
    return scenario


def _wrong_entry(content: object) -> str:
    """What is wrong with a server model or a guest, whose name msgspec does not tell; '' = nothing."""
    for section, kind in (("models", ModelDeclared), ("guests", GuestDeclared)):
        entries = content.get(section) if isinstance(content, dict) else None
        for name, entry in entries.items() if isinstance(entries, dict) else ():
            try:
                msgspec.convert(entry, kind)
            except msgspec.ValidationError as error:
                return describe_mismatch(error, f"{section}.{name}")
    return ""


def _parameters(scenario: ScenarioFile, name: str, settings: str) -> dict[str, int]:
    """Return the parameters of a scenario with settings such as `hosts=20,vms=200`. Raises PolicyError."""
    values = dict(scenario.parameters)
    for setting in filter(None, settings.split(",")):
        key, _, text = setting.partition("=")
        if key not in values or not text.isdigit():
            known = ", ".join(f"{name}={value}" for name, value in scenario.parameters.items()) or "none"
            raise PolicyError(f"scenario {name} has no parameter {setting!r}", hint=f"its parameters: {known}")
        values[key] = int(text)
        least, most = scenario.limits.get(key, (1, values[key]))
        if not least <= values[key] <= most:
            raise PolicyError(
                f"scenario {name}: {key}={text} is out of range", hint=f"use a value from {least} to {most}"
            )
    return values
