"""`gpuops bundle`: writes an archive for a bug report, which the simulator can load, without names of the site."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from gpuops.console import output
from gpuops.console.options import CommonOptions, HostShellOptions
from gpuops.console.spread import spread
from gpuops.errors import UsageError

FILE: Final = Path("gpuops-bundle.zip")


@spread
def bundle(
    common: CommonOptions,
    host_shell: HostShellOptions,
    save: Annotated[
        Path, typer.Option(metavar="FILE", help="Write the ZIP file here, mode 0600; the file must not exist.")
    ] = FILE,
    first_contact: Annotated[
        bool,
        typer.Option("--first-contact", help="Also check by reading which assumptions of gpuops hold in this vCenter."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the contents of the archive, and write nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write the archive without asking.")] = False,
    reveal: Annotated[
        str | None,
        typer.Option(metavar="PSEUDONYM", help="Show the real name behind this word of a bundle; reads no vCenter."),
    ] = None,
) -> None:
    """Write an archive for a bug report: this vCenter for the simulator, without its names, addresses and texts.

    Names become words such as vm-3fa2c81d09be, by a key in the state directory: a name becomes the same word in each
    bundle of this machine. The contents are shown before they are written. Changes nothing in vCenter.

    \b
    Examples:
      gpuops bundle --dry-run --vcenter sim:vdi
      gpuops bundle --yes --vcenter sim:vdi
      gpuops bundle --first-contact --dry-run --vcenter sim:lab
      gpuops capacity --vcenter sim:./gpuops-bundle.zip
    """
    from msgspec import UNSET

    from gpuops import clock
    from gpuops.console.opening import journal_of, open_site
    from gpuops.console.running import confirm
    from gpuops.execute.state.state_dir import default_state_dir
    from gpuops.extras.bundle.archive import (
        BundleDocument,
        BundleNameDocument,
        bundle_text,
        file_records,
        gather_bundle,
    )
    from gpuops.extras.bundle.harmless import key_of_bundles, name_behind, save_names
    from gpuops.files.private_file import write_new
    from gpuops.report.first_contact_view import FirstContactRecord, contact_text

    if reveal is not None:
        name = name_behind(default_state_dir(), reveal)
        output.show(f"{reveal}: {name}", BundleNameDocument(reveal, name))
        return
    file_exists = UsageError(f"{save} exists already", hint="choose another file with --save FILE")
    if not dry_run and os.path.lexists(save):
        raise file_exists
    state_dir, _ = journal_of(common)
    key = key_of_bundles(state_dir)
    with open_site(common) as site:
        host_shell.give_to(site)
        archive, judged = gather_bundle(site, key, clock.wall_clock(), contact=first_contact)
    if not dry_run:
        if not yes:
            confirm(bundle_text(archive, str(save), written=False), "the bundle is made to be given to others")
        save_names(state_dir, key, archive.names)  # before the archive: --reveal needs the names
        if not write_new(save, archive.pack()):
            raise file_exists
    text = bundle_text(archive, str(save), written=not dry_run)
    contact = UNSET if judged is None else FirstContactRecord.made_of(judged)
    document = BundleDocument(str(save), not dry_run, file_records(archive.files), contact)
    output.show(text if judged is None else (contact_text(judged), text), document)
