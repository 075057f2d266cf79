"""What `gpuops login test` finds out of a vCenter."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class BulkReader(StrEnum):
    """Over which protocol inventories are read."""

    AUTO = "auto"
    """VI/JSON where it has been compared with SOAP and gave equal snapshots, SOAP elsewhere."""
    SOAP = "soap"
    JSON = "json"
    """VI/JSON alone: what fails there fails."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A value that the two readers do not give alike; `path` is where it stands in the snapshot."""

    path: str
    soap: str
    json: str


@dataclass(frozen=True, slots=True)
class LoginTest:
    """Who logged in, to what, and whether VI/JSON may be used there."""

    address: str
    user: str
    product: str
    """AboutInfo.fullName."""
    uuid: str
    api_version: str
    offers_vi_json: bool
    """Whether this version offers it; the fields below are about nothing where it does not."""
    hosts: int = 0
    vms: int = 0
    differences: tuple[Difference, ...] = ()
    failure: str = ""
    """Why nothing was read over VI/JSON."""

    @property
    def equal(self) -> bool:
        """Whether both readers gave equal snapshots."""
        return self.offers_vi_json and not self.differences and not self.failure
