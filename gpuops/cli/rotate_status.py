"""`gpuops rotate status`: what nights took, and where it is now; once, or each time that something changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gpuops import clock
from gpuops.cli import output
from gpuops.cli.options import Common, PolicyFile, spread

if TYPE_CHECKING:
    from gpuops.plan.rotation.status import RotationStatus
    from gpuops.report.plan_json import Document

EVERY_S: Final = 5.0


@spread
def status(
    common: Common,
    policy: Annotated[Path | None, PolicyFile] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Look every 5 seconds, and show it anew when it changed; Ctrl-C ends it.")
    ] = False,
) -> None:
    """Show what the nights took, where each VM is now, and whether a run is under way or was cut off. Changes nothing.

    Without --policy it goes by the policy that the last night ran under; a machine that knows of none needs it where
    the policy names a marker of its own. A damaged journal is said, and vCenter's markers are shown: exit code 7.

    \b
    Example:
      gpuops rotate status --output json --vcenter prod
      gpuops rotate status --watch --vcenter prod
    """
    from gpuops.api import rotate_status
    from gpuops.cli.opening import open_site
    from gpuops.config.policy import load_policy

    wanted = load_policy(policy) if policy is not None else None
    with open_site(common) as site:
        if watch:
            _watch(lambda: rotate_status(site, wanted))
            return
        found = rotate_status(site, wanted)
    _show(found)
    if found.exit_code:
        raise typer.Exit(found.exit_code)


def _show(found: RotationStatus) -> None:
    from gpuops.report.rotation_status import status_document, status_text

    output.show(status_text(found), status_document(found))


def _watch(look: Callable[[], RotationStatus]) -> None:
    from rich.text import Text

    try:
        for found in changes(look, lambda: clock.pause(EVERY_S)):
            output.note(Text(f"{clock.wall_clock().astimezone():%Y-%m-%d %H:%M:%S}", "dim"))
            _show(found)
    except KeyboardInterrupt:
        return  # how a watch ends


def changes(look: Callable[[], RotationStatus], pause: Callable[[], None]) -> Iterator[RotationStatus]:
    """The first look, and each that shows something else than the one before; it goes on while vCenter is away."""
    from rich.text import Text

    from gpuops.errors import VcenterUnreachable

    shown: Document | None = None
    away = ""
    while True:
        try:
            found = look()
        except VcenterUnreachable as lost:
            if shown is None:
                raise  # nothing answered from the beginning: a wrong address rather than a restart
            if lost.message != away:
                output.note(Text(f"warning: {lost.message}", "yellow"))
            away = lost.message
        else:
            away = ""
            seen = _told(found)
            if seen != shown:
                shown = seen
                yield found
        pause()


def _told(found: RotationStatus) -> Document:
    """What is compared: all but that the lease was renewed."""
    from gpuops.report.rotation_status import status_document

    document = dict(status_document(found))
    if document["lease"] is not None:
        document["lease"] = {**document["lease"], "expires": None}
    return document
