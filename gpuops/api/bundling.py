"""Gathers what a bundle for a bug report holds: the snapshot, versions, settings, and the last nights and changes."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from datetime import datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuops import __version__
from gpuops.execute.site import Site, catalog_of

if TYPE_CHECKING:
    from gpuops.config.origins import Setting
    from gpuops.report.bundle.archive import Bundle
    from gpuops.report.bundle.setup import Versions

PAST: Final = timedelta(days=30)
MOST_EVENTS: Final = 200
"""Nights and changes that a bundle has at the most, the newest."""


def bundle(site: Site, key: bytes, settings: Iterable[Setting], now: datetime, journal: tuple[Path, str]) -> Bundle:
    """A bundle of this vCenter, its names hidden by the key. Nothing is written.

    `journal`: the state directory, and the URL of the journal where it is not kept there. Raises Refused where a text
    of the site would get into it, NotConnected in its kinds, StateDamaged.
    """
    from gpuops.execute.past.history import history
    from gpuops.plan.core.scope import gpu_hosts
    from gpuops.report.bundle.archive import bundle as packed
    from gpuops.report.bundle.pseudonyms import Pseudonyms
    from gpuops.report.bundle.runs import PastWriter
    from gpuops.report.bundle.setup import configuration_document, versions_document
    from gpuops.report.bundle.world import world

    inventory = site.with_vgpus(site.vcenter.inventory())
    inventory = site.hosts.with_settings(inventory, [host.ref for host in gpu_hosts(inventory) if host.connected])
    catalog, names = catalog_of(inventory), Pseudonyms(key)
    past = history(*journal).of_vcenter(inventory.vcenter).only(since=now - PAST, kind=None, limit=MOST_EVENTS)
    parts = {
        "versions.json": versions_document(_versions(site), inventory),
        "configuration.json": configuration_document(settings),
        "runs.json": PastWriter(inventory, catalog, names).document(past),
    }
    return packed(world(inventory, catalog, names), parts, names, now)


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
