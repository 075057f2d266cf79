"""Site: a scenario while it is being built."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuops.errors import PolicyError

if TYPE_CHECKING:
    from gpuops.sim.objects.datacenter import Datacenter
    from gpuops.sim.objects.datastore import Datastore
    from gpuops.sim.objects.host_system import HostSystem
    from gpuops.sim.objects.network import Network
    from gpuops.sim.scenario_file import ScenarioFile
    from gpuops.sim.world import World


@dataclass(slots=True)
class Site:
    """The world, what is declared of it, and what stands already."""

    world: World
    declared: ScenarioFile
    parameters: dict[str, int]
    datacenter: Datacenter
    datastores: list[Datastore] = field(default_factory=list)
    networks: list[Network] = field(default_factory=list)
    hosts: dict[str, list[HostSystem]] = field(default_factory=dict)
    """By group, and by own name."""

    def hosts_of(self, group: str) -> list[HostSystem]:
        """The hosts of a group, or the one of that name. Raises PolicyError."""
        found = self.hosts.get(group)
        if not found:
            raise PolicyError(f"the scenario has no hosts {group!r}", hint=f"it has {', '.join(self.hosts)}")
        return found
