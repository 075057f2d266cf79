"""Makes the DirectPath profiles of a scenario and what is reserved of them, before any VM starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuops.errors import PolicyError
from gpuops.sim.state.direct_path import DirectPathProfileState, DirectPathState, ReservationState

if TYPE_CHECKING:
    from gpuops.sim.scenario.site import ScenarioSite


def add_direct_path(site: ScenarioSite) -> None:
    """Raises PolicyError for a cluster that the scenario has not, and for a reservation of what has no profile."""
    declared = site.declared
    profiles = [
        DirectPathProfileState(f"dpp-{number}", each.name, "", each.vgpu)
        for number, each in enumerate(declared.direct_path_profiles, 1)
    ]
    clusters = {cluster.name: cluster.moid for cluster in site.world.by_type("ClusterComputeResource")}
    reservations = []
    for each in declared.reservations:
        if each.on not in clusters:
            raise PolicyError(f"reservation of {each.vgpu}: the scenario has no cluster {each.on!r}")
        if each.vgpu not in (profile.vgpu for profile in profiles):
            raise PolicyError(f"reservation of {each.vgpu}: no DirectPath profile is declared for it")
        reservations.append(ReservationState(each.vgpu, each.units, clusters[each.on], each.vms))
    site.world.direct_path = DirectPathState({each.id: each for each in profiles}, tuple(reservations))
