"""Which vCenter a command speaks to and the way there, as `sources` finds it; and whether its certificate proves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuops.config.vcenter.address import Address
from gpuops.errors import NotTrusted, Refused
from gpuops.model.measurements.measurement_settings import UNSAID, MeasurementSettings
from gpuops.model.vcenter.bulk_reader import BulkReader
from gpuops.model.vcenter.target import Secret

if TYPE_CHECKING:
    from gpuops.config.vcenter.broker import BrokerDestination
    from gpuops.config.vcenter.notices import NotifySettings
    from gpuops.config.vcenter.targets import GuestEntry


SIMULATED: Final = "sim:"
SERVED: Final = "sim@"


@dataclass(frozen=True, slots=True)
class Simulated:
    """A private simulated vCenter, asked for by name: `sim:SCENARIO`."""

    scenario: str
    clock: str = "virtual"
    reader: BulkReader = BulkReader.AUTO
    notify: NotifySettings | None = None
    """As of a destination, where it is a target of the configuration file."""
    idle_command: tuple[str, ...] | None = None
    """As of a destination."""
    guest: GuestEntry | None = None
    """As of a destination."""
    measurements: MeasurementSettings = UNSAID
    """As of a destination."""
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)
    """As of a destination."""

    @property
    def label(self) -> str:
        return SIMULATED + self.scenario


@dataclass(frozen=True, slots=True)
class Destination:
    """A vCenter and the way to it; only the password may still have to be found."""

    label: str
    """As the user names it; what caches and messages call it."""
    address: Address
    username: str | None
    password: Secret | None = None
    password_file: Path | None = None
    """The file with the password, in place of `password`."""
    verify: bool = True
    ca_files: tuple[Path, ...] = ()
    thumbprint: str | None = None
    """SHA-256 of its certificate, 64 hexadecimal digits in lower case."""
    proxy: str | None = None
    name: str | None = None
    """The target's name in the configuration file."""
    credential: str | None = None
    password_of_other: str | None = None
    """User name of the target, whose password the target names while another user logs in; None = no such password."""
    keyring: bool = False
    journal_url: str | None = field(default=None, repr=False)
    """The PostgreSQL database that keeps the journal; None = a file in the state directory."""
    reader: BulkReader = BulkReader.AUTO
    """Over which protocol inventories are read."""
    insecure_by_target: bool = False
    """The target's own entry says `verify = false`: somebody decided it once, for unattended runs as well."""
    notify: NotifySettings | None = None
    """Where notices of its runs are sent; None = nowhere."""
    idle_command: tuple[str, ...] | None = None
    """The command that reports which desktops are used; None = no command."""
    broker: BrokerDestination | None = None
    """The connection broker that assigns its desktops; None = no broker."""
    guest: GuestEntry | None = None
    """The login to guests of its VMs that the target names; None = it names none."""
    measurements: MeasurementSettings = UNSAID
    """What is measured of it, and where that lies."""
    policies: tuple[Path, ...] = ()
    """The files of its policies."""
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)
    """The option, variable or key (`targets.prod.proxy`) by which each setting of a `Layer` is set."""


def doubt(where: Destination | Simulated, *, guarded: bool, decided: bool = False) -> str | None:
    """Return a warning that the certificate is not verified; None if it is.

    Raises NotTrusted if the password would be sent unencrypted. `guarded`: the run changes many desktops, so it raises
    Refused, unless the target has `verify = false` or `decided` is set: an admin at a terminal sees the warning, or the
    caller chose not to verify.
    """
    if isinstance(where, Simulated) or (where.verify and _protected(where)):
        return None
    if where.verify:
        raise NotTrusted(
            f"{where.address} is not encrypted: the password would be readable on the way",
            hint="use https://; --insecure sends the password all the same",
        )
    if guarded and not decided and not where.insecure_by_target:
        raise Refused(
            f"{where.origins['verify']} is refused for an unattended rotation: no admin would see the warning",
            hint="trust the vCenter with --ca-file, or put `verify = false` in its [targets.NAME]",
        )
    return f"the certificate of {where.address} is not verified ({where.origins['verify']})"


def _protected(where: Destination) -> bool:
    return where.address.tls or where.address.is_this_machine
