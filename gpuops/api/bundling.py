"""Gathers what a bundle for a bug report holds: the snapshot, versions, settings, and the last nights and changes."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from datetime import datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpuops import __version__
from gpuops.execute.site import Site, catalog_of

if TYPE_CHECKING:
    from gpuops.config.vcenter.origins import Setting
    from gpuops.report.bundle.archive import Bundle
    from gpuops.report.bundle.setup import Versions
    from gpuops.report.first_contact import JudgedContact

PAST: Final = timedelta(days=30)
MOST_EVENTS: Final = 200
"""Nights and changes that a bundle has at the most, the newest."""


def bundle(
    site: Site,
    key: bytes,
    settings: Iterable[Setting],
    now: datetime,
    journal: tuple[Path, str],
    *,
    contact: bool = False,
) -> tuple[Bundle, JudgedContact | None]:
    """A bundle of this vCenter, its names hidden by the key. Nothing is written.

    `contact`: also all that the table of assumptions is judged by; it is returned as it was read, with names.

    `journal`: the state directory, and the URL of the journal if it is kept in a database. Raises Refused if a text of
    the site would get into the bundle, NotConnected and its subclasses, StateDamaged.
    """
    from gpuops.api.first_contact import contact_inventory, judged_contact
    from gpuops.execute.past.history import history
    from gpuops.report.bundle.archive import CONTACT
    from gpuops.report.bundle.archive import bundle as packed
    from gpuops.report.bundle.contact import ContactWriter, api_words
    from gpuops.report.bundle.pseudonyms import Pseudonyms
    from gpuops.report.bundle.runs import PastWriter
    from gpuops.report.bundle.setup import configuration_document, versions_document
    from gpuops.report.bundle.world import world

    judged = judged_contact(site) if contact else None
    inventory = judged.contact.inventory if judged is not None else contact_inventory(site)
    catalog, names = catalog_of(inventory), Pseudonyms(key)
    past = history(*journal).of_vcenter(inventory.vcenter).only(since=now - PAST, kind=None, limit=MOST_EVENTS)
    parts: dict[str, Any] = {
        "versions.json": versions_document(_versions(site), inventory),
        "configuration.json": configuration_document(settings),
        "runs.json": PastWriter(inventory, catalog, names).document(past),
    }
    words = api_words(judged) if judged is not None else frozenset[str]()
    if judged is not None:
        parts[CONTACT] = ContactWriter(names, words).document(judged)
    return packed(world(inventory, catalog, names), parts, names, now, words), judged


def _versions(site: Site) -> Versions:
    from gpuops.report.bundle.setup import Versions
    from gpuops.vsphere.connection import Connection

    about = site.vcenter.about if isinstance(site.vcenter, Connection) else {}
    return Versions(
        __version__,
        platform.python_version(),
        metadata.version("pyvmomi"),
        about.get("version") or "",
        about.get("build") or "",
    )
