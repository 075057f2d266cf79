"""`gpuops rotate audit`: the journal of rotations and changes, before an auditor."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuops.cli import output
from gpuops.cli.options import Common, spread
from gpuops.cli.repeated import Once

audit = typer.Typer(
    name="audit",
    cls=Once,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Check that nobody changed the journal of rotations and changes.",
)


@audit.callback()
def _group() -> None:
    """Check that nobody changed the journal of rotations and changes."""


@audit.command()
@spread
def verify(
    common: Common,
    head: Annotated[
        str, typer.Option(metavar="SEQ:CHECKSUM", help="A head that an earlier audit printed: it must still be there.")
    ] = "",
) -> None:
    """Check every record of the journal against the one before it. Asks no vCenter, and changes nothing.

    Exit code 7 names the first record that was changed, dropped, moved or added. A journal whose end was cut off can
    be found out by a head that was noted elsewhere.

    \b
    Example:
      gpuops rotate audit verify
      gpuops rotate audit verify --output json
    """
    from gpuops.api import rotate_audit_verify
    from gpuops.cli.opening import journal_of
    from gpuops.report.rotation_status import audit_document, audit_text

    state_dir, url = journal_of(common)
    found = rotate_audit_verify(state_dir, url, head)
    output.show(audit_text(found), audit_document(found))
    if not found.whole:
        raise typer.Exit(7)
