"""Custody: which host profiles are attached to hosts, and which clusters keep the configuration of theirs.

Source: vSphere API reference, HostProfileManager.FindAssociatedProfile (of a host or a cluster; System.View) and
ComputeResource.configManagerEnabled (8.0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gpuops.errors import GpuopsError, NotConnected, ProtocolError
from gpuops.model.host_settings import Custody
from gpuops.plan.core.versions import version_numbers
from gpuops.vsphere import managed

if TYPE_CHECKING:
    from gpuops.model.host import Host
    from gpuops.vsphere.session import Session

Answer = TypeVar("Answer")

SINCE: Final = version_numbers("8.0.0.0")
"""Before it no cluster could keep the configuration of its hosts."""


class Custodians:
    """Whom the hosts of one vCenter are in the custody of; each cluster is asked once."""

    def __init__(self, session: Session, hosts: Iterable[Host]) -> None:
        """Asks the clusters of these hosts. Raises NotConnected in its kinds."""
        self._session = session
        self._manager = self._answer(lambda: session.content.hostProfileManager)
        self._clusters: Mapping[str, Custody] = {
            ref: self._of(managed.managed(session, "ClusterComputeResource", ref))
            for ref in sorted({host.cluster for host in hosts if host.cluster})
        }

    def of(self, host: Host) -> Custody:
        """The profiles of the host and of its cluster. Raises NotConnected in its kinds."""
        target = managed.host(self._session, host.ref)
        mine = self._profiles(target)
        if host.cluster is None:
            alone = self._answer(lambda: target.parent)
            return Custody(mine, None if alone is None else self._configured(alone))
        above = self._clusters[host.cluster]
        known = mine is not None and above.profiles is not None
        both = tuple(dict.fromkeys((*(mine or ()), *(above.profiles or ()))))
        return Custody(both if known or both else None, above.configured)

    def _of(self, compute: Any) -> Custody:
        return Custody(self._profiles(compute), self._configured(compute))

    def _configured(self, compute: Any) -> bool | None:
        if version_numbers(self._session.api_version) < SINCE:
            return False
        return self._answer(lambda: compute.configManagerEnabled)

    def _profiles(self, entity: Any) -> tuple[str, ...] | None:
        manager = self._manager
        if manager is None:
            return None
        found = self._answer(lambda: manager.FindAssociatedProfile(entity))
        return None if found is None else tuple(self._names(found))

    def _names(self, profiles: Iterable[Any]) -> Iterator[str]:
        """A profile whose name this login may not read counts too, by its id."""
        for profile in profiles:
            yield self._answer(partial(getattr, profile, "name")) or str(profile._moId)

    def _answer(self, call: Callable[[], Answer]) -> Answer | None:
        try:
            return self._session.read(call)
        except ProtocolError:  # it does not know the call: nobody can say
            return None
        except NotConnected:
            raise
        except GpuopsError:
            return None
