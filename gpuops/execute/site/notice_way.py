"""What a site knows of the notices of its runs; `gpuops.extras.notify` sends them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gpuops import clock as time_here

if TYPE_CHECKING:
    from gpuops.config.vcenter.targets import NotifySettings


@dataclass(frozen=True, slots=True)
class NoticeWay:
    """The settings to send the notices of a target's runs."""

    settings: NotifySettings
    state_dir: Path
    environ: Mapping[str, str] = field(repr=False)
    clock: Callable[[], datetime] = time_here.wall_clock
    say: Callable[[str], None] = lambda line: None
    """Called with one line about notices that no receiver accepted."""
