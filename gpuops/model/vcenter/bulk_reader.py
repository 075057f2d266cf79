"""Over which protocol inventories are read. A module of its own: `gpuops --help` needs it, and nothing of logins."""

from __future__ import annotations

from enum import StrEnum


class BulkReader(StrEnum):
    """Over which protocol inventories are read."""

    AUTO = "auto"
    """VI/JSON where it has been compared with SOAP and gave equal snapshots, SOAP elsewhere."""
    SOAP = "soap"
    JSON = "json"
    """VI/JSON alone: what fails there fails."""
