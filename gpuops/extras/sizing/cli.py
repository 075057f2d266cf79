"""`gpuops size`: how many VMs may share a GPU, under which vGPU scheduler, and which of them should not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuops.console import output
from gpuops.console.options import CommonOptions
from gpuops.console.spread import reads_sites, spread
from gpuops.extras.sizing.size_request import SizeRequest
from gpuops.extras.sizing.sizing import size_by_history

if TYPE_CHECKING:
    from gpuops.extras.sizing.size_request import SizingAnswer


@spread
@reads_sites
def size(
    common: CommonOptions,
    request: SizeRequest,
    pools_of: Annotated[  # not `policy`: VMs that are named are not only those of a site's own policy
        Path | None, typer.Option("--policy", metavar="FILE", help="The VMs in the pools of this rotation policy.")
    ] = None,
    pool: Annotated[str | None, typer.Option(metavar="NAME", help="Only the VMs of this pool.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="SINCE", help="By history since then: 7d, 2w or 2026-11-20; default: 14d.")
    ] = None,
    workloads: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Workloads of a file instead (templates/workloads.yaml); no vCenter."),
    ] = None,
    busy: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Busy share of each of several equal VMs, alone: 0.7 or 70%; no vCenter."),
    ] = None,
    overlap: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE", help="With --busy: the share of their work that VMs do at one time; default: all."
        ),
    ] = None,
) -> None:
    """Say how many VMs may share a GPU before they are slowed down too much, and by which scheduler.

    By what `gpuops observe` has measured of them, by a file of workloads, or by plain numbers. Changes nothing.
    `gpuops measure` tries it with VMs of a template. A slowdown of 1.2 means that work takes 1.2 times as long as with
    the GPU alone.

    \b
    Examples:
      gpuops size --busy 0.7 --sharers 24
      gpuops size --workloads templates/workloads.yaml --at-most 1.2
      gpuops size --busy 20% --profile a40-8q --at-most 1.5
    """
    from gpuops.extras.sizing.view import sizing_document, sizing_text

    answer = _answer(common, request, pools_of, pool, since, workloads, busy, overlap)
    output.show(sizing_text(answer), sizing_document(answer))


def _answer(
    common: CommonOptions,
    request: SizeRequest,
    policy: Path | None,
    pool: str | None,
    since: str | None,
    workloads: Path | None,
    busy: str | None,
    overlap: str | None,
) -> SizingAnswer:
    """Return the answer by stated shares, or else by the history of VMs.

    Raises UsageError for options that exclude each other, before vCenter is read.
    """
    from gpuops.extras.sizing.sizing import size_stated

    of_history = {"--policy": policy, "--pool": pool, "--since": since}
    answer = size_stated(request, workloads, busy, overlap, of_history)
    return answer if answer is not None else _by_history(common, request, policy, pool, since)


def _by_history(
    common: CommonOptions, request: SizeRequest, policy: Path | None, pool: str | None, since: str | None
) -> SizingAnswer:
    from gpuops.config.date_text import parse_since
    from gpuops.config.policy import load_policy
    from gpuops.console.opening import open_site, read_inventory

    night = load_policy(policy) if policy is not None else None
    with open_site(common) as site:
        inventory = read_inventory(site, common)
        begin = parse_since("--since", since, inventory.taken_at) if since is not None else None
        return size_by_history(request, inventory, site, night, pool=pool, since=begin)
