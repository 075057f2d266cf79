"""`gpuops config`, `setup` and `login`: the configuration file, by one command or by questions and answers."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from gpuops.config.user_paths import config_file
from gpuops.console import output
from gpuops.console.commands import VerbTable
from gpuops.console.completion import configured_targets
from gpuops.console.options import CommonOptions
from gpuops.console.spread import spread
from gpuops.errors import GpuopsError, NotConnected, Refused, TargetError, UsageError
from gpuops.files.file import read_text, templates
from gpuops.files.private_file import write_new, write_private
from gpuops.model.vcenter.vm import PowerState

if TYPE_CHECKING:
    from gpuops.api import Site
    from gpuops.config.vcenter.destination import Address
    from gpuops.vsphere.transport.network import ServerCertificate

Result = TypeVar("Result")
_TRIES: Final = 3
"""How often each question is asked: vCenter Single Sign-On locks an account after five refused logins."""
_ROLES: Final = "roles/one-account.yaml"
_ADMINISTRATOR: Final = "administrator@vsphere.local"
_PAIRS_TRIED: Final = 6
"""Pairs of a VM and a profile that are planned for the suggested attach, at most."""
_WITHOUT_TERMINAL: Final = (
    "run it at a terminal; or gpuops config init --target NAME --address HOST --username NAME --password-file FILE "
    "--ca-file FILE, then gpuops login test"
)


@dataclass
class _Answers:
    """What is known of the vCenter so far, and of the files that are to be written."""

    path: Path
    """The configuration file."""
    address: Address
    certificate: ServerCertificate | None
    """None = without TLS."""
    name: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    text: str = ""
    """The configuration file with this vCenter in it."""

    def files(self) -> dict[Path, str]:
        """Return the password, and the certificate if only the user's answer makes it trusted."""
        files = {self.path.parent / f"{self.name}.password": f"{self.password}\n"}
        if self.certificate is not None and not self.certificate.trusted:
            files[self.path.parent / f"{self.name}.pem"] = self.certificate.pem
        return files

    def target(self) -> dict[str, Any]:
        """Return the keys of [targets.NAME]."""
        can_store_bare_host = self.address.tls and ":" not in self.address.host
        password_file, *certificate_file = map(str, self.files())
        target = {"host": self.address.host if can_store_bare_host else str(self.address), "port": self.address.port}
        target |= {"username": self.username, "password_file": password_file}
        if certificate_file and self.certificate is not None:
            target |= {"ca_file": certificate_file[0], "thumbprint": self.certificate.sha256}
        return target

    @contextmanager
    def site(self, username: str, password: str) -> Iterator[Site]:
        """Log in with the settings that `_write` will store. Raises NotConnected or a subclass."""
        from gpuops.api import connect_checked
        from gpuops.config.vcenter.layers import Flags
        from gpuops.config.vcenter.sources import resolve
        from gpuops.config.vcenter.targets import parsed_configuration
        from gpuops.console.opening import warn
        from gpuops.model.vcenter.target import Secret

        with TemporaryDirectory(prefix="gpuops-setup-") as folder:
            certificate_file = Path(folder) / "vcenter.pem"
            certificate_file.write_text(self.certificate.pem if self.certificate else "", encoding="ascii")
            flags = Flags(
                vcenter=self.name,
                username=username,
                password=Secret(password),
                ca_file=certificate_file if self.certificate is not None and not self.certificate.trusted else None,
            )
            destination = resolve(flags, {}, parsed_configuration(self.text, self.path))
            with connect_checked(destination, warn, caller=["setup"]) as site:
                yield site


@spread
def setup(
    address: Annotated[
        str | None, typer.Option(metavar="HOST", help="The address of the vCenter; without it setup asks.")
    ] = None,
    username: Annotated[str | None, typer.Option(metavar="NAME", help="The account; without it setup asks.")] = None,
) -> None:
    """Set up a vCenter: ask for its address and a login, try them, and write the configuration file.

    Shows the certificate of the vCenter, and asks whether to trust one that this machine's certificate authorities did
    not sign. The password is kept in a file next to the configuration file; only you can read it. Nothing is written
    before the login worked. Changes nothing in vCenter, unless you agree to have roles made.

    \b
    Examples:
      gpuops setup
      gpuops setup --address vc.example.com --username gpuops@vsphere.local
    """
    # each option is popped when it is used: after a failed try, its question is asked
    preset = {"address": address, "username": username}
    _require_terminal(preset)
    answers = _with_tries(lambda: _ask_address(config_file(os.environ).absolute(), preset.pop("address", None)))
    preset["username"] = username or answers.address.username
    _with_tries(lambda: _choose_name(answers))
    attach_to_try = _with_tries(lambda: _log_in(answers, preset.pop("username", None)))
    _write(answers)
    roles_made = _offer_roles(answers)
    _show_next_commands(answers, attach_to_try, roles_made=roles_made)


