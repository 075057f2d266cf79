"""The part of a saved state about networking: networks made and gone, and what each host is set to."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from gpuops.sim.objects.datastore import Network
from gpuops.sim.state.host_network import HostNetwork

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from gpuops.sim.world import World


@cache
def _adapter() -> TypeAdapter[HostNetwork]:
    from pydantic import TypeAdapter

    return TypeAdapter(HostNetwork)


def save(world: World, untouched: World) -> dict[str, Any]:
    """How networking differs from that of an untouched world, as JSON values."""
    now, before = (_networks(each) for each in (world, untouched))
    shown, known = (_hosts(each) for each in (world, untouched))
    return {
        "made": {moid: place for moid, place in now.items() if moid not in before},
        "removed": [moid for moid in before if moid not in now],
        "hosts": {moid: values for moid, values in shown.items() if known.get(moid) != values},
    }


def restore(world: World, saved: dict[str, Any]) -> None:
    """Make networking what was saved of it."""
    for moid, (name, folder) in saved["made"].items():
        network = Network(world, moid, name, folder)
        world.register(network)
        world.get(folder).add(network)
    for moid in saved["removed"]:
        gone = world.find(moid)
        if isinstance(gone, Network):  # not gone with its datacenter
            world.get(gone.parent).remove(gone)
            world.unregister(gone)
    for moid, values in saved["hosts"].items():
        state = world.get(moid).state
        state.network = _adapter().validate_python(values["network"])
        state.networks = tuple(values["networks"])


def _networks(world: World) -> dict[str, list[str | None]]:
    return {network.moid: [network.name, network.parent] for network in world.by_type("Network")}


def _hosts(world: World) -> dict[str, dict[str, Any]]:
    return {
        host.moid: {
            "network": _adapter().dump_python(host.state.network, mode="json"),
            "networks": list(host.state.networks),
        }
        for host in world.by_type("HostSystem")
    }
