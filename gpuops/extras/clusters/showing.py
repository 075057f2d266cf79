"""Shows clusters: their VMs by the markers, and the differences from the cluster as it was made."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from gpuops.errors import UsageError
from gpuops.execute.site import Site
from gpuops.extras.clusters.members import MarkedVm, marked_vms
from gpuops.extras.clusters.run import open_runs
from gpuops.extras.clusters.view import ShownTrainingClusterRecord, ShownTrainingVmRecord
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.report.document import NamedRecord


def read_clusters(name: str | None, site: Site) -> list[ShownTrainingClusterRecord]:
    """Return the clusters of this vCenter, or the one of this name. Raises UsageError if it does not exist."""
    inventory = site.vcenter.inventory()
    marked = marked_vms(inventory, name)
    if name is not None and not marked:
        raise UsageError(
            f"there is no cluster {name!r}", hint="gpuops cluster show lists the clusters that gpuops made"
        )
    ordered = sorted(marked, key=lambda member: (member.marker.cluster, member.marker.id, member.marker.rank))
    groups = groupby(ordered, key=lambda member: (member.marker.cluster, member.marker.id))
    return [_show_group(list(group), inventory, site) for _, group in groups]


def _show_group(group: list[MarkedVm], inventory: Inventory, site: Site) -> ShownTrainingClusterRecord:
    first = group[0].marker
    members = [_member(member, inventory, site) for member in group]
    problems = list(_problems(group, inventory, site))
    return ShownTrainingClusterRecord(first.cluster, first.id, first.nodes, not problems, problems, members)


def _member(member: MarkedVm, inventory: Inventory, site: Site) -> ShownTrainingVmRecord:
    """Return the row of one VM; its address is known only if VMware Tools report one now."""
    host = inventory.host_of(member.vm)
    running = member.vm.power is PowerState.ON
    address = site.vcenter.wait_for_guest(member.vm.ref, 0.0, address=True).address if running else None
    return ShownTrainingVmRecord(
        member.marker.rank,
        NamedRecord(member.vm.ref, member.vm.name),
        host.name if host is not None else None,
        member.vm.power,
        len(member.vm.devices or ()),
        address,
        member.marker.rdma,
    )


def _problems(group: list[MarkedVm], inventory: Inventory, site: Site) -> Iterator[str]:
    """Yield the differences from the cluster as it was made: interrupted calls, missing VMs, VMs that do not run."""
    first = group[0].marker
    with site.journal_to_read(inventory.vcenter) as journal:
        if open_runs(journal, first.cluster):
            yield "it was not completely made or removed: run gpuops cluster create or delete again to continue"
    missing = sorted(set(range(first.nodes)) - {member.marker.rank for member in group})
    if missing:
        yield f"rank {', '.join(map(str, missing))} is missing"
    for member in group:
        if member.vm.power is not PowerState.ON:
            yield f"{member.vm.name} does not run"
        present_devices, expected_devices = len(member.vm.devices or ()), member.marker.devices
        if member.vm.devices is None:
            yield f"{member.vm.name}: its devices cannot be read"
        elif present_devices < expected_devices:
            yield f"{member.vm.name} has {present_devices} of the {expected_devices} devices that it was made with"
