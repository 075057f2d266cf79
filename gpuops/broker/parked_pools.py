"""Stands in for a broker where there is none: the policy's word that a pool is parked at night."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gpuops.model.broker import DesktopMachine, DesktopPool, DesktopPowerPolicy, DesktopSession, PoolKind
from gpuops.model.rotation import Pool


@dataclass(frozen=True, slots=True)
class ParkedPools:
    """The pools that a policy declares parked. Nobody is asked, so no VM is known to have no session.

    It implements `DesktopBroker`. Its gate is the policy's word: whoever is kept away is kept away by somebody else, so
    there is nothing to close and nothing to open.
    """

    declared: Iterable[Pool]

    def pools(self) -> tuple[DesktopPool, ...]:
        """Those that are declared parked; a policy says nothing of power policies but that they are off."""
        return tuple(
            DesktopPool(pool.name, pool.name, PoolKind.MANUAL, DesktopPowerPolicy.NONE)
            for pool in self.declared
            if pool.parked
        )

    def machines(self) -> tuple[DesktopMachine, ...]:
        """None: it knows VMs by the policy's rules alone."""
        return ()

    def sessions(self) -> tuple[DesktopSession, ...]:
        """None that it could know of; without machines this says of no VM that it has none."""
        return ()

    def enter_maintenance(self, machines: Collection[str]) -> Mapping[str, str]:
        """The pool is parked already."""
        return {}

    def exit_maintenance(self, machines: Collection[str]) -> Mapping[str, str]:
        """It stays parked: its owner opens it."""
        return {}