def _require_terminal(preset: Mapping[str, str | None]) -> None:
    """Raise UsageError, with the missing answers, if there is no terminal."""
    if not sys.stdin.isatty():
        missing = [*(f"--{option}" for option, answer in preset.items() if not answer), "the password"]
        raise UsageError(
            f"setup asks its questions at a terminal, and there is none; missing: {', '.join(missing)}",
            hint=_WITHOUT_TERMINAL,
        )


def _with_tries(step: Callable[[], Result]) -> Result:
    """Do a step that asks; after a wrong answer print the reason, and ask again."""
    for _ in range(_TRIES - 1):
        try:
            return step()
        except (NotConnected, TargetError, UsageError) as error:
            output.refused([error.message])
            if error.hint:
                output.note(f"next: {error.hint}")
    return step()


def _ask(question: str, default: str = "") -> str:
    sys.stderr.write(f"{question}{f' [{default}]' if default else ''}: ")
    sys.stderr.flush()
    if not (line := sys.stdin.readline()):
        raise Refused("the input ended before setup was complete", hint="run gpuops setup in a terminal")
    if not (answer := line.strip() or default):
        raise UsageError("nothing was typed", hint="type an answer; Ctrl-C ends setup")
    return answer


def _agrees(question: str) -> bool:
    return _ask(question, "y/N").lower() in ("y", "yes")


def _ask_password(question: str) -> str:
    from gpuops.console.opening import ask_secret

    try:
        password = ask_secret(f"{question}: ")
    except EOFError:
        raise Refused("the input ended before setup was complete", hint="run gpuops setup in a terminal") from None
    if not password:
        raise UsageError("no password was typed", hint="type the password; Ctrl-C ends setup")
    return password


def _ask_address(path: Path, host: str | None) -> _Answers:
    """Ask for the address, and whether its certificate is to be trusted. Raises Refused for a no."""
    from gpuops.config.vcenter.destination import Address
    from gpuops.model.vcenter.target import Secret, Target
    from gpuops.vsphere.transport.network import presented_certificate

    text = host or _ask("Address of the vCenter, as vc.example.com")
    if text.startswith("sim:"):
        raise UsageError(f"{text} needs no setup", hint=f"gpuops inventory --vcenter {text}")
    address = Address.parse(text)
    if address.password is not None:
        raise TargetError("an address must not contain a password", hint="setup asks for it later")
    if not address.tls:
        if not address.is_this_machine:
            raise TargetError(f"a connection to {text} is not encrypted", hint="type the address without http://")
        return _Answers(path, address, None)
    certificate = presented_certificate(Target(address.host, "", Secret(""), address.port))
    bytes_shown = re.findall("..", certificate.sha256.upper())
    output.note((f"certificate of {address.host}", f"  authority  {certificate.authority}"))
    output.note((f"  SHA-256    {':'.join(bytes_shown[:16])}:", f"             {':'.join(bytes_shown[16:])}"))
    if certificate.trusted:
        output.note("  trusted    yes: an authority of this machine vouches for it")
        return _Answers(path, address, certificate)
    output.note("  trusted    no: no authority of this machine vouches for it")
    output.note("Compare the SHA-256 with what the vSphere Client shows under Administration > Certificates.")
    if not _agrees("Trust this certificate, and no other at this address?"):
        hint = "gpuops config init --ca-file FILE trusts an authority instead (gpuops help targets)"
        raise Refused("the certificate is not trusted: nothing was written", hint=hint)
    return _Answers(path, address, certificate)


