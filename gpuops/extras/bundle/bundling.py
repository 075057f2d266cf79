"""Gathers what a bundle for a bug report holds: the snapshot and versions, and what a first contact read."""

from __future__ import annotations

import platform
from datetime import datetime
from importlib import metadata
from typing import TYPE_CHECKING, Any

from gpuops import __version__
from gpuops.execute.site import Site, catalog_of

if TYPE_CHECKING:
    from gpuops.extras.bundle.archive import Bundle
    from gpuops.report.first_contact import JudgedContact


def bundle(site: Site, key: bytes, now: datetime, *, contact: bool = False) -> tuple[Bundle, JudgedContact | None]:
    """Return a bundle of this vCenter, its names hidden by the key. Nothing is written.

    `contact`: also all that the table of assumptions is judged by; it is returned as it was read, with names.

    Raises Refused if a text of the site would get into the bundle, NotConnected and its subclasses.
    """
    from gpuops.api.first_contact import contact_inventory, judged_contact
    from gpuops.extras.bundle.archive import CONTACT
    from gpuops.extras.bundle.archive import bundle as packed
    from gpuops.extras.bundle.contact import api_words, contact_document
    from gpuops.extras.bundle.pseudonyms import Pseudonyms
    from gpuops.extras.bundle.world import versions, world
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
    return packed(world(inventory, catalog_of(inventory), names), parts, names, now, words), judged
