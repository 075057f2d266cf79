"""`[fleet]` of the configuration file: the PostgreSQL that runners share."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator

from gpuops.config.vcenter.journal_url import holds_password


class FleetEntry(BaseModel):
    """The whole table."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    url: str = Field(min_length=1, repr=False)
    """The database of the queue, and of the journal of each target that names none of its own."""

    vcenters: tuple[str, ...] = ()
    """Host names, or patterns of them, of vCenters (and of their brokers) that runners return by what that database
    says, where this file names them no more: passwords of this machine go there."""

    @field_validator("url")
    @classmethod
    def _without_password(cls, url: str) -> str:
        if holds_password(url):
            raise ValueError("no password belongs in this file: put it into ~/.pgpass")
        return url

    @field_validator("vcenters")
    @classmethod
    def _some_domain(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        if any(not each.strip("*?.") for each in hosts):
            raise ValueError("that is every host: name the domain of your vCenters, *.example.com")
        return hosts
