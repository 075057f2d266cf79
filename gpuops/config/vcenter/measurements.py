"""What is measured of a target, where that lies and how its hosts are asked: its entry in the configuration file.

    [targets.prod.measurements]
    store_dir = "/srv/gpuops"               # or store_url = "postgresql://gpuops@db.example.com/gpuops"
    host_shell = "ssh"                      # the hosts' own nvidia-smi is asked, too
    ssh_known_hosts = "/etc/gpuops/known_hosts"
    fine_days = 35

Options of the command line win over it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from gpuops.config.vcenter.journal_url import without_password
from gpuops.model.file_keys import Reads
from gpuops.model.measurements.measurement_settings import MeasurementSettings


def _from_the_root(folder: Path) -> str:
    if not folder.is_absolute():
        raise ValueError("cron starts elsewhere: say the whole path, /srv/...")
    return str(folder)


@dataclass(frozen=True, slots=True)
class MeasurementsEntry(MeasurementSettings):
    """One `[targets.NAME.measurements]`."""

    store_dir: Annotated[str, Reads(_from_the_root, Path)] | None = None
    """The directory of `measurements.sqlite`; by default the state directory."""
    store_url: Annotated[str, Reads(without_password)] | None = field(default=None, repr=False)
    """The PostgreSQL database that keeps them instead; by default that of the journal."""
    ssh_known_hosts: Annotated[str, Reads(str, Path)] | None = None
    ssh_key: Annotated[str, Reads(str, Path)] | None = None
