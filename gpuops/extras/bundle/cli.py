"""`gpuops bundle`: an archive for a bug report, without a name of this site, which the simulator plays."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gpuops.console import output
from gpuops.console.options import CommonOptions, HostShellOptions
from gpuops.console.spread import spread
from gpuops.errors import UsageError

if TYPE_CHECKING:
    from gpuops.extras.bundle.archive import Bundle

FILE: Final = Path("gpuops-bundle.zip")


@spread
def bundle(
    common: CommonOptions,
    host_shell: HostShellOptions,
    save: Annotated[
        Path, typer.Option(metavar="FILE", help="The ZIP file that is written, mode 0600; never over another one.")
    ] = FILE,
    first_contact: Annotated[
        bool,
        typer.Option(
            "--first-contact", help="Also judge by a read-only look which rules of gpuops hold in this vCenter."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be in it, and write nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write it without asking.")] = False,
    reveal: Annotated[
        str | None,
        typer.Option(metavar="PSEUDONYM", help="Tell what this word of a bundle stands for; asks no vCenter."),
    ] = None,
) -> None:
    """Write an archive for a bug report: this vCenter for the simulator, without its names, addresses and texts.

    Names become words such as vm-3fa2c81d09be, by a key in the state directory: the same name is the same word in each
    bundle of this machine. What is in it is shown first. Changes nothing in vCenter.

    \b
    Examples:
      gpuops bundle --dry-run --vcenter sim:vdi
      gpuops bundle --yes --vcenter sim:vdi
      gpuops bundle --first-contact --dry-run --vcenter sim:lab
      gpuops capacity --vcenter sim:./gpuops-bundle.zip
    """
    if reveal is not None:
        _tell(reveal)
        return
    if not dry_run and os.path.lexists(save):
        raise UsageError(f"{save} is there already", hint="name another one with --save")
    from gpuops import clock
    from gpuops.console.opening import journal_of, open_site
    from gpuops.console.running import confirm
    from gpuops.extras.bundle.archive import BundleDocument, bundle_text, gather_bundle
    from gpuops.extras.bundle.bundle_names import fresh_key, known_key
    from gpuops.report.first_contact import contact_text

    state_dir, _ = journal_of(common)
    key = known_key(state_dir) or fresh_key()
    with open_site(common) as site:
        host_shell.give_to(site)
        gathered, judged = gather_bundle(site, key, clock.wall_clock(), contact=first_contact)
    if not dry_run:
        if not yes:
            confirm(bundle_text(gathered, str(save), written=False), "a bundle is to be given to others")
        _write(gathered, key, state_dir, save)
    text = bundle_text(gathered, str(save), written=not dry_run)
    document = BundleDocument.of_bundle(gathered, str(save), judged, written=not dry_run)
    output.show(text if judged is None else (contact_text(judged), text), document)


def _write(gathered: Bundle, key: bytes, state_dir: Path, file: Path) -> None:
    """Write the bundle, but first the key and the names: without them its names cannot be looked up."""
    from gpuops.extras.bundle.bundle_names import key_for_ever, remember
    from gpuops.files.private_file import write_new

    if key_for_ever(state_dir, key) != key:
        raise UsageError("another bundle was written here at the same time", hint="type it again")
    remember(state_dir, gathered.names)
    if not write_new(file, gathered.pack()):
        raise UsageError(f"{file} is there already", hint="name another one with --save")


def _tell(pseudonym: str) -> None:
    from gpuops.execute.state.state_dir import default_state_dir
    from gpuops.extras.bundle.archive import BundleNameDocument, name_text
    from gpuops.extras.bundle.bundle_names import name_behind

    whole, name = name_behind(default_state_dir(), pseudonym)
    output.show(name_text(whole, name), BundleNameDocument(whole, name))
