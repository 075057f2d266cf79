"""Reports overdue vCenters of the common journal, which no runner seems to return: in the log, and by notices.

It needs no target: it also reports a vCenter that was removed from every configuration file, or whose runners have
died. Only the first of the living runners reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gpuops import clock
from gpuops.config.vcenter.notices import NotifySettings
from gpuops.config.vcenter.targets import Configuration
from gpuops.errors import GpuopsError, StateDamaged
from gpuops.execute.past.every_vcenter import overdue_vcenters
from gpuops.execute.site.notice_way import NoticeWay
from gpuops.extras.notify.watch import tell_overdue


@dataclass(slots=True)
class OverdueAlarm:
    """What a look needs, and the lines of the last one."""

    state_dir: Path
    url: str
    """Of the journal, as SQLAlchemy and libpq read it."""
    configured: Callable[[], Configuration]
    """Returns the current configuration: each of its receivers gets the notices."""
    environ: Mapping[str, str]
    say: Callable[[str], None]
    clock: Callable[[], datetime] = clock.wall_clock
    said: tuple[str, ...] = ()
    """The lines of the last look."""

    def look(self) -> None:
        """Log lines that are new since the last look, and send today's notices once. It waits for the database."""
        lines: tuple[str, ...]
        unknown = list[StateDamaged]()
        try:
            overdue = overdue_vcenters(self.state_dir, self.url, self.clock, damaged=unknown.append)
        except GpuopsError as error:
            lines = (f"whether all vCenters are returned is not known: {error.line}",)
        else:
            lines = tuple(f"overdue: {vcenter}; next: {vcenter.next_move}" for vcenter in overdue)
            lines += tuple(f"whether it is returned is not known: {vcenter.line}" for vcenter in unknown)
            receivers = tuple(dict.fromkeys(e for t in self.configured().targets.values() for e in t.notify))
            for vcenter in overdue if receivers else ():
                settings = NotifySettings(vcenter.vcenter, receivers)
                tell_overdue(NoticeWay(settings, self.state_dir, self.environ, self.clock, self.say), vcenter)
        for line in lines:
            if line not in self.said:
                self.say(line)
        self.said = lines
