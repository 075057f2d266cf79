"""Whether the other end of a connection is proved: said before a login, by every entrance, in the same words."""

from __future__ import annotations

from gpuops.config.sources import Destination, Simulated
from gpuops.errors import NotTrusted, Refused


def doubt(where: Destination | Simulated, *, guarded: bool, decided: bool = False) -> str | None:
    """What to warn of, None = the certificate is verified. Raises NotTrusted for a password sent in the clear.

    `guarded` is a run that changes many desktops and has nobody to see a warning: refused (Refused), unless somebody
    `decided` it where the run is written down, as the target's own `verify = false` does.
    """
    if isinstance(where, Simulated) or (where.verify and _protected(where)):
        return None
    if where.verify:
        raise NotTrusted(
            f"{where.address} is not encrypted: the password would be readable on the way",
            hint="use https://, or --insecure if that is meant",
        )
    if guarded and not decided and not where.insecure_by_target:
        raise Refused(
            f"{where.verify_origin} is refused for an unattended rotation: nobody would see the warning",
            hint="trust the vCenter with --ca-file, or put `verify = false` in its [targets.NAME]",
        )
    return f"the certificate of {where.address} is not verified ({where.verify_origin})"


def _protected(where: Destination) -> bool:
    return where.address.tls or where.address.host in ("localhost", "::1") or where.address.host.startswith("127.")