def _choose_name(answers: _Answers) -> None:
    """Ask what the vCenter is called. Raises UsageError for a name that is in use, or that cannot be one."""
    from gpuops.config.vcenter.edit import with_target

    first_label = answers.address.host.partition(".")[0]
    default = first_label if re.fullmatch(r"[a-z][a-z0-9_-]*", first_label) else "vcenter"
    answers.name = _ask("Name of this vCenter in gpuops", default)
    # only to check the name: the file is written at the end
    with_target(answers.path, answers.name, {"host": answers.target()["host"]})
    if existing := next(filter(Path.exists, answers.files()), None):
        raise UsageError(f"{existing} already exists", hint="choose another name, or remove the file")


def _log_in(answers: _Answers, username: str | None) -> tuple[str, str] | None:
    """Ask for account and password, and test them. Return a VM and a profile to try an attach with, if there are any.

    Raises NotConnected or a subclass, and Refused if the answers end.
    """
    from gpuops.api import login_test
    from gpuops.config.vcenter.edit import with_target
    from gpuops.report.first_steps.config_view import login_text

    answers.username = username or _ask("Account for gpuops")
    answers.password = _ask_password(f"Password of {answers.username}")
    answers.text = with_target(answers.path, answers.name, answers.target())
    with answers.site(answers.username, answers.password) as site:
        output.note(login_text(login_test(site)))
        return _attach_to_try(site)


def _attach_to_try(site: Site) -> tuple[str, str] | None:
    """Return a VM that is off and a profile that it can have now; if no pair fits, the first one; None without any."""
    from gpuops.api import run
    from gpuops.plan.vm.attach import Attach

    inventory = site.vcenter.inventory()
    vms = [vm for vm in inventory.vms.values() if vm.power is PowerState.OFF and not vm.template]
    # three VMs with each profile: the pair is only an example
    names = sorted(vm.name for vm in vms if not vm.devices)[:3]
    pairs = [(name, profile) for profile in inventory.offered_profiles for name in names][:_PAIRS_TRIED]
    for name, profile in pairs:
        with suppress(GpuopsError):
            if run(Attach(vm=name, profile=profile), site, apply=False).plan.feasible:
                return name, profile
    return pairs[0] if pairs else None


def _write(answers: _Answers) -> None:
    """Write all files, or none of them. Raises UsageError."""
    from gpuops.config.vcenter.edit import with_target

    written = []
    try:
        answers.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for file, text in answers.files().items():
            if not write_new(file, text):
                raise UsageError(f"{file} already exists", hint="remove it, then run gpuops setup again")
            written.append(file)
        answers.text = with_target(answers.path, answers.name, answers.target())  # it may have changed since the login
        write_private(answers.path.resolve(), answers.text, like=answers.path if answers.path.exists() else None)
    except BaseException as error:  # Ctrl-C too
        for file in written:
            file.unlink(missing_ok=True)
        if not isinstance(error, OSError | UsageError):
            raise
        raise UsageError(
            f"nothing was written: {error}", hint="to write it elsewhere, set GPUOPS_CONFIG to another path"
        ) from error


def _offer_roles(answers: _Answers) -> bool:
    """Offer to make the roles that gpuops needs, and return whether they were made.

    An error here does not undo the setup.
    """
    from gpuops.api import roles
    from gpuops.config.role_file import load_roles
    from gpuops.report.monitoring.doctor_view import roles_text

    try:
        if not _agrees("Make the roles for gpuops in this vCenter now, as its administrator?"):
            return False
        administrator = _ask("Account of an administrator", _ADMINISTRATOR)
        is_same = administrator.casefold() == answers.username.casefold()
        password = answers.password if is_same else _ask_password(f"Password of {administrator}")
        with answers.site(administrator, password) as site:
            output.note(roles_text(roles(load_roles(templates()[_ROLES]), site, apply=True)))
            return True
    except GpuopsError as error:
        output.refused([f"not all roles were made: {error.message}"])
        output.note(f"next: gpuops template write, then gpuops roles apply --file templates/{_ROLES}")
        return False


def _show_next_commands(answers: _Answers, attach_to_try: tuple[str, str] | None, *, roles_made: bool) -> None:
    """Print which files were written, and the commands to type next.

    `attach_to_try` are the VM and the profile of the attach that is suggested; None = placeholders are shown.
    """
    from gpuops.config.vcenter.targets import parsed_configuration
    from gpuops.report.first_steps.config_view import SetupDocument, setup_text

    is_default = parsed_configuration(answers.text, answers.path).default == answers.name
    vcenter = "" if is_default else f" --vcenter {answers.name}"
    vm, profile = attach_to_try or ("VM", "PROFILE")
    attach = f"gpuops attach --vm {shlex.quote(vm)} --profile {shlex.quote(profile)} --dry-run"
    commands = [f"{command}{vcenter}" for command in ("gpuops inventory", attach, "gpuops doctor")]
    files = [answers.path, *answers.files()]
    output.show(setup_text(files, commands), SetupDocument(answers.name, [*map(str, files)], roles_made, [*commands]))


