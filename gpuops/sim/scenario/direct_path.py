"""Makes the DirectPath profiles of a scenario and what is reserved of them, before any VM starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuops.errors import PolicyError
from gpuops.sim.scenario.declared import DirectPathProfileDeclared
from gpuops.sim.state.direct_path import DirectPathConfig, DirectPathProfileState, DirectPathState, ReservationState

if TYPE_CHECKING:
    from gpuops.sim.scenario.site import ScenarioSite


def add_direct_path(site: ScenarioSite) -> None:
    """Raises PolicyError for a cluster that the scenario has not, for a reservation of what has no profile, and for a
    profile of no one thing."""
    declared = site.declared
    profiles = [
        DirectPathProfileState(f"dpp-{number}", profile.name, "", _config(profile))
        for number, profile in enumerate(declared.direct_path_profiles, 1)
    ]
    clusters = {cluster.name: cluster.moid for cluster in site.world.by_type("ClusterComputeResource")}
    reservations = []
    for reservation in declared.reservations:
        name = reservation.vgpu or reservation.profile
        if reservation.on not in clusters:
            raise PolicyError(f"reservation of {name}: the scenario has no cluster {reservation.on!r}")
        like = (
            profile.config
            for profile in profiles
            if name == (profile.config.vgpu if reservation.vgpu else profile.name)
        )
        config = next(like, None)
        if config is None:
            raise PolicyError(f"reservation of {name}: no DirectPath profile is declared for it")
        reservations.append(ReservationState(config, reservation.units, clusters[reservation.on], reservation.vms))
    site.world.direct_path = DirectPathState({profile.id: profile for profile in profiles}, tuple(reservations))


def _config(declared: DirectPathProfileDeclared) -> DirectPathConfig:
    if sum(map(bool, (declared.vgpu, declared.group, declared.devices))) != 1:
        raise PolicyError(f"DirectPath profile {declared.name}: say one of vgpu, group and devices")
    ids = []
    for text in declared.devices:
        vendor, _, device = text.partition(":")
        try:
            ids.append((int(vendor, 16), int(device, 16)))
        except ValueError:
            raise PolicyError(f"DirectPath profile {declared.name}: {text!r} is not VENDOR:DEVICE") from None
    return DirectPathConfig(declared.vgpu, declared.group, tuple(ids), declared.label)
