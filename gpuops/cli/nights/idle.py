"""`gpuops idle`: whether desktops are used, by which source and which number; and what past nights would have taken."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuops.console import completion, output
from gpuops.console.options import CommonOptions, HostShellOptions
from gpuops.console.spread import reads_sites, spread

if TYPE_CHECKING:
    from gpuops.model.nights.rotation import Policy


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
            metavar="SINCE", help="What the policy's nights since then would have taken: 7d, 2w or 2026-11-20."
        ),
    ] = None,
) -> None:
    """Say whether each desktop is idle, busy or unknown, and which source decides. Changes nothing.

    A night takes only what is idle here, and asks again just before. Without a policy no VM is called idle.

    \b
    Examples:
      gpuops idle --policy templates/policy.yaml --vcenter sim:vdi
      gpuops idle --policy templates/policy.yaml --vm vdi-091 --vcenter sim:vdi
    """
    from gpuops import api
    from gpuops.config.policy import load_policy
    from gpuops.console.opening import open_site, read_inventory
    from gpuops.report.nights.idle import idle_document, idle_text

    night = load_policy(policy) if policy is not None else None
    if replay is not None:
        _replay(common, night, replay, pool, vm)
        return
    with open_site(common) as site:
        host_shell.asked_for_vgpu_use(site)
        inventory, judged = api.idle(read_inventory(site, common), site, night, pool=pool, vm=vm)
    named = night.name if night is not None else None
    output.show(idle_text(judged, inventory, explain=vm is not None), idle_document(judged, inventory, named))


def _replay(common: CommonOptions, night: Policy | None, since: str, pool: str | None, vm: str | None) -> None:
    """Print a replay. Raises UsageError for options that exclude each other, before vCenter is read."""
    from gpuops.config.date_text import parse_since
    from gpuops.console.opening import open_site, read_inventory
    from gpuops.errors import UsageError
    from gpuops.extensions import load

    if night is None:
        raise UsageError("--replay: no policy says which nights", hint="say --policy FILE, which has pools and windows")
    if vm is not None:
        raise UsageError("--replay and --vm exclude each other", hint="a replay counts desktops, and shows none")
    with open_site(common) as site:
        inventory = read_inventory(site, common)
        begin = parse_since("--replay", since, inventory.taken_at)
        outcome = load("observe.replaying.idle_replay")(inventory, site, night, begin, pool=pool)
    output.show(*load("observe.replay_view.replay_views")(outcome))
