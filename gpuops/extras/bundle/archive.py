"""Makes the archive of `gpuops bundle`: reads a vCenter, hides its names, and checks and shows every file."""

from __future__ import annotations

import io
import json
import platform
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from typing import Annotated, Any, Final

from msgspec import UNSET, UnsetType

from gpuops import __version__
from gpuops.errors import Refused
from gpuops.execute.site import Site, catalog_of
from gpuops.extras.bundle.bundle_scenario import api_words, contact_document, utc, versions, world
from gpuops.extras.bundle.harmless import NameKind, Pseudonyms, strays
from gpuops.files.bundle_file import MANIFEST, SCENARIO
from gpuops.plan.core.rejection import some_names
from gpuops.report.document import DocumentRecord, Moment, PrintedDocument, as_values, printed
from gpuops.report.first_contact_view import FirstContactRecord, JudgedContact
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.text import count

CONTACT: Final = "first-contact.json"
_FIXED_TIME: Final = (1980, 1, 1, 0, 0, 0)
"""The time of every file in the archive, so that equal content makes equal archives."""
_SHOWN_CHARACTERS: Final = 72
"""The most characters of each file that are shown."""


class BundledFileRecord(DocumentRecord, frozen=True):
    """A file of a bundle."""

    name: str
    bytes: Annotated[int, "as it is, unpacked"]


@printed("gpuops-bundle", by="gpuops bundle, as the manifest of the archive")
class ManifestDocument(PrintedDocument, frozen=True):
    """What an archive for a bug report holds."""

    written: Moment
    site: Annotated[str, "the same in each bundle of one key"]
    files: Annotated[list[BundledFileRecord], "the others in it"]


@printed("bundle-name", by="gpuops bundle --reveal")
class BundleNameDocument(PrintedDocument, frozen=True):
    """What a word of a bundle stands for."""

    pseudonym: str
    name: str


@dataclass(frozen=True, slots=True)
class Bundle:
    """An archive whose texts are checked, so that it may be written."""

    files: Mapping[str, bytes]
    """The files of the archive by name, the manifest first."""
    names: Mapping[str, str]
    """The name behind each pseudonym. They are not written into the archive."""

    def pack(self) -> bytes:
        """Return the files as a ZIP file."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, content in self.files.items():
                file = zipfile.ZipInfo(name, _FIXED_TIME)
                file.external_attr = 0o600 << 16
                archive.writestr(file, content, zipfile.ZIP_DEFLATED)
        return buffer.getvalue()


def bundle(
    scenario: Mapping[str, Any],
    parts: Mapping[str, Any],
    names: Pseudonyms,
    written: datetime,
    api_words: Collection[str] = (),
) -> Bundle:
    """Return the archive of a scenario and further files (`parts`, by file name), after a check of every text.

    `api_words`: words of the vSphere API that may occur in the first contact. Raises Refused if a text in one of the
    files could identify the site.
    """
    documents = {SCENARIO: scenario, **parts}
    files = {name: _json_bytes(document) for name, document in documents.items()}
    manifest = as_values(ManifestDocument(Moment(utc(written)), names.of(NameKind.ID, "site"), file_records(files)))
    places = [
        place
        for name, document in {MANIFEST: manifest, **documents}.items()
        for place in strays(document, name, api_words if name == CONTACT else ())
    ]
    if places:
        problem = f"it would contain {count(len(places), 'text')} of this vCenter, at {some_names(places)}"
        hint = "this is a bug in gpuops: please report these places, without their texts"
        raise Refused(f"the bundle is not written: {problem}", hint=hint)
    return Bundle({MANIFEST: _json_bytes(manifest), **files}, names.real_names)


def _json_bytes(document: Any) -> bytes:
    return (json.dumps(document, indent=1, ensure_ascii=True) + "\n").encode("ascii")


def file_records(files: Mapping[str, bytes]) -> list[BundledFileRecord]:
    """Return the name and the size of each file."""
    return [BundledFileRecord(name, len(content)) for name, content in files.items()]


@printed("bundle", by="gpuops bundle")
class BundleDocument(PrintedDocument, frozen=True):
    """An archive for a bug report."""

    file: Annotated[str, "its path"]
    written: Annotated[bool, "false with --dry-run"]
    files: Annotated[list[BundledFileRecord], "what is in it, in its order"]
    first_contact: Annotated[FirstContactRecord | UnsetType, "with --first-contact"] = UNSET


def bundle_text(bundle: Bundle, path: str, *, written: bool) -> Shown:
    """Return the files with their sizes, and the beginning of each."""
    table = TextTable("file", "bytes", "begins", right=[1])
    for name, content in bundle.files.items():
        words = " ".join(content.decode("ascii").split())
        beginning = words if len(words) <= _SHOWN_CHARACTERS else f"{words[:_SHOWN_CHARACTERS]} ..."
        table.add_row(name, f"{len(content):,}", beginning)
    return (table, Text(f"{path}: {'written' if written else 'not written yet'}", "bold"))


def gather_bundle(
    site: Site, key: bytes, now: datetime, *, contact: bool = False
) -> tuple[Bundle, JudgedContact | None]:
    """Read this vCenter and return its bundle, with names hidden by the key. Writes nothing.

    `contact`: also add the first contact (which assumptions of gpuops hold), and return it with real names; else None.
    Raises Refused if a text of the site would get into the bundle, NotConnected and its subclasses.
    """
    from gpuops.api.first_contact import contact_inventory, judged_contact
    from gpuops.vsphere.connection import Connection

    judged = judged_contact(site) if contact else None
    inventory = judged.contact.inventory if judged is not None else contact_inventory(site)
    names = Pseudonyms(key)
    about = site.vcenter.about if isinstance(site.vcenter, Connection) else {}
    programs = {
        "gpuops": __version__,
        "python": platform.python_version(),
        "pyvmomi": metadata.version("pyvmomi"),
        "api_version": inventory.api_version,
        "vcenter": about.get("version") or "",
    }
    parts: dict[str, Any] = {"versions.json": versions(programs, about.get("build") or "", inventory)}
    words = api_words(judged) if judged is not None else frozenset[str]()
    if judged is not None:
        parts[CONTACT] = contact_document(judged, names, words)
    return bundle(world(inventory, catalog_of(inventory), names), parts, names, now, words), judged
