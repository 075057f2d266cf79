"""`gpuops rotate`: desktops by day, ML by night."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuops.cli import output
from gpuops.cli.options import Acting, Common, PolicyFile, Saved, spread
from gpuops.cli.repeated import Once
from gpuops.cli.rotate_abandon import abandon
from gpuops.cli.rotate_audit import audit
from gpuops.cli.rotate_init import init
from gpuops.cli.rotate_restore import restore
from gpuops.cli.rotate_skip_next import skip_next
from gpuops.cli.rotate_status import status
from gpuops.cli.rotate_unlock import unlock

rotate = typer.Typer(
    name="rotate",
    cls=Once,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Suspend idle desktops for ML VMs at night, and bring every desktop back in the morning.",
)
rotate.add_typer(audit)

rotate.command()(abandon)
rotate.command()(init)
rotate.command()(restore)
rotate.command()(skip_next)
rotate.command()(status)
rotate.command()(unlock)


@rotate.command()
@spread
def night(common: Common, acting: Acting, policy: Annotated[Path, PolicyFile], saved: Saved = None) -> None:
    """Suspend the idle desktops that the policy selects, and start the ML VMs that fit.

    \b
    Example:
      gpuops rotate night --policy templates/policy.yaml --dry-run --vcenter sim:vdi
    """
    from gpuops.api import rotate_night
    from gpuops.cli.running import carry_out
    from gpuops.config.policy import load_policy

    wanted = load_policy(policy)
    carry_out(
        lambda site, apply, consent: rotate_night(wanted, site, apply=apply, consent=consent),
        "rotate-night",
        common,
        acting,
        saved=saved,
        guarded=True,
    )


@rotate.command()
@spread
def plan(
    common: Common,
    policy: Annotated[Path | None, PolicyFile] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="MOMENT",
            help="When the night begins, such as '2026-11-23 22:00' in the policy's zone; default: now.",
        ),
    ] = None,
    saved: Saved = None,
) -> None:
    """Show the night that would begin at a moment: who gives way, where each ML VM goes, who stays, and the way back.

    It is planned on what vCenter shows now. Every VM of the pools and of the queue has its reason. Changes nothing.
    Without --policy it goes by the policy that the last night ran under.

    \b
    Example:
      gpuops rotate plan --at 2026-11-23T22:00Z --policy templates/policy.yaml --vcenter sim:vdi
    """
    from gpuops.api import rotate_plan
    from gpuops.cli.opening import open_site
    from gpuops.config.date_text import parse_moment
    from gpuops.config.policy import load_policy
    from gpuops.report.rotation_plan import foresight_document, foresight_text

    wanted = load_policy(policy) if policy is not None else None
    moment = parse_moment("--at", at) if at is not None else None
    with open_site(common, saved=saved) as site:
        found = rotate_plan(wanted, site, moment)
    output.show(foresight_text(found), foresight_document(found))
    if found.exit_code:
        raise typer.Exit(found.exit_code)


@rotate.command()
@spread
def day(common: Common, acting: Acting, policy: Annotated[Path | None, PolicyFile] = None) -> None:
    """Stop the ML VMs that the night started, and resume every desktop that it suspended. Safe at any time.

    What the journal knows is returned under the policy of its night, wherever it is by now and whatever it is called.
    With --policy, markers that the journal knows nothing of are believed where that policy says, otherwise where the
    last night's does.

    \b
    Example:
      gpuops rotate day --yes --vcenter prod
    """
    from gpuops.api import rotate_day
    from gpuops.cli.running import carry_out, patience_under
    from gpuops.config.policy import said_policy

    wanted = said_policy(policy)
    carry_out(
        lambda site, apply, consent: rotate_day(wanted, site, apply=apply, consent=consent),
        "rotate-day",
        common,
        acting,
        guarded=True,
        patience=patience_under(wanted),
    )


@rotate.command()
@spread
def resume(common: Common, acting: Acting) -> None:
    """Finish a night or a morning that was cut off, under the policy it began with.

    A night whose window has closed is not gone on with: exit code 3, and `gpuops rotate day` brings back what it took.

    \b
    Example:
      gpuops rotate resume --dry-run --vcenter prod
      gpuops rotate resume --yes --vcenter prod
    """
    from gpuops.api import rotate_resume
    from gpuops.cli.running import carry_out

    carry_out(
        lambda site, apply, consent: rotate_resume(site, apply=apply, consent=consent),
        "rotate-resume",
        common,
        acting,
        guarded=True,
    )
