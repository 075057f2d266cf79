"""By what of a VM its owner is told, as an option says it."""

from __future__ import annotations

from gpuops.advise.showback import OwnerKey
from gpuops.errors import UsageError


def parse_owner_key(option: str, text: str) -> OwnerKey:
    """`folder`, `tag:CATEGORY` or `attribute:NAME`. Raises UsageError."""
    kind, colon, name = text.partition(":")
    if (text == "folder") or (kind in ("tag", "attribute") and colon and name.strip()):
        return OwnerKey(kind, name.strip())
    raise UsageError(
        f"{option}: {text!r} says no owner of a VM",
        hint="write folder, tag:CATEGORY or attribute:NAME, such as tag:team",
    )
