"""Opens the site that the options of a command name: a vCenter, a private simulated one, or a saved inventory."""

from __future__ import annotations

import os
import sys
from contextvars import ContextVar
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from gpuops.config.user_paths import config_file
from gpuops.console import completion, output
from gpuops.console.options import CommonOptions
from gpuops.errors import Refused, UsageError
from gpuops.model.vcenter.inventory import Inventory

_one_of_several: ContextVar[bool] = ContextVar("one of several sites", default=False)
_reports_other_vcenters: ContextVar[bool] = ContextVar("reports vCenters of no site", default=True)

if TYPE_CHECKING:
    from gpuops.api import Site
    from gpuops.config.vcenter.layers import Flags
    from gpuops.config.vcenter.sources import ConfiguredSite, NamedTargets
    from gpuops.execute.site.site import NoticeWay
    from gpuops.execute.site.vcenter_wait import VcenterWait


def open_site(
    common: CommonOptions,
    *,
    inventory_file: Path | None = None,
    require_verified: bool = False,
    vcenter_wait: VcenterWait | None = None,
    run: str = "",
    is_return: bool | None = False,
) -> Site:
    """Return the site that the command's options name, for a `with`. With `inventory_file` no vCenter is read.

    `require_verified`: a command that must not run unattended over an unverified connection (`rotate`), unless the
    target's entry allows it. `vcenter_wait`: wait for a vCenter that does not answer. `run`: the command of a run that
    changes something, for its notices. `is_return`: the run is a return, which continues if the login to guests cannot
    be read; None = only the journal shows whether it is one. Raises TargetError, NotConnected, Refused.
    """
    from gpuops.api import connect_checked, offline
    from gpuops.config.vcenter.sources import resolve

    if inventory_file is not None:
        from gpuops.config.snapshot import load

        _refuse_connection_options(common)
        return offline(load(inventory_file))
    return connect_checked(
        resolve(flags_of(common), os.environ, _configuration()),
        warn,
        # for the audit log: the first two words, which usually name the command
        caller=sys.argv[1:3],
        require_verified=require_verified,
        unverified_accepted=sys.stdin.isatty(),
        ask=ask_secret if sys.stdin.isatty() else None,
        vcenter_wait=vcenter_wait,
        run=run,
        is_return=is_return,
    )


def _refuse_connection_options(common: CommonOptions) -> None:
    """Raise UsageError for an option of the connection, which --inventory would ignore."""
    output_options = ("output", "quiet", "verbose", "no_color")
    connection_options = (field.name for field in fields(common) if field.name not in output_options)
    conflicting = next((name for name in connection_options if getattr(common, name)), None)
    if conflicting is not None:
        raise UsageError(
            f"--inventory and --{conflicting.replace('_', '-')} exclude each other",
            hint="--inventory plans on a saved file, without a vCenter: remove one of the two options",
        )


def read_inventory(site: Site, common: CommonOptions, *, inventory_file: Path | None = None) -> Inventory:
    """Return the inventory by one bulk read; store its names for the shell's completion."""
    inventory = site.vcenter.inventory()
    if inventory_file is None:
        remember(common, inventory)
    return inventory


def remember(common: CommonOptions, inventory: Inventory) -> None:
    """Keep the names of this vCenter for the shell's completion."""
    if name := completion.key(common.vcenter):
        completion.remember(name, inventory)


def flags_of(common: CommonOptions) -> Flags:
    """Return the options of the connection; --password-stdin reads the password. Raises UsageError."""
    from gpuops.config.vcenter.layers import Flags
    from gpuops.model.vcenter.target import Secret

    if common.password_stdin and common.password_file is not None:
        raise UsageError("--password-stdin and --password-file exclude each other", hint="give one of them")
    return Flags(
        vcenter=common.vcenter,
        username=common.username,
        password_file=common.password_file,
        password=Secret(_password_from_stdin()) if common.password_stdin else None,
        ca_file=common.ca_file,
        verify=False if common.insecure else None,
        thumbprint=common.thumbprint,
        proxy=common.proxy,
        journal_url=common.journal_url,
        reader=common.reader,
    )


def _configuration() -> NamedTargets:
    from gpuops.config.vcenter.sources import read_configuration

    return read_configuration(config_file(os.environ))


