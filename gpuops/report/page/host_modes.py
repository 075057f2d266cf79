"""Modes and schedulers of GPUs, hosts of the same settings together: a fleet has few of them, and odd ones show."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.host import Host
from gpuops.plan.hosts.scheduler.rmpvmrl import Reading, Unread
from gpuops.plan.hosts.scheduler.state import GpuScheduler, HostScheduler, scheduler_of
from gpuops.report.document import DocumentRecord
from gpuops.report.monitoring.fleet import mode, reboot_pending


class HostModeRecord(DocumentRecord, frozen=True):
    """GPUs of the same settings; null = not known."""

    gpu: Annotated[str, "the model"]
    mode: Annotated[str, "what they take now"]
    scheduler: Annotated[str | None, "of their vGPUs, as it is configured"]
    scheduler_in_force: str | None
    reboot_pending: bool | None
    assignment_policy: str | None
    driver: Annotated[str | None, "version of the host's NVIDIA driver"]
    gpus: int
    hosts: Annotated[list[str], "names"]


def host_modes(hosts: Iterable[Host], catalog: Catalog) -> list[HostModeRecord]:
    """A record for each combination of settings, with the names of the hosts that have GPUs so set; null = unknown."""
    found: dict[_Settings, list[str]] = {}
    for host in hosts:
        scheduler = scheduler_of(host, catalog)
        for each in scheduler.gpus:
            found.setdefault(_settings(each, scheduler), []).append(host.name)
    ordered = sorted(found.items(), key=lambda item: tuple(map(str, item[0])))
    return [HostModeRecord(*settings, len(names), sorted(set(names))) for settings, names in ordered]


_Settings = tuple[str, str, str | None, str | None, bool | None, str | None, str | None]
"""The first fields of the record."""


def _settings(found: GpuScheduler, host: HostScheduler) -> _Settings:
    gpu = found.gpu
    note = found.note
    return (
        gpu.name,
        mode(gpu),
        note or _words(found.configured),
        note or _words(found.effective),
        reboot_pending(gpu) or found.reboot_pending,
        host.host.assignment_policy,
        host.driver.version if host.driver else None,
    )


def _words(reading: Reading | None) -> str | None:
    return None if reading is None or isinstance(reading, Unread) else str(reading)
