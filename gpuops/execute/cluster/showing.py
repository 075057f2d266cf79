"""What there is of clusters: each VM by the marker that it carries, and what is not as its cluster was made."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from gpuops.errors import UsageError
from gpuops.execute.cluster.run import open_runs
from gpuops.execute.site import Site
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.cluster.answers import ShownCluster, ShownMember
from gpuops.plan.cluster.members import MarkedVm, marked_vms


def show(name: str | None, site: Site) -> tuple[ShownCluster, ...]:
    """The clusters of this vCenter, or the one of this name. Changes nothing. Raises UsageError for one not there."""
    inventory = site.vcenter.inventory()
    marked = marked_vms(inventory, name)
    if name is not None and not marked:
        raise UsageError(f"there is no cluster {name!r}", hint="gpuops cluster show shows those that are there")
    ordered = sorted(marked, key=lambda each: (each.marker.cluster, each.marker.id, each.marker.rank))
    groups = groupby(ordered, key=lambda each: (each.marker.cluster, each.marker.id))
    return tuple(_shown(list(group), inventory, site) for _, group in groups)


def _shown(group: list[MarkedVm], inventory: Inventory, site: Site) -> ShownCluster:
    first = group[0].marker
    members = tuple(_member(each, inventory, site) for each in group)
    return ShownCluster(first.cluster, first.id, first.nodes, members, tuple(_problems(group, inventory, site)))


def _member(each: MarkedVm, inventory: Inventory, site: Site) -> ShownMember:
    host = inventory.host_of(each.vm)
    running = each.vm.power is PowerState.ON
    address = site.vcenter.wait_for_guest(each.vm.ref, 0.0, address=True).address if running else None
    return ShownMember(
        each.marker.rank,
        each.vm.ref,
        each.vm.name,
        host.name if host is not None else None,
        each.vm.power,
        len(each.vm.devices or ()),
        address,
        each.marker.rdma.value,
    )


def _problems(group: list[MarkedVm], inventory: Inventory, site: Site) -> Iterator[str]:
    first = group[0].marker
    with site.journal_to_read(inventory.vcenter) as journal:
        if open_runs(journal, first.cluster):
            yield "what made or removed it did not end: gpuops cluster create goes on, gpuops cluster delete removes it"
    missing = sorted(set(range(first.nodes)) - {each.marker.rank for each in group})
    if missing:
        yield f"rank {', '.join(map(str, missing))} is missing"
    for each in group:
        if each.vm.power is not PowerState.ON:
            yield f"{each.vm.name} does not run"
        there, made = len(each.vm.devices or ()), each.marker.devices
        if each.vm.devices is None:
            yield f"{each.vm.name}: its devices cannot be read"
        elif there < made:
            yield f"{each.vm.name} has {there} of the {made} devices that it was made with"