login = VerbTable("login", "Test the login to a vCenter.")


@login.callback()
def _group() -> None:
    """Test the login to a vCenter."""


@login.command("test")
@spread
def login_test(common: CommonOptions) -> None:
    """Test a login, its privileges for each command, and whether VI/JSON and SOAP agree.

    Missing privileges are listed with the objects that they are missing on; the test succeeds nevertheless.

    Inventories are read over VI/JSON (vCenter 8.0 U1 and later), which is faster, once both gave equal snapshots here;
    the state directory stores this for the vCenter and its version. Changes nothing in vCenter.

    \b
    Example:
      gpuops login test --vcenter sim:lab
    """
    from gpuops.api import login_test as test_login
    from gpuops.console.opening import open_site
    from gpuops.report.first_steps.config_view import LoginTestDocument, login_text

    with open_site(common) as site:
        test = test_login(site)
    output.show(login_text(test), LoginTestDocument.made_of(test))


config = VerbTable("config", "Write, show and change the configuration file: the vCenters of this machine.")
File = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Another file than $GPUOPS_CONFIG or ~/.config/gpuops/config.toml."),
]


def keys(incomplete: str) -> list[str]:
    """Return `default`, and TARGET.KEY of each target in the configuration file."""
    from gpuops.config.decoding import keys_of
    from gpuops.config.vcenter.targets import TABLES, NamedTarget

    settable_keys = [key for key in keys_of(NamedTarget) if key not in TABLES]
    key_paths = [f"{name}.{key}" for name in configured_targets() for key in settable_keys]
    return [key_path for key_path in ["default", *key_paths] if key_path.startswith(incomplete)]


@config.command("init")
@spread
def config_init(
    target: Annotated[
        str | None, typer.Option(metavar="NAME", help="The name of the first target, for --vcenter NAME.")
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
    """Write a first configuration file with comments, mode 0600. An existing file is never overwritten.

    \b
    Examples:
      gpuops config init
      gpuops config init --target prod --address vc.example.com --username gpuops@vsphere.local
    """
    from gpuops.config.vcenter.edit import first_configuration

    settings = {"host": address, "username": username, "password_file": password_file, "ca_file": ca_file}
    path = _path(file)
    first_configuration(path, target, {key: str(setting) for key, setting in settings.items() if setting is not None})
    from gpuops.report.first_steps.config_view import ConfigInitDocument, written_text

    output.show(written_text(path, filled=address is not None), ConfigInitDocument(str(path)))


@config.command("show")
@spread
def config_show(common: CommonOptions, file: File = None) -> None:
    """Show the settings in force for each target, and where each comes from. Connects to nothing.

    For a password it shows only whether it is set, and where.

    \b
    Examples:
      gpuops config show
      gpuops config show --vcenter sim:lab
    """
    from gpuops.config.vcenter.origins import TargetLines, shown_targets
    from gpuops.config.vcenter.sources import read_configuration
    from gpuops.console.opening import flags_of
    from gpuops.report.first_steps.config_view import show_document, show_text

    if common.password_stdin:
        raise UsageError("config show does not use a password", hint="remove --password-stdin")
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
    new_value: Annotated[str, typer.Argument(metavar="VALUE", help="The new value; '' removes the key.")],
    file: File = None,
) -> None:
    """Change one key of the configuration file, and leave its comments as they are.

    An invalid key or value is refused, and nothing is written. Passwords are refused too, because other users can read
    a command line. Separate several receivers of `notify` with blanks.

    \b
    Examples:
      gpuops config set prod.password_file /etc/gpuops/prod.password
      gpuops config set default prod
    """
    from gpuops.config.vcenter.edit import change
    from gpuops.report.first_steps.config_view import ConfigSetDocument, changed_text

    path = _path(file)
    before, after = change(path, key, new_value)
    output.show(changed_text(path, key, before, after), ConfigSetDocument(str(path), key, before, after))


def _path(file: Path | None) -> Path:
    return config_file(os.environ) if file is None else file
