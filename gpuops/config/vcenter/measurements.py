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

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from gpuops.config.vcenter.journal_url import holds_password
from gpuops.model.measurements.measurement import HOST_COUNTERS, VM_COUNTERS, HostLogin, MeasurementSettings, Retention

FINE_DAYS_MOST: Final = 366
HOURLY_DAYS_MOST: Final = 3660
_KNOWN: Final = tuple(dict.fromkeys((*VM_COUNTERS, *HOST_COUNTERS)))


class MeasurementsEntry(BaseModel):
    """One `[targets.NAME.measurements]`."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    store_dir: Path | None = None
    """The directory of `measurements.sqlite`; by default the state directory."""
    store_url: str | None = None
    """The PostgreSQL database that keeps them instead; by default that of the journal."""
    counters: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Which performance counters are kept; by default all that are known here."""
    fine_days: int = Field(default=Retention().fine_days, ge=1, le=FINE_DAYS_MOST)
    hourly_days: int = Field(default=Retention().hourly_days, ge=1, le=HOURLY_DAYS_MOST)
    host_shell: Literal["none", "ssh"] = "none"
    """Whether the hosts' own nvidia-smi is asked, and how."""
    ssh_user: Annotated[str, Field(min_length=1)] = "root"
    ssh_known_hosts: Path | None = None
    ssh_key: Path | None = None
    ssh_port: int = Field(default=22, ge=1, le=65535)

    @field_validator("store_dir")
    @classmethod
    def _from_the_root(cls, folder: Path | None) -> Path | None:
        if folder is not None and not folder.is_absolute():
            raise ValueError("cron starts elsewhere: say the whole path, /srv/...")
        return folder

    @field_validator("store_url")
    @classmethod
    def _without_password(cls, url: str | None) -> str | None:
        if url is not None and holds_password(url):
            raise ValueError("no password belongs in this file: put it into ~/.pgpass")
        return url

    @field_validator("counters")
    @classmethod
    def _known_here(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        unknown = next((name for name in names or () if name not in _KNOWN), None)
        if unknown is not None:
            raise ValueError(f"{unknown!r} is none of the counters that are kept: {', '.join(_KNOWN)}")
        return names

    @model_validator(mode="after")
    def _one_store(self) -> MeasurementsEntry:
        if self.store_dir is not None and self.store_url is not None:
            raise ValueError("store_dir and store_url exclude each other: the store is one of them")
        return self

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