def begin_site(*, is_first: bool) -> None:
    """Mark this process as one of several that read one site each: it reports only its own vCenter.

    `is_first`: this process also reports the vCenters in the journal that are not a site any more.
    """
    _one_of_several.set(True)
    _reports_other_vcenters.set(is_first)


def reports_other_vcenters() -> bool:
    """Return whether this process reports the other vCenters of the journal."""
    return _reports_other_vcenters.get()


def vcenter_of_site(common: CommonOptions) -> str | None:
    """Return the instance uuid of this process's vCenter, by a login, if it is one of several sites; else None."""
    if not _one_of_several.get():
        return None
    with open_site(common) as site:
        return site.vcenter.uuid


def sites_of(word: str) -> tuple[ConfiguredSite, ...]:
    """Return the targets that --site selects. Raises UsageError for none, TargetError for an unreadable file."""
    from gpuops.config.vcenter.sources import chosen_sites

    return chosen_sites(word, _configuration(), config_file(os.environ))


def refuse_vcenter_of_runners(common: CommonOptions) -> None:
    """Raise Refused if runners run nights on the selected vCenter, under any of its names."""
    from gpuops.config.vcenter.destination import Address, Destination
    from gpuops.config.vcenter.sources import resolve

    configuration = _configuration()
    destination = resolve(flags_of(common), os.environ, configuration)
    for name, target in configuration.targets.items():
        if (
            target.rotations
            and isinstance(destination, Destination)
            and (destination.name == name or destination.address == Address.parse(target.host, port=target.port))
        ):
            raise Refused(
                f"runners run nights on {name} ([targets.{name}].rotations): each of their returns stops the ML VMs "
                "that a watch starts there",
                hint=f"remove `rotations` from [targets.{name}], or watch another vCenter (gpuops help watch)",
            )


def journal_of(common: CommonOptions) -> tuple[Path, str]:
    """Return the state directory and the URL of the journal; "" = the journal is in the directory. Asks no vCenter."""
    from gpuops.config.vcenter.layers import Flags
    from gpuops.config.vcenter.sources import journal_url
    from gpuops.execute.state.state_dir import default_state_dir

    flags = Flags(vcenter=common.vcenter, journal_url=common.journal_url)
    return default_state_dir(), journal_url(flags, os.environ, _configuration()) or ""


def measurements_of(common: CommonOptions) -> tuple[Path, str]:
    """Return the directory of the measurements and the URL of their database; "" = they are in the directory."""
    from gpuops.config.vcenter.sources import measurement_settings
    from gpuops.execute.site.site import measurements_store

    settings = measurement_settings(common.vcenter, os.environ, _configuration())
    return measurements_store(settings, *journal_of(common))


def label_of(common: CommonOptions) -> str:
    """Return the user's name of the selected vCenter; empty = none is configured. Raises TargetError."""
    from gpuops.config.vcenter.sources import label

    return label(common.vcenter, os.environ, _configuration().default) or ""


def notice_way_of(common: CommonOptions) -> NoticeWay:
    """Return how the notices of the selected target are sent. Raises UsageError if it has no receivers."""
    from gpuops.config.vcenter.sources import label, no_notices, notify_settings
    from gpuops.execute.site.site import NoticeWay
    from gpuops.execute.state.state_dir import default_state_dir

    configuration = _configuration()
    settings = notify_settings(common.vcenter, os.environ, configuration)
    if settings is None:
        raise no_notices(label(common.vcenter, os.environ, configuration.default), configuration)
    return NoticeWay(settings, default_state_dir(), os.environ, say=warn)


def _password_from_stdin() -> str:
    line = sys.stdin.readline().removesuffix("\n").removesuffix("\r")
    if not line:
        raise UsageError(
            "--password-stdin reads the password from stdin, and stdin is empty",
            hint="add < FILE to the command, with a file whose first line is the password",
        )
    return line


def ask_secret(prompt: str) -> str:
    """Ask at the terminal for a password, which is not shown while it is typed."""
    from getpass import getpass

    return getpass(prompt, stream=sys.stderr)


def warn(warning: str) -> None:
    """Print a warning on stderr, in red."""
    from gpuops.report.layout import Text

    output.note(Text(f"warning: {warning}", "bold red"))
