"""Settings of a host that no bulk read shows: what is installed, and what its NVIDIA kernel module is told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SoftwarePackage:
    """An installed software package (VIB), as HostImageConfigManager.fetchSoftwarePackages names it."""

    name: str
    version: str
    vendor: str


@dataclass(frozen=True, slots=True)
class HostSettings:
    """What one host says of itself when asked. None = it does not tell, or this login may not ask."""

    module_options: str | None = None
    """Options of the `nvidia` kernel module for the next boot."""
    loaded_options: str | None = None
    """Those that the loaded module was given at the last boot."""
    has_module: bool | None = None
    """Whether the `nvidia` kernel module is installed."""
    packages: tuple[SoftwarePackage, ...] | None = None
    unread: tuple[str, ...] = ()
    """Why something above is not known, a reason each."""

    @property
    def reboot_pending(self) -> bool | None:
        """Whether the next boot brings other module options into force; None = unknown."""
        if self.module_options is None or self.loaded_options is None:
            return None
        return self.module_options != self.loaded_options
