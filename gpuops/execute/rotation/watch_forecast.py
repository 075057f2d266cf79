"""Forecast the demand of a watch's pools from the store of measurements, read again every hour.

Each read also reads from vCenter which desktops are in a pool: one more bulk read an hour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from gpuops.advise.forecast import SLOT, Forecast, forecast
from gpuops.errors import StateDamaged
from gpuops.execute.rotation.night_extension import desktop_use
from gpuops.execute.site import Site
from gpuops.model.nights.rotation import Policy

EVERY_S: Final = 3600.0
"""How often the store is read anew. A forecast goes by earlier weeks, which an hour does not change."""


@dataclass(slots=True)
class PoolForecasts:
    """The forecasts of the pools of one policy whose `ready` follows one."""

    policy: Policy
    site: Site
    forecasts: Mapping[str, Forecast] = field(default_factory=dict)
    read_at: datetime | None = None
    """By vCenter's clock, which the store uses; None = not read yet."""
    read_s: float = 0.0

    def count_expected(self) -> dict[str, int]:
        """Return pool -> how many of its desktops must run now. A pool without measurements is missing."""
        pools = {pool.name: pool.ready_ahead for pool in self.policy.pools if pool.ready_ahead is not None}
        if not pools:
            return {}
        if self.read_at is None or self.site.passed_s() - self.read_s >= EVERY_S:
            self._read()
        assert self.read_at is not None, "it was read"
        now = self.read_at + timedelta(seconds=self.site.passed_s() - self.read_s)
        counts = {
            name: self.forecasts[name].up(now, now + ahead.ahead)
            for name, ahead in pools.items()
            if ahead is not None and name in self.forecasts
        }
        return {name: count for name, count in counts.items() if count is not None}

    def _read(self) -> None:
        """Read the store again. If it is damaged, log that; `at_least` of each pool then applies alone."""
        inventory = self.site.vcenter.inventory()
        inventory = self.site.vcenter.with_tags(inventory) if self.policy.needs_tags else inventory
        now = inventory.taken_at
        self.read_at, self.read_s = now, self.site.passed_s()
        try:
            histories = desktop_use(self.site, inventory, self.policy)
        except StateDamaged as damaged:
            self.site.say(f"{damaged.line}; no desktop comes back by a forecast, `at_least` holds")
            histories = {}
        self.forecasts = {
            pool.name: forecast(
                histories[pool.name],
                now,
                now + pool.ready_ahead.ahead + timedelta(seconds=EVERY_S) + SLOT,
                pool.ready_ahead.zone,
            )
            for pool in self.policy.pools
            if pool.ready_ahead is not None and pool.name in histories
        }
