"""What the scenario of a bundle must be beyond any scenario: it comes from others, so it may be anything.

Each entry stands for one thing that was read, so that a bundle is a world of its own size: no counts, no parameters.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from gpuops.errors import PolicyError

if TYPE_CHECKING:
    from gpuops.sim.scenario.scenario_file import ScenarioFile

_MOID: Final = re.compile(r"(vm|host|domain-[cs]|datastore|resgroup-v?|id)-?[0-9a-f]{1,12}")
_MOST_SIZE: Final = 1 << 40
"""Of any number: none that a vSphere has is larger."""


def check(scenario: ScenarioFile, name: str) -> None:
    """Raises PolicyError for a scenario that no bundle has."""
    for reason in _reasons(scenario):
        raise PolicyError(f"scenario {name}: {reason}", hint="gpuops bundle writes such files")


def _reasons(scenario: ScenarioFile) -> list[str]:
    hosts = [host for cluster in scenario.clusters for host in cluster.hosts]
    read = [*(host.as_read for host in hosts), *(vm.as_read for vm in scenario.vms)]
    if scenario.parameters or any(each is None for each in read):
        return ["a host or VM is not as it was read"]
    if any(count != 1 for count in (*(host.count for host in hosts), *(vm.count for vm in scenario.vms))):
        return ["a host or VM is declared several times over"]
    names = [cluster.name for cluster in scenario.clusters]
    names += [*(host.name for host in hosts), *(vm.name for vm in scenario.vms)]
    if any("{" in each for each in names):
        return ["a name has a field for a number"]
    stores = [store.moid for store in scenario.datastores]
    moids = [each.moid for each in read if each is not None]
    moids += [moid for moid in (*stores, *(each.as_read.moid for each in scenario.clusters if each.as_read)) if moid]
    wrong = next((moid for moid in moids if not _MOID.fullmatch(moid)), None)
    twice = next((moid for moid, number in Counter(moids).items() if number > 1), None)
    if wrong is not None or twice is not None:
        return [f"{twice or wrong!r:.40} is not the id of one thing"]
    named = [store for host in hosts if host.as_read is not None for store in host.as_read.datastores or ()]
    named += [vm.as_read.datastore for vm in scenario.vms if vm.as_read is not None and vm.as_read.datastore]
    unknown = next((store for store in named if store not in stores), None)
    return [] if unknown is None else [f"there is no datastore {unknown!r:.40}"]
