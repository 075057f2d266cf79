"""`[fleet]` of the configuration file: the PostgreSQL that runners share."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gpuops.config.decoding import Section
from gpuops.config.vcenter.journal_url import without_password
from gpuops.model.file_keys import Reads


def _some_domain(hosts: tuple[str, ...]) -> tuple[str, ...]:
    if any(not host.strip("*?.") for host in hosts):
        raise ValueError("that is every host: name the domain of your vCenters, *.example.com")
    return hosts


class FleetEntry(Section):
    """The whole table."""

    url: Annotated[str, Reads(without_password, Annotated[str, Meta(min_length=1)])]
    """The database of the queue, and of the journal of each target that names none of its own."""

    vcenters: Annotated[tuple[str, ...], Reads(_some_domain, tuple[str, ...])] = ()
    """Host names, or patterns of them, of vCenters (and of their brokers) that runners return by what that database
    says, where this file names them no more: passwords of this machine go there."""
