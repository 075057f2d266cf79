"""`gpuops rotate`: suspend idle desktops for ML VMs at night, and bring every desktop back in the morning."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuops.cli.rotate_state import abandon, audit, overdue, status, timers, unlock, watch
from gpuops.console import completion, output
from gpuops.console.commands import UNFINISHED, VerbTable
from gpuops.console.options import ByTimer, CommonOptions, DryRun, PolicyFile, RunOptions, Saved
from gpuops.console.spread import reads_sites, spread
from gpuops.errors import UsageError

if TYPE_CHECKING:
    from gpuops.plan.rotation.returns.foreign_nights import Adoption


@spread
def mark(
    common: CommonOptions,
    run_options: RunOptions,
    policy: Annotated[Path, PolicyFile],
    opt_in: Annotated[
        bool, typer.Option("--opt-in", help="The mark by which owners agree to nights (`owner` in the policy).")
    ] = False,
    opt_out: Annotated[
        bool,
        typer.Option("--opt-out", help="The mark that keeps a desktop out of every night (`opt_out` in the policy)."),
    ] = False,
    vm: Annotated[
        list[str] | None,
        typer.Option(metavar="VM", help="This desktop; may be repeated.", autocompletion=completion.vms),
    ] = None,
    pool: Annotated[str | None, typer.Option(metavar="NAME", help="The desktops of this pool of the policy.")] = None,
    folder: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="The policy's desktops in this folder: desktops/cad.")
    ] = None,
    value: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The attribute's value where the policy accepts any: true.")
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Clear the mark.")] = False,
) -> None:
    """Set or clear the custom attribute by which owners agree to nights, or keep a desktop out of them.

    A second run changes nothing. Another owner's value is neither overwritten nor cleared. If the policy uses a tag,
    set it in vCenter.

    \b
    Examples:
      gpuops rotate mark --opt-in --pool office --dry-run --policy templates/policy.yaml --vcenter prod
      gpuops rotate mark --opt-out --vm vdi-07 --policy templates/policy.yaml --vcenter prod
      gpuops rotate mark --opt-out --vm vdi-07 --undo --policy templates/policy.yaml --vcenter prod
    """
    from gpuops.api import run
    from gpuops.config.policy import load_policy
    from gpuops.console.running import carry_out
    from gpuops.plan.rotation.marks import RotateMark

    if opt_in is opt_out:
        raise UsageError("give exactly one of --opt-in and --opt-out", hint="gpuops help marks explains both")
    request = RotateMark(load_policy(policy), opt_out, tuple(vm or ()), pool, folder, value, undo)
    carry_out(partial(run, request), "rotate-mark", common, run_options)


@spread
def clear_marker(
    common: CommonOptions,
    run_options: RunOptions,
    vm: Annotated[list[str], typer.Option("--vm", metavar="VM", help="A VM that no night of this vCenter took.")],
    policy: Annotated[Path | None, PolicyFile] = None,
) -> None:
    """Clear the rotation marker of a VM, such as a copy or one with an unreadable marker; change nothing else.

    A copy of a VM that a night took carries the night's marker too. Afterwards no return touches or names it. Refused
    for a VM that an open night of the journal holds: rotate day brings that back and clears its marker.
    Without --policy it uses the marker of the last night's policy.

    \b
    Example:
      gpuops rotate clear-marker --vm vdi-07-copy --dry-run --policy templates/policy.yaml --vcenter prod
    """
    from gpuops.api import rotate_clear_marker
    from gpuops.config.policy import load_policy
    from gpuops.console.running import carry_out, waits_for_answer

    night_policy = load_policy(policy) if policy is not None else None
    carry_out(
        partial(rotate_clear_marker, night_policy, vms=tuple(vm), asks=waits_for_answer(run_options)),
        "rotate-clear-marker",
        common,
        run_options,
        require_verified=True,
    )


@spread
def adopt(
    common: CommonOptions,
    from_vcenter: Annotated[
        str, typer.Option("--from", metavar="UUID", help="Instance uuid of the vCenter whose nights took the VMs.")
    ],
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")] = False,
) -> None:
    """Take over VMs that nights of another vCenter took and that are in this vCenter now; rotate day returns them.

    A vCenter that was rebuilt has a new instance uuid and no markers. rotate day then names the VMs of its open nights
    and touches none, because the other vCenter may still exist. Both must be in one journal. vCenter is not changed;
    VMs that are not in this vCenter stay with the other one.

    \b
    Example:
      gpuops rotate adopt --from 3c5e0b0a-8f4e-4f43-9d67-0c8a5f1b2d11 --dry-run --vcenter prod
    """
    from gpuops.api import rotate_adopt
    from gpuops.console.opening import open_site
    from gpuops.report.nights.rotation_setup_view import adoption_document, adoption_text

    def ask(planned: Adoption) -> None:
        from gpuops.console.running import confirm

        if not yes:
            confirm(adoption_text(planned), "the above makes these VMs the nights of this vCenter")

    with open_site(common, require_verified=True) as site:
        adopted = rotate_adopt(site, from_vcenter, apply=not dry_run, consent=ask)
    output.show(adoption_text(adopted), adoption_document(adopted))


rotate = VerbTable("rotate", "Suspend idle desktops for ML VMs at night, and bring every desktop back in the morning.")


def _tell_begun() -> None:
    """Tell systemd that the run has begun. Call it first: systemd counts a process that ends before as failed."""
    from gpuops.execute.state.service_manager import BEGUN, tell_systemd

    tell_systemd(BEGUN)


@spread
def night(
    common: CommonOptions,
    run_options: RunOptions,
    policy: Annotated[Path, PolicyFile],
    by_timer: ByTimer = False,
    inventory_file: Saved = None,
    fleet: Annotated[
        bool, typer.Option("--fleet", help="Ask the runners to run it (gpuops help sites), and do not wait for it.")
    ] = False,
) -> None:
    """Suspend the idle desktops that the policy selects, and start the ML VMs that fit.

    Without a terminal (cron, systemd) a policy without `windows` is refused, unless it has `windows: any`. Outside the
    windows of the policy the command is refused (exit code 3), as the example is by day; with --by-timer it does
    nothing (exit code 0).

    \b
    Example:
      gpuops rotate night --policy templates/policy.yaml --dry-run --vcenter sim:vdi
    """
    if fleet:
        from gpuops.extensions import load

        if run_options.dry_run or inventory_file is not None:
            raise UsageError(
                "--fleet asks the runners to run the night: it cannot be combined with --dry-run or --inventory",
                hint="remove --fleet: gpuops rotate night --dry-run shows the plan",
            )
        load("gpuops.extras.fleet.cli.ask_fleet")(common, policy, yes=run_options.yes)
        return
    from gpuops.api import rotate_night
    from gpuops.console.running import carry_out, policy_of_run, waits_for_answer

    _tell_begun()
    rules = policy_of_run(policy, "rotate night", common, looks_only=run_options.dry_run or inventory_file is not None)
    carry_out(
        partial(
            rotate_night,
            rules,
            unattended=by_timer or not sys.stdin.isatty(),
            by_timer=by_timer,
            asks=waits_for_answer(run_options),
        ),
        "rotate-night",
        common,
        run_options,
        inventory_file=inventory_file,
        require_verified=True,
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
    inventory_file: Saved = None,
) -> None:
    """Show the night that would begin at a moment: desktops to suspend, a host for each ML VM, and the way back.

    It is planned on what vCenter shows now, with a reason for each VM of the pools and of the queue. Changes nothing.
    Without --policy it uses the policy of the last night.

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
    from gpuops.report.nights.rotation_plan_view import preview_document, preview_text

    rules = load_policy(policy) if policy is not None else None
    moment = parse_moment_or_clock("--at", at) if at is not None else None
    with open_site(common, inventory_file=inventory_file) as site:
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

    VMs in the journal are returned under the policy of their night, even if they were moved or renamed since. Markers
    of VMs that are not in the journal are read as --policy says, or else the last night's policy. With --by-timer a
    call in an open window does nothing until the return is due.

    \b
    Example:
      gpuops rotate day --yes --vcenter prod
    """
    from gpuops.api import rotate_day
    from gpuops.config.policy import policy_or_error
    from gpuops.console.running import carry_out, vcenter_wait_for, waits_for_answer

    _tell_begun()
    rules = policy_or_error(policy)
    carry_out(
        partial(rotate_day, rules, by_timer=by_timer, asks=waits_for_answer(run_options)),
        "rotate-day",
        common,
        run_options,
        require_verified=True,
        vcenter_wait=vcenter_wait_for(rules),
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
    from gpuops.console.running import carry_out, waits_for_answer

    _tell_begun()
    carry_out(
        partial(rotate_resume, unattended=not sys.stdin.isatty(), asks=waits_for_answer(run_options)),
        "rotate-resume",
        common,
        run_options,
        require_verified=True,
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
        typer.Option("--from-markers", help="Use only vCenter's markers, not the journal; needs the night's --policy."),
    ] = False,
    policy: Annotated[Path | None, PolicyFile] = None,
) -> None:
    """Bring back single VMs, or all VMs if the journal is lost. Safe at any time.

    With --vm, ML VMs that are not named keep running, unless the policy of the night has `user_wins: true`. If a
    desktop finds no free GPU, it is reported with the VMs that hold the GPUs. On a machine without the journal of the
    night, use --from-markers with the policy of that night.

    \b
    Example:
      gpuops rotate restore --vm vdi-07 --vcenter prod
      gpuops rotate restore --from-markers --policy templates/policy.yaml --yes --vcenter prod
    """
    from gpuops.api import rotate_restore
    from gpuops.config.policy import policy_or_error
    from gpuops.console.running import carry_out, vcenter_wait_for, waits_for_answer

    rules = policy_or_error(policy)
    vms = tuple(vm or ())
    carry_out(
        partial(rotate_restore, rules, vms=vms, from_markers=from_markers, asks=waits_for_answer(run_options)),
        "rotate-restore",
        common,
        run_options,
        require_verified=True,
        vcenter_wait=vcenter_wait_for(rules),
    )


@spread
def init(
    common: CommonOptions,
    policy: Annotated[Path, PolicyFile],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what is missing; change nothing.")] = False,
) -> None:
    """Create what a policy needs in vCenter: the custom attributes, and the lock VM; report desktops without an owner.

    Run it once, as a user with the privileges Global.ManageCustomFields and VirtualMachine.Inventory.Create; the user
    of the nights does not need them. If nothing is missing, it changes nothing.

    \b
    Example:
      gpuops rotate init --policy templates/policy.yaml --dry-run --vcenter prod
    """
    from gpuops.api import rotate_init
    from gpuops.config.policy import load_policy
    from gpuops.console.opening import open_site
    from gpuops.report.nights.rotation_setup_view import setup_document, setup_text

    rules = load_policy(policy)
    with open_site(common) as site:
        preparation = rotate_init(rules, site, apply=not dry_run)
    output.show(setup_text(preparation), setup_document(preparation))


@spread
def skip_next(
    common: CommonOptions,
    policy: Annotated[Path, PolicyFile],
    undo: Annotated[bool, typer.Option("--undo", help="Run the night after all.")] = False,
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
    from gpuops.report.nights.rotation_setup_view import skip_document, skip_text

    rules = load_policy(policy)
    with open_site(common, require_verified=True) as site:
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
