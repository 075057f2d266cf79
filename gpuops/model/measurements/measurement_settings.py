"""What is measured of a vCenter, how long that is kept and where, and how its hosts are asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from msgspec import Meta

from gpuops.model.file_keys import Reads
from gpuops.model.measurements.measurement import HOST_COUNTERS, VM_COUNTERS


@dataclass(frozen=True, slots=True)
class Retention:
    """How long measurements are kept."""

    fine_days: int = 14
    """Steps of five minutes."""
    hourly_days: int = 400


@dataclass(frozen=True, slots=True)
class HostLogin:
    """How hosts are entered for their own nvidia-smi."""

    username: str = "root"
    known_hosts: str | None = None
    """The file of the hosts' SSH keys; None = ~/.ssh/known_hosts."""
    key: str | None = None
    """The file of the key; None = the agent's and those of ~/.ssh."""
    port: int = 22


def _check_counters(names: tuple[str, ...]) -> frozenset[str]:
    """Return the counters. Raises ValueError for one that gpuops does not measure."""
    known_names = tuple(dict.fromkeys((*VM_COUNTERS, *HOST_COUNTERS)))
    unknown = next((name for name in names if name not in known_names), None)
    if unknown is not None:
        raise ValueError(f"{unknown!r} is not a counter that gpuops measures: {', '.join(known_names)}")
    return frozenset(names)


@dataclass(frozen=True, slots=True)
class MeasurementSettings:
    """What is measured, how long it is kept and where, and whether hosts are asked themselves."""

    store_dir: str | None = None
    """The directory of `measurements.sqlite`; by default the state directory."""
    store_url: str | None = field(default=None, repr=False)
    """The PostgreSQL database that keeps them instead; by default that of the journal."""
    counters: (
        Annotated[frozenset[str], Reads(_check_counters, Annotated[tuple[str, ...], Meta(min_length=1)])] | None
    ) = None
    """Which performance counters are kept; by default all that are known here."""
    fine_days: Annotated[int, Meta(ge=1, le=366)] = Retention().fine_days
    hourly_days: Annotated[int, Meta(ge=1, le=3660)] = Retention().hourly_days
    host_shell: Literal["none", "ssh"] = "none"
    """Whether the hosts' own nvidia-smi is asked, and how."""
    ssh_user: Annotated[str, Meta(min_length=1)] = "root"
    ssh_known_hosts: str | None = None
    ssh_key: str | None = None
    ssh_port: Annotated[int, Meta(ge=1, le=65535)] = 22

    def __post_init__(self) -> None:
        if self.store_dir is not None and self.store_url is not None:
            raise ValueError("store_dir and store_url exclude each other: the store is one of them")

    @property
    def retention(self) -> Retention:
        return Retention(self.fine_days, self.hourly_days)

    @property
    def hosts(self) -> HostLogin | None:
        """Return how hosts are entered; None = they are not."""
        if self.host_shell == "none":
            return None
        return HostLogin(self.ssh_user, self.ssh_known_hosts, self.ssh_key, self.ssh_port)


UNSAID: Final = MeasurementSettings()
"""What holds where the configuration says nothing."""
