"""Selects hosts by cluster, name and tags, for every command that works on hosts."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

from gpuops.errors import HostNotFound, UsageError
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.command_line import ClusterName, HostPattern
from gpuops.plan.core.rejection import Rejection


@dataclass(frozen=True, slots=True)
class Scope:
    """The criteria that a host must all meet; without criteria, every host is selected."""

    cluster: ClusterName = None
    """Name or ref of the cluster. Clusters of several datacentres may have the same name; all of them are selected."""
    host: HostPattern = None
    """Name of the host, its first DNS label, its ref, or a shell pattern for its name."""
    tag: tuple[str, ...] = ()
    """`category:tag` names; the host must have all of them."""

    def outside(self, host: Host, inventory: Inventory) -> Rejection | None:
        """Return why this host is not selected; None = it is."""
        if self.cluster is not None and self.cluster not in (host.cluster, cluster_name(host, inventory)):
            return Rejection(host.name, f"is not in cluster {self.cluster}")
        if self.host is not None and not _is_named(host, self.host):
            return Rejection(host.name, f"its name does not match {self.host}")
        if self.tag and host.tags is None:
            return Rejection(host.name, "its tags were not read, so --tag cannot be checked")
        missing = [tag for tag in self.tag if tag not in (host.tags or ())]
        return Rejection(host.name, f"does not have the tag {', '.join(missing)}") if missing else None

    def hosts(self, inventory: Inventory) -> tuple[Host, ...]:
        """Return the selected hosts with GPUs, sorted by name: equally good hosts are chosen in this order."""
        return tuple(host for host in gpu_hosts(inventory) if self.outside(host, inventory) is None)

    def device_hosts(self, inventory: Inventory) -> tuple[Host, ...]:
        """Return the selected hosts with GPUs or other passthrough devices, sorted by name."""
        return tuple(host for host in device_hosts(inventory) if self.outside(host, inventory) is None)

    def check(self, inventory: Inventory) -> None:
        """Check that the cluster and the host exist, with or without GPUs. Raises UsageError, HostNotFound."""
        clusters = {cluster.name for cluster in inventory.clusters.values()}
        if self.cluster is not None and self.cluster not in clusters | inventory.clusters.keys():
            near = get_close_matches(self.cluster, sorted(clusters), n=3)
            suggestion = f"; did you mean {', '.join(near)}?" if near else ""
            hint = "gpuops capacity shows the clusters"
            raise UsageError(f"no cluster {self.cluster!r} in this vCenter{suggestion}", hint=hint)
        if self.host is not None and not any(_is_named(host, self.host) for host in inventory.hosts.values()):
            raise HostNotFound(self.host, near=get_close_matches(self.host, [h.name for h in inventory.hosts.values()]))

    def nowhere(self, subject: str, inventory: Inventory) -> Rejection:
        """Return the refusal if no host is selected, with the clusters and tags that exist."""
        criteria = [f"in cluster {self.cluster}"] if self.cluster is not None else []
        criteria += [f"named {self.host}"] if self.host is not None else []
        criteria += [f"tagged {tag}" for tag in self.tag]
        if not criteria:
            return Rejection(subject, "no host in this vCenter has a GPU")
        hosts = gpu_hosts(inventory)
        if self.tag and any(host.tags is None for host in hosts):
            hint = "a saved inventory has no tags: run the command on a vCenter"
            return Rejection(subject, "the tags of the hosts were not read", hint=hint)
        clusters = {name for host in hosts if (name := cluster_name(host, inventory)) is not None}
        hint = f"clusters with GPUs: {', '.join(sorted(clusters)) or 'none'}; gpuops inventory --hosts shows the hosts"
        if self.tag:
            tags = sorted({tag for host in hosts for tag in host.tags or ()})
            hint = f"tags of hosts with GPUs: {', '.join(tags) or 'none'}; {hint}"
        return Rejection(subject, f"no host with a GPU is {' and '.join(criteria)}", hint=hint)


def gpu_hosts(inventory: Inventory) -> tuple[Host, ...]:
    """Return the hosts with GPUs, sorted by name."""
    hosts = (host for host in inventory.hosts.values() if host.gpus)
    return tuple(sorted(hosts, key=lambda host: (host.name, host.ref)))


def device_hosts(inventory: Inventory) -> tuple[Host, ...]:
    """Return the hosts with GPUs or other passthrough devices, sorted by name."""
    hosts = (host for host in inventory.hosts.values() if host.gpus or host.gives_others)
    return tuple(sorted(hosts, key=lambda host: (host.name, host.ref)))


def cluster_name(host: Host, inventory: Inventory) -> str | None:
    """Return the name of the host's cluster; None = it is in none, or it cannot be read."""
    cluster = inventory.clusters.get(host.cluster) if host.cluster else None
    return cluster.name if cluster else None


def _is_named(host: Host, text: str) -> bool:
    return text in (host.ref, host.name, host.name.split(".")[0]) or fnmatchcase(host.name, text)
