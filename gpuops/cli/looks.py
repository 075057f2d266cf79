"""`gpuops idle`, `queue`, `broker` and `history`: commands that only look at desktops, ML VMs and past nights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuops import clock
from gpuops.console import completion, output
from gpuops.console.commands import VerbTable
from gpuops.console.options import CommonOptions, HostShellOptions, PolicyFile, Saved
from gpuops.console.spread import also_csv, reads_sites, spread
from gpuops.errors import UsageError
from gpuops.model.nights.history import EventKind
from gpuops.model.time_text import format_minute

if TYPE_CHECKING:
    from gpuops.model.nights.rotation_policy import Policy


@spread
@reads_sites
def idle(
    common: CommonOptions,
    host_shell: HostShellOptions,
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Judge the desktops of this rotation policy, by its pools.")
    ] = None,
    pool: Annotated[str | None, typer.Option(metavar="NAME", help="Only the desktops of this pool.")] = None,
    vm: Annotated[
        str | None,
        typer.Option(
            metavar="VM",
            autocompletion=completion.vms,
            help="Only this VM: what each source reports, its age, and vetoes.",
        ),
    ] = None,
    replay: Annotated[
        str | None,
        typer.Option(
            metavar="SINCE", help="Count what the policy's nights since then would have taken: 7d, 2w or 2026-11-20."
        ),
    ] = None,
) -> None:
    """Say whether each desktop is idle, busy or unknown, and which source decides. Changes nothing.

    A night takes only desktops that are idle, and checks again just before. Without a policy no VM is called idle.

    \b
    Examples:
      gpuops idle --policy templates/policy.yaml --vcenter sim:vdi
      gpuops idle --policy templates/policy.yaml --vm vdi-091 --vcenter sim:vdi
    """
    from gpuops import api
    from gpuops.config.policy import load_policy
    from gpuops.console.opening import open_site, read_inventory
    from gpuops.report.nights.desktop_use_view import idle_document, idle_text

    rotation_policy = load_policy(policy) if policy is not None else None
    if replay is not None:
        _replay(common, rotation_policy, replay, pool, vm)
        return
    with open_site(common) as site:
        host_shell.asked_for_vgpu_use(site)
        inventory, judged = api.idle(read_inventory(site, common), site, rotation_policy, pool=pool, vm=vm)
    policy_name = rotation_policy.name if rotation_policy is not None else None
    output.show(idle_text(judged, inventory, explain=vm is not None), idle_document(judged, inventory, policy_name))


def _replay(common: CommonOptions, policy: Policy | None, since: str, pool: str | None, vm: str | None) -> None:
    """Print what the policy's nights since then would have taken. Raises UsageError before vCenter is read."""
    from gpuops.config.date_text import parse_since
    from gpuops.console.opening import open_site, read_inventory
    from gpuops.extensions import load

    if policy is None:
        raise UsageError("--replay needs a policy", hint="add --policy FILE: it defines the pools and the windows")
    if vm is not None:
        raise UsageError("--replay and --vm exclude each other", hint="remove --vm: a replay only counts desktops")
    with open_site(common) as site:
        inventory = read_inventory(site, common)
        begin = parse_since("--replay", since, inventory.taken_at)
        outcome = load("gpuops.extras.observe.replaying.idle_replay")(inventory, site, policy, begin, pool=pool)
    output.show(*load("gpuops.extras.observe.view.replay_views")(outcome))


