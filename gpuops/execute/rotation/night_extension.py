"""What optional capabilities add to nights. `gpuops.extensions` names those that are installed."""

from __future__ import annotations

from collections.abc import Mapping

from gpuops.advise.forecast import UseHistory
from gpuops.execute.site import Site
from gpuops.extensions import night_extensions
from gpuops.model.nights.history import PastNight
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.inventory import Inventory


class NightExtension:
    """One capability. Each method does nothing unless the capability overrides it."""

    def add_to_queue(self, policy: Policy, site: Site) -> Policy:
        """Return the policy with what the capability wants to run tonight in its queue. Raises StateDamaged."""
        return policy

    def before_return(self, site: Site) -> None:
        """Prepare the return of desktops, within bounded time: the return waits for this. Raises nothing."""

    def by_owners(self, nights: tuple[PastNight, ...], site: Site) -> tuple[PastNight, ...]:
        """Return these nights with the hours of each owner inside their ML VMs. Raises StateDamaged."""
        return nights

    def desktop_use(self, site: Site, inventory: Inventory, policy: Policy) -> Mapping[str, UseHistory]:
        """Return by pool how many desktops were in use until now; empty if not measured. Raises StateDamaged."""
        return {}


def add_to_queue(policy: Policy, site: Site) -> Policy:
    """Return the policy with what all capabilities want to run tonight in its queue."""
    for extension in night_extensions():
        policy = extension.add_to_queue(policy, site)
    return policy


def before_return(site: Site) -> None:
    """Let each capability prepare the return of desktops."""
    for extension in night_extensions():
        extension.before_return(site)


def by_owners(nights: tuple[PastNight, ...], site: Site) -> tuple[PastNight, ...]:
    """Return these nights with the hours of owners that capabilities know."""
    for extension in night_extensions():
        nights = extension.by_owners(nights, site)
    return nights


def desktop_use(site: Site, inventory: Inventory, policy: Policy) -> Mapping[str, UseHistory]:
    """Return by pool how many desktops were in use until now; empty if no capability measured it."""
    histories: dict[str, UseHistory] = {}
    for extension in night_extensions():
        histories |= extension.desktop_use(site, inventory, policy)
    return histories
