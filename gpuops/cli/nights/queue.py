"""`gpuops queue`: ML VMs that wait for the GPUs of a night, in order, with reasons; and the shares of teams."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuops.console import output
from gpuops.console.options import CommonOptions, PolicyFile, Saved
from gpuops.console.spread import reads_sites, spread


@spread
@reads_sites
def queue(
    common: CommonOptions,
    policy: Annotated[Path | None, PolicyFile] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="MOMENT",
            help="Of the night that would begin then, such as 22:00 in the policy's zone; default: now, or the next.",
        ),
    ] = None,
    saved: Saved = None,
) -> None:
    """Show the ML queue in tonight's order: which ML VMs start, which wait and why. Changes no vCenter.

    Where the policy says `fair_share`, also how its teams stand: weights, GPU-hours of late, what they may still have.
    Without --policy it goes by the policy that the last night ran under.

    \b
    Examples:
      gpuops queue --policy templates/policy.yaml --vcenter sim:vdi
      gpuops queue --policy templates/spare-policy.yaml --vcenter sim:lab
    """
    from gpuops.api import queue_look
    from gpuops.config.date_text import parse_moment_or_clock
    from gpuops.config.policy import load_policy
    from gpuops.console.opening import open_site
    from gpuops.report.nights.ml_queue import queue_document, queue_text

    rules = load_policy(policy) if policy is not None else None
    moment = parse_moment_or_clock("--at", at) if at is not None else None
    with open_site(common, saved=saved) as site:
        look = queue_look(rules, site, moment)
    output.show(queue_text(look), queue_document(look))
