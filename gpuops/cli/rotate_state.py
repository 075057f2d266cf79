"""State of nights: `gpuops rotate status`, `overdue`, `audit verify`, `unlock`, `abandon`, `timers`, `watch`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gpuops import clock
from gpuops.clock import wall_clock
from gpuops.console import output
from gpuops.console.commands import VerbTable
from gpuops.console.options import CommonOptions, DryRun, PolicyFile
from gpuops.console.signals import collect_garbage_often
from gpuops.console.spread import reads_sites, spread
from gpuops.errors import PartlyDone, StateDamaged, UsageError, VcenterUnreachable
from gpuops.model.time_text import format_second

if TYPE_CHECKING:
    from gpuops.execute.site import Site
    from gpuops.model.nights.rotation_policy import Policy
    from gpuops.plan.rotation.night_status import RotationStatus
    from gpuops.plan.rotation.nights.watch_look import WatchReport
    from gpuops.report.document import Document

FOLLOW_EVERY_S: Final = 5.0


@spread
@reads_sites
def status(
    common: CommonOptions,
    policy: Annotated[Path | None, PolicyFile] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", help="Look every 5 seconds, and print the status again when it has changed; Ctrl-C ends it."
        ),
    ] = False,
) -> None:
    """Show what the nights took, where each VM is now, and whether a run is under way or was cut off. Changes nothing.

    Without --policy it uses the policy of the last night. A machine whose journal has no night needs --policy if the
    policy names its own marker. If the journal is damaged, it says so and shows vCenter's markers: exit code 7.

    \b
    Example:
      gpuops rotate status --output json --vcenter prod
      gpuops rotate status --follow --vcenter prod
    """
    from gpuops.api import rotate_status
    from gpuops.config.policy import load_policy
    from gpuops.console.opening import open_site

    rules = load_policy(policy) if policy is not None else None
    with open_site(common) as site:
        if follow:
            _follow(lambda: rotate_status(site, rules, policy_file=policy))
            return
        state = rotate_status(site, rules, policy_file=policy)
    _show(state)
    output.leave(state.exit_code)


def _show(state: RotationStatus) -> None:
    from gpuops.report.nights.rotation_status_view import status_document, status_text

    output.show(status_text(state), status_document(state))


def _follow(look: Callable[[], RotationStatus]) -> None:
    """Print the status each time that it has changed, until Ctrl-C."""
    from gpuops.report.layout import Text

    try:
        for state in changed_states(look, clock.rounds((FOLLOW_EVERY_S,))):
            output.progress(Text(format_second(clock.wall_clock().astimezone()), "dim"))
            _show(state)
    except KeyboardInterrupt:
        return  # the usual end


def changed_states(look: Callable[[], RotationStatus], rounds: Iterable[object]) -> Iterator[RotationStatus]:
    """Yield the first look, and each that differs from the one before; continue while vCenter does not answer."""
    from gpuops.report.layout import Text

    last_document: Document | None = None
    reported_outage = ""
    for _ in rounds:
        try:
            state = look()
        except VcenterUnreachable as error:
            if last_document is None:
                raise  # nothing answered from the beginning: a wrong address rather than a restart
            if error.message != reported_outage:
                output.note(Text(f"warning: {error.message}", "yellow"))
            reported_outage = error.message
        else:
            reported_outage = ""
            document = _without_lease_renewal(state)
            if document != last_document:
                last_document = document
                yield state


def _without_lease_renewal(state: RotationStatus) -> Document:
    """Return the document without the end of the lease, which each renewal changes."""
    from gpuops.report.document import as_values
    from gpuops.report.nights.rotation_status_view import status_document

    document = as_values(status_document(state))
    if document["lease"] is not None:
        document["lease"] = {**document["lease"], "expires": None}
    return document


audit = VerbTable("audit", "Check that the journal of rotations and changes was not altered.")


@audit.callback()
def _group() -> None:
    """Check that the journal of rotations and changes was not altered."""


@audit.command()
@spread
def verify(
    common: CommonOptions,
    head: Annotated[
        str,
        typer.Option(
            metavar="SEQ:CHECKSUM", help="The head that an earlier audit printed; the journal must still contain it."
        ),
    ] = "",
) -> None:
    """Check every record of the journal against the one before it. Asks no vCenter, and changes nothing.

    With exit code 7 it names the first record that was changed, dropped, moved or added. To detect a journal whose end
    was cut off, note the head elsewhere and pass it with --head.

    \b
    Example:
      gpuops rotate audit verify
      gpuops rotate audit verify --output json
    """
    from gpuops.api import rotate_audit_verify
    from gpuops.console.opening import journal_of
    from gpuops.report.nights.rotation_status_view import RotateAuditDocument, audit_text

    state_dir, url = journal_of(common)
    audit_state = rotate_audit_verify(state_dir, url, head)
    output.show(audit_text(audit_state), RotateAuditDocument.made_of(audit_state))
    output.leave(0 if audit_state.whole else StateDamaged.exit_code)


@spread
def overdue(common: CommonOptions) -> None:
    """List the vCenters whose night is over and which no `rotate day` has returned since. Asks no vCenter.

    For a monitoring system, or cron on another machine with the same journal: it works where the timer of the return
    was removed or its machine is off. Half an hour after a night closed, every vCenter of the journal with desktops
    away and no recorded return is listed, and the exit code is 4. Exit code 7: part of the journal cannot be read.

    \b
    Example:
      gpuops rotate overdue
      gpuops rotate overdue --output json
    """
    from gpuops.api import overdue_vcenters
    from gpuops.console.opening import journal_of
    from gpuops.report.nights.rotation_status_view import RotationOverdueDocument, all_overdue_text

    unreadable = list[StateDamaged]()
    state_dir, url = journal_of(common)
    vcenters = overdue_vcenters(state_dir, url, clock.wall_clock, damaged=unreadable.append)
    reasons = tuple(error.line for error in unreadable)
    output.show(
        all_overdue_text(vcenters, reasons),
        RotationOverdueDocument.from_attributes(overdue=vcenters, overdue_unknown=reasons),
    )
    output.leave(PartlyDone.exit_code if vcenters else StateDamaged.exit_code if unreadable else 0)


@spread
def unlock(
    common: CommonOptions,
    nonce: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="ID", help="The id of the lease to give back; without it the holder and the id are shown."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Give back a lease that was renewed within the last 90 seconds, too.")
    ] = False,
    policy: Annotated[Path | None, PolicyFile] = None,
) -> None:
    """Give back the lease of a run on another machine that is certainly dead, selected by --id.

    It is rarely necessary: a lease that is not renewed expires after three minutes. Without --id it shows the holder
    and the id. A lease that was renewed within the last 90 seconds needs --force: its run is alive, or died just now.
    A run that is still alive may finish its steps in flight, and starts no other once it looks at the lease.
    After a lock VM was reverted to a snapshot, the id is the highest lease number that was seen, which the refusal of
    the next night names: the lock VM then carries that number again.

    \b
    Example:
      gpuops rotate unlock --id 5f0c9a1e7d3b2a64 --policy templates/policy.yaml --vcenter prod
    """
    from gpuops.api import rotate_unlock
    from gpuops.config.policy import load_policy
    from gpuops.console.opening import open_site
    from gpuops.report.layout import Text
    from gpuops.report.nights.rotation_status_view import RotateUnlockDocument

    rules = load_policy(policy) if policy is not None else None
    with open_site(common, require_verified=True) as site:
        lease = rotate_unlock(rules, site, nonce, force=force)
    text = f"given back: the lease of {lease.owner}"
    # no lease was held: only the number of a lock VM that was reverted was written again
    if not lease.nonce:
        text = f"corrected: the lock VM carries lease number {lease.epoch} again, and no run holds it"
    output.show(Text(text), RotateUnlockDocument.from_attributes(lease=lease))


@spread
def abandon(
    common: CommonOptions,
    vm: Annotated[str, typer.Option("--vm", metavar="VM", help="The VM of a night that cannot be brought back.")],
    policy: Annotated[Path | None, PolicyFile] = None,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")] = False,
) -> None:
    """Give up one VM of a night for good: no return waits for it or names it as missing any more.

    vCenter is not changed: the VM and its marker stay as they are. rotate restore --vm can still bring it back, if that
    is possible. doctor and status list it until it is back.

    A VM that is not in this machine's journal is found by its marker, in the attribute that --policy names, or else
    the last night's policy.

    \b
    Example:
      gpuops rotate abandon --vm vdi-07 --yes --vcenter prod
    """
    from gpuops.api import rotate_abandon
    from gpuops.cli.change import confirm_giving_up, show_abandoned
    from gpuops.config.policy import load_policy
    from gpuops.console.opening import open_site

    rules = load_policy(policy) if policy is not None else None
    with open_site(common, require_verified=True) as site:
        show_abandoned(rotate_abandon(site, vm, rules, apply=not dry_run, consent=confirm_giving_up(yes=yes)))


@spread
def timers(
    common: CommonOptions,
    policy: Annotated[Path, PolicyFile],
    cron: Annotated[bool, typer.Option("--cron", help="Print crontab lines.")] = False,
    systemd: Annotated[
        bool, typer.Option("--systemd", help="Print drop-ins for timers of systemd; the default.")
    ] = False,
    cron_tz: Annotated[
        bool | None,
        typer.Option(
            "--cron-tz/--no-cron-tz",
            show_default="as this machine's cron",
            help="Whether that cron reads CRON_TZ, as cronie does; otherwise in this machine's time zone.",
        ),
    ] = None,
) -> None:
    """Print when systemd or cron has to call the night and the return of a policy.

    Asks no vCenter, and installs nothing. `doctor --policy`, `rotate plan` and `rotate status` warn where the installed
    calls do not meet the windows.

    \b
    Examples:
      gpuops rotate timers --policy templates/policy.yaml
      gpuops rotate timers --policy templates/policy.yaml --cron --no-cron-tz
    """
    from gpuops.api import rotate_timers
    from gpuops.config.policy import load_policy
    from gpuops.report.nights.rotation_setup_view import cron_text, systemd_text, timers_document

    if cron and systemd:
        raise UsageError("--cron and --systemd exclude each other", hint="remove one of the two options")
    calls = rotate_timers(load_policy(policy), cron_tz=cron_tz)
    text = cron_text(calls, str(policy.expanduser().absolute()), common.vcenter) if cron else systemd_text(calls)
    output.show(text.split("\n"), timers_document(calls))


@spread
def watch(
    common: CommonOptions,
    policy: Annotated[Path, PolicyFile],
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Look once, show what it would do if nothing had changed for long enough; change nothing."
        ),
    ] = False,
    health: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Answer GET /healthz there: 200 while it looks at vCenter, 503 when it does not.",
        ),
    ] = None,
) -> None:
    """Run ML VMs at any hour on GPUs that are free beyond the policy's reserve; stop them when desktops need these.

    A service that runs until it is stopped (templates/gpuops-watch.service). ML VMs that it started then keep running;
    `gpuops rotate day` stops them. The policy needs `mode: spare-capacity`. Exit code 6 if another watch runs on this
    machine, or a night holds VMs of the policy.

    \b
    Example:
      gpuops rotate watch --policy templates/spare-policy.yaml --dry-run --vcenter sim:lab
      gpuops rotate watch --policy spare.yaml --health 9464 --vcenter prod
    """

    from gpuops.api import rotate_watch, rotate_watch_look
    from gpuops.console.opening import open_site, refuse_vcenter_of_runners
    from gpuops.console.running import policy_of_run
    from gpuops.execute.state.http_listener import health_address, serve_health
    from gpuops.report.nights.watch_view import look_document, look_text

    address = health_address(health) if health is not None else None
    rules = policy_of_run(policy, "rotate watch", common, looks_only=dry_run)
    if not dry_run:
        refuse_vcenter_of_runners(common)
    with open_site(common, require_verified=True) as site, ExitStack() as stack:
        if not dry_run:
            site.say = output.note
            collect_garbage_often()
            note_look = stack.enter_context(serve_health(address)).note_look if address is not None else None
            rotate_watch(rules, site, _print_look, note_look, partial(_make_one_move, rules, site))
        look = rotate_watch_look(rules, site)
    output.show(look_text(look), look_document(look))


def _make_one_move(policy: Policy, site: Site) -> None:
    """Make one move of the policy's `defrag`, and print it if one was made."""
    from gpuops.api import defrag_by_policy
    from gpuops.report.plan_json import report_document
    from gpuops.report.plan_text import report_text

    report = defrag_by_policy(policy, site, apply=True, most_moves=1)
    if report.outcomes:
        output.show(report_text(report), report_document(report, "defrag-execute"))


def _print_look(report: WatchReport) -> None:
    """Print a look that did something or found too few free slots; with --verbose print each look."""
    from gpuops.report.layout import Text
    from gpuops.report.nights.watch_view import look_document, watch_lines

    if report.outcomes or report.look.gives.still_missing or output.manners().verbose:
        output.note(Text(format_second(wall_clock().astimezone()), "dim"))
        output.show(watch_lines(report), look_document(report))
