"""Opens the site that the options of a command name: a vCenter, a private simulated one, or a saved inventory."""

from __future__ import annotations

import os
import sys
from contextvars import ContextVar
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from gpuops.cli import completion, output
from gpuops.cli.options import CommonOptions
from gpuops.errors import UsageError
from gpuops.model.vcenter.inventory import Inventory

_one_of_several: ContextVar[bool] = ContextVar("one of several sites", default=False)
_tells_of_others: ContextVar[bool] = ContextVar("tells of vCenters of no site", default=True)

if TYPE_CHECKING:
    from gpuops.api import Site
    from gpuops.config.vcenter.layers import Flags
    from gpuops.config.vcenter.sites import ConfiguredSite
    from gpuops.config.vcenter.sources import NamedTargets
    from gpuops.execute.site.notice_way import NoticeWay
    from gpuops.execute.site.vcenter_wait import VcenterWait


def open_site(
    common: CommonOptions,
    *,
    saved: Path | None = None,
    guarded: bool = False,
    vcenter_wait: VcenterWait | None = None,
    run: str = "",
    returns: bool | None = False,
) -> Site:
    """A site by the command's options; use it in a `with`. `saved` is --inventory: no vCenter at all.

    `guarded` is a command that must not run unattended over an unverified connection (`rotate`), unless the target's
    own entry says so. `vcenter_wait`: it waits for a vCenter that is away. `run`: the command of one that changes
    something, of which notices tell. `returns`: it goes on without a login to guests that cannot be had; None = only
    the journal tells whether it does.
    Raises TargetError, NotConnected, Refused.
    """
    from gpuops.api import connect_checked, offline
    from gpuops.config.vcenter.sources import resolve

    if saved is not None:
        from gpuops.config.snapshot import load

        _refuse_both(common)
        return offline(load(saved))
    return connect_checked(
        resolve(flags_of(common), os.environ, _configuration()),
        warn,
        caller=sys.argv[1:3],
        guarded=guarded,
        decided=sys.stdin.isatty(),
        ask=ask_secret if sys.stdin.isatty() else None,
        vcenter_wait=vcenter_wait,
        run=run,
        returns=returns,
    )


def _refuse_both(common: CommonOptions) -> None:
    """An option for a connection beside --inventory would be ignored: what is meant cannot be told."""
    how_printed = ("output", "quiet", "verbose", "no_color")
    connecting = (field.name for field in fields(common) if field.name not in how_printed)
    conflicting = next((name for name in connecting if getattr(common, name)), None)
    if conflicting is not None:
        raise UsageError(
            f"--inventory and --{conflicting.replace('_', '-')} exclude each other",
            hint="--inventory plans on a saved file, without a vCenter: leave one of them out",
        )


def read_inventory(site: Site, common: CommonOptions, *, saved: Path | None = None) -> Inventory:
    """One bulk read; the names seen are kept for the shell's completion."""
    inventory = site.vcenter.inventory()
    if saved is None:
        remember(common, inventory)
    return inventory


def remember(common: CommonOptions, inventory: Inventory) -> None:
    """Keeps the names of this vCenter for the shell's completion."""
    if name := completion.key(common.vcenter):
        completion.remember(name, inventory)


def flags_of(common: CommonOptions) -> Flags:
    """What the options say of the connection; a password is read from stdin where they say so. Raises UsageError."""
    from gpuops.config.vcenter.layers import Flags
    from gpuops.model.vcenter.target import Secret

    if common.password_stdin and common.password_file is not None:
        raise UsageError("--password-stdin and --password-file exclude each other", hint="give one of them")
    return Flags(
        vcenter=common.vcenter,
        username=common.username,
        password_file=common.password_file,
        password=Secret(_first_line()) if common.password_stdin else None,
        ca_file=common.ca_file,
        verify=False if common.insecure else None,
        thumbprint=common.thumbprint,
        proxy=common.proxy,
        journal_url=common.journal_url,
        reader=common.reader,
    )


def _configuration() -> NamedTargets:
    from gpuops.config.user_paths import config_file
    from gpuops.config.vcenter.sources import read_configuration

    return read_configuration(config_file(os.environ))


