"""The section of a policy that says what its nights do with GPUs which are lent over the network."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gpuops.config.pool_file import LeaseTime, lease_time
from gpuops.config.sections.section import Section, Text
from gpuops.model.lent_by_night import ByNight, LentByNight


class LendingSection(Section):
    """One pool of lent GPUs."""

    pool: Text
    by_night: Annotated[ByNight, Field(strict=False)]
    grace: LeaseTime = "15m"

    def rule(self) -> LentByNight:
        return LentByNight(self.pool, self.by_night, lease_time(self.grace))
