"""`gpuops rotate`: idle desktops are suspended for ML VMs at night, and every desktop is back in the morning."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gpuops.cli.nights.rotate_mark import mark
from gpuops.cli.nights.rotate_repair import adopt, clear_marker
from gpuops.cli.nights.rotate_state import abandon, audit, overdue, status, unlock
from gpuops.cli.nights.rotate_timers import timers
from gpuops.cli.nights.rotate_watch import watch
from gpuops.console import output
from gpuops.console.commands import UNFINISHED, VerbTable
from gpuops.console.options import ByTimer, CommonOptions, PolicyFile, RunOptions, Saved
from gpuops.console.spread import reads_sites, spread
from gpuops.errors import UsageError

rotate = VerbTable("rotate", "Suspend idle desktops for ML VMs at night, and bring every desktop back in the morning.")


def _tell_begun() -> None:
    """Tell the unit of systemd that runs it; first of all, for a unit whose process ends without it has failed."""
    from gpuops.execute.state.service_manager import BEGUN, tell_systemd

    tell_systemd(BEGUN)


@spread
def night(
    common: CommonOptions,
    run_options: RunOptions,
    policy: Annotated[Path, PolicyFile],
    by_timer: ByTimer = False,
    saved: Saved = None,
    fleet: Annotated[
        bool, typer.Option("--fleet", help="Ask the runners for it (gpuops help sites); it is not waited for.")
    ] = False,
) -> None:
    """Suspend the idle desktops that the policy selects, and start the ML VMs that fit.

    Without a terminal, by cron or systemd, a policy without `windows` is refused unless it says `windows: any`.
    Outside a window of the policy it is refused (exit code 3), as the example is by day; with --by-timer there is then
    nothing to do (exit code 0).

    \b
    Example:
      gpuops rotate night --policy templates/policy.yaml --dry-run --vcenter sim:vdi
    """
    if fleet:
        from gpuops.extensions import load

        if run_options.dry_run or saved is not None:
            raise UsageError(
                "--fleet asks runners to play a night: it has no --dry-run and no --inventory",
                hint="gpuops rotate night --dry-run shows it, without --fleet",
            )
        load("fleet.cli.ask_fleet")(common, policy, yes=run_options.yes)
        return
    from gpuops.api import rotate_night
    from gpuops.console.running import carry_out, policy_of_run, somebody_is_asked

    _tell_begun()
    rules = policy_of_run(policy, "rotate night", common, looks_only=run_options.dry_run or saved is not None)
    carry_out(
        lambda site, apply, consent: rotate_night(
            rules,
            site,
            apply=apply,
            consent=consent,
            unattended=by_timer or not sys.stdin.isatty(),
            by_timer=by_timer,
            asks=somebody_is_asked(run_options),
        ),
        "rotate-night",
        common,
        run_options,
        saved=saved,
        guarded=True,
    )


@spread
@reads_sites
def plan(
    common: CommonOptions,
    policy: Annotated[Path | None, PolicyFile] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="MOMENT",
            help="When it begins, such as '2026-11-23 22:00' or 22:00 in the policy's zone; "
            "default: now, or the next night.",
        ),
    ] = None,
    every_vm: Annotated[
        bool, typer.Option("--all", help="List every VM that stays, and the way back of every desktop.")
    ] = False,
    saved: Saved = None,
) -> None:
    """Show the night that would begin at a moment: desktops to suspend, a host for each ML VM, and the way back.

    It is planned on what vCenter shows now. Every VM of the pools and of the queue has its reason. Changes nothing.
    Without --policy it goes by the policy that the last night ran under.

    \b
    Examples:
      gpuops rotate plan --policy templates/policy.yaml --vcenter sim:vdi
      gpuops rotate plan --at 22:00 --policy templates/policy.yaml --vcenter sim:vdi
      gpuops rotate plan --at 2026-11-23T22:00Z --policy templates/policy.yaml --vcenter sim:vdi
    """
    from gpuops.api import rotate_plan
    from gpuops.config.date_text import parse_moment_or_clock
    from gpuops.config.policy import load_policy
    from gpuops.console.opening import open_site
    from gpuops.report.nights.rotation_plan import preview_document, preview_text

    rules = load_policy(policy) if policy is not None else None
    moment = parse_moment_or_clock("--at", at) if at is not None else None
    with open_site(common, saved=saved) as site:
        preview = rotate_plan(rules, site, moment, policy_file=policy)
    output.show(preview_text(preview, every_vm=every_vm), preview_document(preview))
    output.leave(preview.exit_code)


@spread
def day(
    common: CommonOptions,
    run_options: RunOptions,
    policy: Annotated[Path | None, PolicyFile] = None,
    by_timer: ByTimer = False,
) -> None:
    """End the night and bring every desktop back: stop its ML VMs, resume what it suspended. Safe at any time.

    What the journal knows is returned under the policy of its night, wherever it is by now and whatever it is called.
    With --policy, markers that the journal knows nothing of are believed where that policy says, otherwise where the
    last night's does. With --by-timer a call in an open window does nothing until the return is due.

    \b
    Example:
      gpuops rotate day --yes --vcenter prod
    """
    from gpuops.api import rotate_day
    from gpuops.config.policy import said_policy
    from gpuops.console.running import carry_out, somebody_is_asked, vcenter_wait_under

    _tell_begun()
    rules = said_policy(policy)
    carry_out(
        lambda site, apply, consent: rotate_day(
            rules, site, apply=apply, consent=consent, by_timer=by_timer, asks=somebody_is_asked(run_options)
        ),
        "rotate-day",
        common,
        run_options,
        guarded=True,
        vcenter_wait=vcenter_wait_under(rules),
    )


@spread
def resume(common: CommonOptions, run_options: RunOptions) -> None:
    """Finish an interrupted night or return, with the policy it began with.

    A night whose window has closed is not continued: exit code 3. `gpuops rotate day` then returns its desktops.

    \b
    Example:
      gpuops rotate resume --dry-run --vcenter prod
      gpuops rotate resume --yes --vcenter prod
    """
    from gpuops.api import rotate_resume
    from gpuops.console.running import carry_out, somebody_is_asked

    _tell_begun()
    carry_out(
        lambda site, apply, consent: rotate_resume(
            site,
            apply=apply,
            consent=consent,
            unattended=not sys.stdin.isatty(),
            asks=somebody_is_asked(run_options),
        ),
        "rotate-resume",
        common,
        run_options,
        guarded=True,
        may_return=True,
    )


@spread
def restore(
    common: CommonOptions,
    run_options: RunOptions,
    vm: Annotated[
        list[str] | None, typer.Option("--vm", metavar="VM", help="Only this VM of a night; may be given repeatedly.")
    ] = None,
    from_markers: Annotated[
        bool,
        typer.Option(
            "--from-markers", help="Go by vCenter's markers alone, by no journal; needs the night's --policy."
        ),
    ] = False,
    policy: Annotated[Path | None, PolicyFile] = None,
) -> None:
    """Bring back single VMs, or everything without a journal, where `rotate day` cannot. Safe at any time.

    With --vm an ML VM that is not named runs on: a desktop that finds no room is named with who holds the GPUs.
    On another machine than the night's, --from-markers needs no journal, but the policy of that night.

    \b
    Example:
      gpuops rotate restore --vm vdi-07 --vcenter prod
      gpuops rotate restore --from-markers --policy templates/policy.yaml --yes --vcenter prod
    """
    from gpuops.api import rotate_restore
    from gpuops.config.policy import said_policy
    from gpuops.console.running import carry_out, somebody_is_asked, vcenter_wait_under

    rules = said_policy(policy)
    vms = tuple(vm or ())
    carry_out(
        lambda site, apply, consent: rotate_restore(
            rules,
            site,
            vms,
            from_markers=from_markers,
            apply=apply,
            consent=consent,
            asks=somebody_is_asked(run_options),
        ),
        "rotate-restore",
        common,
        run_options,
        guarded=True,
        vcenter_wait=vcenter_wait_under(rules),
    )


@spread
def init(
    common: CommonOptions,
    policy: Annotated[Path, PolicyFile],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what is missing; change nothing.")] = False,
) -> None:
    """Make what a policy wants of a vCenter: the custom attributes, and the lock VM; report desktops without an owner.

    Once, by a login that may (Global.ManageCustomFields, VirtualMachine.Inventory.Create), which the nights then need
    not have. A second time there is nothing to do.

    \b
    Example:
      gpuops rotate init --policy templates/policy.yaml --dry-run --vcenter prod
    """
    from gpuops.api import rotate_init
    from gpuops.config.policy import load_policy
    from gpuops.console.opening import open_site
    from gpuops.report.nights.rotation_setup import setup_document, setup_text

    rules = load_policy(policy)
    with open_site(common) as site:
        preparation = rotate_init(rules, site, apply=not dry_run)
    output.show(setup_text(preparation), setup_document(preparation))


@spread
def skip_next(
    common: CommonOptions,
    policy: Annotated[Path, PolicyFile],
    undo: Annotated[bool, typer.Option("--undo", help="Take the night after all.")] = False,
) -> None:
    """Skip the next night of a policy: the one that is open and has taken nothing, or else the first to open.

    The journal stores it: `rotate night` then ends with exit code 0 and a note; `rotate status` and `plan` show it.

    \b
    Example:
      gpuops rotate skip-next --policy templates/policy.yaml --vcenter prod
    """
    from gpuops.api import rotate_skip_next
    from gpuops.config.policy import load_policy
    from gpuops.console.opening import open_site
    from gpuops.report.nights.rotation_setup import skip_document, skip_text

    rules = load_policy(policy)
    with open_site(common, guarded=True) as site:
        skip = rotate_skip_next(rules, site, undo=undo)
    output.show(skip_text(skip), skip_document(skip))


for command in (night, day, status, plan, timers, watch, restore, init, skip_next):
    rotate.command()(command)
rotate.command(epilog=UNFINISHED)(resume)
rotate.command(epilog=UNFINISHED)(abandon)
rotate.add_typer(audit)
rotate.command()(overdue)
rotate.command()(unlock)
rotate.command()(clear_marker)
rotate.command()(adopt)
rotate.command()(mark)
