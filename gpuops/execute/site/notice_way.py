"""What a site knows of the notices of its runs; `gpuops.notify` sends them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gpuops import clock as time_here

if TYPE_CHECKING:
    from gpuops.config.vcenter.notices import NotifySettings


def _unheard(line: str) -> None:
    """What is said to a caller that does not listen."""


@dataclass(frozen=True, slots=True)
class NoticeWay:
    """What is needed to send the notices of a target's runs."""

    settings: NotifySettings
    state_dir: Path
    environ: Mapping[str, str] = field(repr=False)
    clock: Callable[[], datetime] = time_here.wall_clock
    say: Callable[[str], None] = _unheard
    """Told in one line of notices that nobody accepted."""
