"""`gpuops config`: writes the configuration file, says what is in force and why, and changes one key."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from gpuops.config.user_paths import config_file
from gpuops.console import output
from gpuops.console.commands import VerbTable
from gpuops.console.completion import configured_targets
from gpuops.console.options import CommonOptions
from gpuops.console.spread import spread
from gpuops.errors import UsageError
from gpuops.files.file import read_text

config = VerbTable("config", "Write, show and change the configuration file: the vCenters of this machine.")
File = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Another file than $GPUOPS_CONFIG or ~/.config/gpuops/config.toml."),
]


def keys(incomplete: str) -> list[str]:
    """TARGET.KEY of the targets that are there."""
    from gpuops.config.decoding import keys_of
    from gpuops.config.vcenter.targets import TABLES, NamedTarget

    single = [key for key in keys_of(NamedTarget) if key not in TABLES]
    every = [f"{name}.{key}" for name in configured_targets() for key in single]
    return [key_path for key_path in ["default", *every] if key_path.startswith(incomplete)]


@config.command("init")
@spread
def config_init(
    target: Annotated[
        str | None, typer.Option(metavar="NAME", help="What the first target is called; then --vcenter NAME means it.")
    ] = None,
    address: Annotated[
        str | None, typer.Option(metavar="HOST", help="Its address: vc.example.com, or sim:lab to try things.")
    ] = None,
    username: Annotated[str | None, typer.Option(metavar="NAME", help="Its user name.")] = None,
    password_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The file with its password, readable by its owner alone.")
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Trust the certificates of this PEM file alone.")
    ] = None,
    file: File = None,
) -> None:
    """Write a first configuration file with comments, mode 0600. A file that is there is never overwritten.

    \b
    Examples:
      gpuops config init
      gpuops config init --target prod --address vc.example.com --username gpuops@vsphere.local
    """
    from gpuops.config.vcenter.edit import first_configuration

    settings = {"host": address, "username": username, "password_file": password_file, "ca_file": ca_file}
    path = _path(file)
    first_configuration(path, target, {key: str(setting) for key, setting in settings.items() if setting is not None})
    from gpuops.report.first_steps.config import ConfigInitDocument, written_text

    output.show(written_text(path, filled=address is not None), ConfigInitDocument(str(path)))


@config.command("show")
@spread
def config_show(common: CommonOptions, file: File = None) -> None:
    """Show the settings in force for each target, and where each comes from. Connects to nothing.

    Of a password only whether there is one, and from where.

    \b
    Examples:
      gpuops config show
      gpuops config show --vcenter sim:lab
    """
    from gpuops.config.vcenter.origins import TargetLines, shown_targets
    from gpuops.config.vcenter.sources import read_configuration
    from gpuops.console.opening import flags_of
    from gpuops.report.first_steps.config import show_document, show_text

    if common.password_stdin:
        raise UsageError(
            "--password-stdin has no meaning for config show", hint="leave it out: no password is asked for"
        )
    path = _path(file)
    configuration = read_configuration(path)
    exists = path.is_file()
    lines = TargetLines.of(path, read_text(path) if exists else "")
    targets = shown_targets(flags_of(common), os.environ, configuration, lines)
    default = configuration.default
    output.show(show_text(path, exists, default, targets), show_document(path, exists, default, targets))


_SETTING: Final = typer.Argument(metavar="TARGET.KEY", help="prod.port; or default.", autocompletion=keys)


@config.command("set")
@spread
def config_set(
    key: Annotated[str, _SETTING],
    new_value: Annotated[str, typer.Argument(metavar="VALUE", help="What it is from now on; '' takes the key out.")],
    file: File = None,
) -> None:
    """Change one key of the configuration file, and leave its comments as they are.

    What cannot be meant is refused, and nothing written. Passwords are: a command line is readable by everybody.
    Between several receivers of `notify` stand blanks.

    \b
    Examples:
      gpuops config set prod.password_file /etc/gpuops/prod.password
      gpuops config set default prod
    """
    from gpuops.config.vcenter.edit import change
    from gpuops.report.first_steps.config import ConfigSetDocument, changed_text

    path = _path(file)
    before, after = change(path, key, new_value)
    output.show(changed_text(path, key, before, after), ConfigSetDocument(str(path), key, before, after))


def _path(file: Path | None) -> Path:

    return config_file(os.environ) if file is None else file
