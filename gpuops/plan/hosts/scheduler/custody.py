"""Who may set the module options of hosts back, to be said before they are changed.

Sources: VMware vSphere docs, Host Profiles (kernel module settings are part of a profile; remediation applies it, and a
stateless host takes it at every boot) and vSphere Configuration Profiles (remediation makes hosts like the cluster's
configuration).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import Custody, HostSettings
from gpuops.model.vcenter.inventory import Inventory

SHOWN: Final = 4
"""So many hosts are named; of a hundred the rest are counted."""


def setting_back(hosts: Iterable[Host], inventory: Inventory) -> tuple[str, ...]:
    """A line for each profile and cluster that may set module options of these hosts back, and one where nobody knows.

    A rolling change looks at each host after its reboot, and stops at one that was set back.
    """
    profiles: defaultdict[str, list[str]] = defaultdict(list)
    clusters: defaultdict[str, list[str]] = defaultdict(list)
    unknown: list[str] = []
    for host in hosts:
        found = custody_of(host)
        for name in found.profiles or ():
            profiles[name].append(host.name)
        if found.configured:
            cluster = inventory.clusters.get(host.cluster or "")
            clusters[cluster.name if cluster is not None else host.name].append(host.name)
        if found.profiles is None or found.configured is None:
            unknown.append(host.name)
    return tuple(_lines(profiles, clusters, unknown))


def custody_of(host: Host) -> Custody:
    """What is known of it; nothing where the host was not asked."""
    return (host.settings or HostSettings()).custody


def _lines(profiles: dict[str, list[str]], clusters: dict[str, list[str]], unknown: list[str]) -> Iterator[str]:
    for name, hosts in profiles.items():
        yield (
            f"host profile {name} is attached to {_named(hosts)}: remediation, and the boot of a stateless host, set "
            "module options back that are not in it; change the profile too"
        )
    for name, hosts in clusters.items():
        yield (
            f"cluster {name} keeps the configuration of its hosts ({_named(hosts)}): its next remediation sets module "
            "options back that are not in it; change the cluster's configuration too"
        )
    if unknown:
        yield (
            f"whether a host profile or its cluster's configuration sets module options of {_named(unknown)} back "
            "cannot be read"
        )


def _named(hosts: list[str]) -> str:
    more = f" and {len(hosts) - SHOWN} more" if len(hosts) > SHOWN else ""
    return f"{', '.join(hosts[:SHOWN])}{more}"