def begin_site(*, first: bool) -> None:
    """From here on this process is one of several that ask a site each: what it says is of its vCenter alone.

    `first`: what the journal has of other vCenters, some of which are no site any more, is told by this one.
    """
    _one_of_several.set(True)
    _tells_of_others.set(first)


def tells_of_others() -> bool:
    """Whether what the journal has of other vCenters is told by this process."""
    return _tells_of_others.get()


def vcenter_of_site(common: CommonOptions) -> str | None:
    """The instance uuid of the vCenter that is asked as one of several; None = no other is asked. Logs in to ask it."""
    if not _one_of_several.get():
        return None
    with open_site(common) as site:
        return site.vcenter.uuid


def sites_of(word: str) -> tuple[ConfiguredSite, ...]:
    """The targets that --site means. Raises UsageError where it means none, TargetError for an unreadable file."""
    from gpuops.config.user_paths import config_file
    from gpuops.config.vcenter.sites import chosen_sites

    return chosen_sites(word, _configuration(), config_file(os.environ))


def refuse_vcenter_of_runners(common: CommonOptions) -> None:
    """Raises Refused where runners play nights on the vCenter that is meant, by whatever name the user means it."""
    from gpuops.config.vcenter.address import Address
    from gpuops.config.vcenter.destination import Destination
    from gpuops.config.vcenter.sources import resolve
    from gpuops.errors import Refused

    configuration = _configuration()
    destination = resolve(flags_of(common), os.environ, configuration)
    for name, target in configuration.targets.items():
        if (
            target.rotations
            and isinstance(destination, Destination)
            and (destination.name == name or destination.address == Address.parse(target.host, port=target.port))
        ):
            raise Refused(
                f"runners play nights on {name} ([targets.{name}].rotations): each of their returns ends what a watch "
                "holds there",
                hint=f"take `rotations` out of [targets.{name}], or watch another vCenter (gpuops help watch)",
            )


def journal_of(common: CommonOptions) -> tuple[Path, str]:
    """The state directory, and the URL of the journal where it is not kept there. Asks no vCenter."""
    from gpuops.config.vcenter.layers import Flags
    from gpuops.config.vcenter.sources import journal_url
    from gpuops.execute.state.state_dir import default_state_dir

    flags = Flags(vcenter=common.vcenter, journal_url=common.journal_url)
    return default_state_dir(), journal_url(flags, os.environ, _configuration()) or ""


def measurements_of(common: CommonOptions) -> tuple[Path, str]:
    """The directory of the store of measurements, and the URL of the database that keeps it instead, or empty."""
    from gpuops.config.vcenter.sources import measurement_settings
    from gpuops.execute.site.site import measurements_store

    settings = measurement_settings(common.vcenter, os.environ, _configuration())
    return measurements_store(settings, *journal_of(common))


def label_of(common: CommonOptions) -> str:
    """How the user names the vCenter that is meant; empty = none is configured. Asks no vCenter. Raises TargetError."""
    from gpuops.config.vcenter.sources import label

    return label(common.vcenter, os.environ, _configuration().default) or ""


def notice_way_of(common: CommonOptions) -> NoticeWay:
    """How the notices of the target that is named are sent. Asks no vCenter. Raises UsageError where there are none."""
    from gpuops.config.vcenter.sources import label, no_notices, notify_settings
    from gpuops.execute.site.notice_way import NoticeWay
    from gpuops.execute.state.state_dir import default_state_dir

    configuration = _configuration()
    settings = notify_settings(common.vcenter, os.environ, configuration)
    if settings is None:
        raise no_notices(label(common.vcenter, os.environ, configuration.default), configuration)
    return NoticeWay(settings, default_state_dir(), os.environ, say=warn)


def _first_line() -> str:
    line = sys.stdin.readline().removesuffix("\n").removesuffix("\r")
    if not line:
        raise UsageError("--password-stdin: nothing came on stdin", hint="pipe the password in: ... < FILE")
    return line


def ask_secret(prompt: str) -> str:
    """Ask at the terminal for what is not shown as it is typed."""
    from getpass import getpass

    return getpass(prompt, stream=sys.stderr)


def warn(warning: str) -> None:
    """Print a warning on stderr, in red."""
    from gpuops.report.layout import Text

    output.note(Text(f"warning: {warning}", "bold red"))
