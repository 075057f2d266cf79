"""What is measured of a target, where that lies and how its hosts are asked: its entry in the configuration file.

    [targets.prod.measurements]
    store_dir = "/srv/gpuops"               # or store_url = "postgresql://gpuops@db.example.com/gpuops"
    host_shell = "ssh"                      # the hosts' own nvidia-smi is asked, too
    ssh_known_hosts = "/etc/gpuops/known_hosts"
    fine_days = 35

Options of the command line win over it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta

from gpuops.config.decoding import Section
from gpuops.config.vcenter.journal_url import without_password
from gpuops.model.file_keys import Reads
from gpuops.model.measurements.measurement import HOST_COUNTERS, VM_COUNTERS, HostLogin, MeasurementSettings, Retention

FINE_DAYS_MOST: Final = 366
HOURLY_DAYS_MOST: Final = 3660
_KNOWN: Final = tuple(dict.fromkeys((*VM_COUNTERS, *HOST_COUNTERS)))


_Counters = Annotated[tuple[str, ...], Meta(min_length=1)]


def _from_the_root(folder: Path) -> Path:
    if not folder.is_absolute():
        raise ValueError("cron starts elsewhere: say the whole path, /srv/...")
    return folder


def _known_counters(names: tuple[str, ...]) -> tuple[str, ...]:
    unknown = next((name for name in names if name not in _KNOWN), None)
    if unknown is not None:
        raise ValueError(f"{unknown!r} is not one of the counters that are kept: {', '.join(_KNOWN)}")
    return names


class MeasurementsEntry(Section, omit_defaults=True):
    """One `[targets.NAME.measurements]`."""

    store_dir: Annotated[Path, Reads(_from_the_root, Path)] | None = None
    """The directory of `measurements.sqlite`; by default the state directory."""
    store_url: Annotated[str, Reads(without_password)] | None = None
    """The PostgreSQL database that keeps them instead; by default that of the journal."""
    counters: Annotated[tuple[str, ...], Reads(_known_counters, _Counters)] | None = None
    """Which performance counters are kept; by default all that are known here."""
    fine_days: Annotated[int, Meta(ge=1, le=FINE_DAYS_MOST)] = Retention().fine_days
    hourly_days: Annotated[int, Meta(ge=1, le=HOURLY_DAYS_MOST)] = Retention().hourly_days
    host_shell: Literal["none", "ssh"] = "none"
    """Whether the hosts' own nvidia-smi is asked, and how."""
    ssh_user: Annotated[str, Meta(min_length=1)] = "root"
    ssh_known_hosts: Path | None = None
    ssh_key: Path | None = None
    ssh_port: Annotated[int, Meta(ge=1, le=65535)] = 22

    def __post_init__(self) -> None:
        if self.store_dir is not None and self.store_url is not None:
            raise ValueError("store_dir and store_url exclude each other: the store is one of them")

    def settings(self) -> MeasurementSettings:
        """The same for a run."""
        login = None
        if self.host_shell == "ssh":
            login = HostLogin(self.ssh_user, _text(self.ssh_known_hosts), _text(self.ssh_key), self.ssh_port)
        return MeasurementSettings(
            _text(self.store_dir),
            self.store_url or "",
            frozenset(self.counters) if self.counters is not None else None,
            Retention(self.fine_days, self.hourly_days),
            login,
        )


def _text(path: Path | None) -> str | None:
    return str(path) if path is not None else None
