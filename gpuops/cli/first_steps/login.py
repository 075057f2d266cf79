"""`gpuops login`: whether a vCenter lets this login in, what it may do there, and over which protocol it is read."""

from __future__ import annotations

from gpuops.console import output
from gpuops.console.commands import VerbTable
from gpuops.console.options import CommonOptions
from gpuops.console.spread import spread

login = VerbTable("login", "Log in to a vCenter, and say who and what.")


@login.callback()
def _group() -> None:
    """Log in to a vCenter, and say who and what."""


@login.command("test")
@spread
def login_test(common: CommonOptions) -> None:
    """Log in, say who and what, what it lacks for each verb, and compare what VI/JSON and SOAP tell.

    Privileges that are lacking are named with their places; they are no failure of the login.

    Inventories are read over VI/JSON (vCenter 8.0 U1 and later), which is faster, once both gave equal snapshots here;
    that is remembered for this vCenter and its version in the state directory. Changes nothing in vCenter.

    \b
    Example:
      gpuops login test --vcenter sim:lab
    """
    from gpuops.api import login_test as ask
    from gpuops.console.opening import open_site
    from gpuops.report.first_steps.login import LoginTestDocument, login_text

    with open_site(common) as site:
        test = ask(site)
    output.show(login_text(test), LoginTestDocument.made_of(test))
