"""`gpuops broker`: the connection broker that hands desktops out to users."""

from __future__ import annotations

from gpuops.console import output
from gpuops.console.commands import VerbTable
from gpuops.console.options import CommonOptions
from gpuops.console.spread import reads_sites, spread

broker = VerbTable("broker", "Show desktop pools of the connection broker, and their sessions.")


@broker.callback()
def _group() -> None:
    """Show desktop pools of the connection broker, and their sessions."""


@broker.command("show")
@spread
@reads_sites
def broker_show(common: CommonOptions) -> None:
    """Show each desktop pool with its machines and sessions, and whether a rotation can gate it. Changes nothing.

    A pool that cannot be gated is named with the reason. Whose sessions they are is not asked for.

    \b
    Example:
      gpuops broker show --vcenter sim:vdi
    """
    from gpuops.api import broker_show as ask
    from gpuops.console.opening import open_site
    from gpuops.report.nights.broker import BrokerShowDocument, broker_text

    with open_site(common) as site:
        state = ask(site)
    output.show(broker_text(state), BrokerShowDocument.made_of(state))