@spread
@reads_sites
def queue(
    common: CommonOptions,
    policy: Annotated[Path | None, PolicyFile] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="MOMENT",
            help="When the night would begin, such as 22:00 in the policy's zone; default: now, or the next night.",
        ),
    ] = None,
    inventory_file: Saved = None,
) -> None:
    """Show the ML queue in tonight's order: which ML VMs start, which wait and why. Changes no vCenter.

    If the policy has `fair_share`, also its teams: weights, recent GPU-hours, and how many they may still use.
    Without --policy it uses the policy of the last night.

    \b
    Examples:
      gpuops queue --policy templates/policy.yaml --vcenter sim:vdi
      gpuops queue --policy templates/spare-policy.yaml --vcenter sim:lab
    """
    from gpuops.api import queue_look
    from gpuops.config.date_text import parse_moment_or_clock
    from gpuops.config.policy import load_policy
    from gpuops.console.opening import open_site
    from gpuops.report.nights.ml_queue_view import queue_document, queue_text

    rules = load_policy(policy) if policy is not None else None
    moment = parse_moment_or_clock("--at", at) if at is not None else None
    with open_site(common, inventory_file=inventory_file) as site:
        look = queue_look(rules, site, moment)
    output.show(queue_text(look), queue_document(look))


broker = VerbTable("broker", "Show desktop pools of the connection broker, and their sessions.")


@broker.callback()
def _group() -> None:
    """Show desktop pools of the connection broker, and their sessions."""


@broker.command("show")
@spread
@reads_sites
def broker_show(common: CommonOptions) -> None:
    """Show each desktop pool with its machines and sessions, and whether a rotation can gate it. Changes nothing.

    A pool that cannot be gated is shown with the reason. The users of the sessions are not read.

    \b
    Example:
      gpuops broker show --vcenter sim:vdi
    """
    from gpuops.api import broker_show as read_broker
    from gpuops.console.opening import open_site
    from gpuops.report.nights.desktop_use_view import BrokerShowDocument, broker_text

    with open_site(common) as site:
        state = read_broker(site)
    output.show(broker_text(state), BrokerShowDocument.made_of(state))


history = VerbTable("history")


@history.callback(invoke_without_command=True, no_args_is_help=False)
@spread
@also_csv
@reads_sites
def listing(
    context: typer.Context,
    common: CommonOptions,
    since: Annotated[
        str | None, typer.Option(metavar="SINCE", help="Only those that began since then: 30d, 12w or a date in UTC.")
    ] = None,
    kind: Annotated[EventKind | None, typer.Option(help="Only nights, or only changes.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the newest N.")] = None,
) -> None:
    """Show past nights and changes: what was taken and is back, GPU-hours, incidents, who ran it. Asks no vCenter.

    \b
    Example:
      gpuops history --since 30d
      gpuops history --kind night --since 2026-07-01 --output csv > nights.csv
      gpuops history show 2026-11-20
    """
    from gpuops.api import history as past_events
    from gpuops.config.date_text import parse_since
    from gpuops.console.opening import journal_of, vcenter_of_site
    from gpuops.report.nights.history_view import HistoryDocument, history_csv, history_text

    if context.invoked_subcommand is not None:
        context.obj = common
        return
    began = parse_since("--since", since, clock.wall_clock()) if since is not None else None
    state_dir, url = journal_of(common)
    # with --site, each process shows its own vCenter; otherwise all in the journal are shown
    vcenter_uuid = vcenter_of_site(common)
    events = past_events(state_dir, url, since=began, kind=kind, limit=limit, vcenter=vcenter_uuid)
    filter_text = f" of kind {kind.value}" if kind is not None else ""
    filter_text += f" since {format_minute(began)} UTC" if began is not None else ""
    output.show(history_text(events, filter_text), HistoryDocument.made_of(events), csv=lambda: history_csv(events))


@history.command()
@spread
@also_csv
def show(
    common: CommonOptions,
    night: Annotated[str, typer.Argument(metavar="NIGHT", help="The night, as `gpuops history` names it.")],
) -> None:
    """Show one night in full: each desktop and ML VM with its times, what went wrong and why, who ran it.

    \b
    Example:
      gpuops history show 2026-11-20
    """
    from gpuops.api import past_night
    from gpuops.console.opening import journal_of
    from gpuops.report.nights.history_view import HistoryNightDocument, night_csv, night_text

    state_dir, url = journal_of(common)
    past = past_night(state_dir, night, url)
    output.show(night_text(past), HistoryNightDocument.made_of(past), csv=lambda: night_csv(past))
