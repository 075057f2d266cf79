"""A night that is skipped, for people and for programs."""

from __future__ import annotations

from rich.text import Text

from gpuops.plan.rotation.skip import Skip
from gpuops.report.plan_json import SCHEMA_VERSION, Document
from gpuops.report.visible import visible


def skip_text(skip: Skip) -> Text:
    """Which night it is, and whether it is taken."""
    opens, closes = (moment.astimezone(skip.night.zone) for moment in (skip.night.opens, skip.night.closes))
    night = f"night {skip.night.id} of policy {visible(skip.policy)}, from {opens:%Y-%m-%d %H:%M} to {closes:%H:%M}"
    if not skip.skipped:
        return Text(f"{night}, is not skipped{' any more' if skip.changed else ''}")
    already = "" if skip.changed else "already "
    return Text(f"{night}, is {already}skipped; gpuops rotate skip-next --undo takes that back")


def skip_document(skip: Skip) -> Document:
    """The same for programs."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "rotate-skip-next",
        "policy": skip.policy,
        "night": skip.night.id,
        "opens": skip.night.opens.isoformat(),
        "closes": skip.night.closes.isoformat(),
        "skipped": skip.skipped,
        "changed": skip.changed,
    }
