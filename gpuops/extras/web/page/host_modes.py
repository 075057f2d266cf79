"""Modes and schedulers of GPUs, grouped by settings: a fleet has few combinations, so that exceptions stand out."""

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
    """Return a record for each combination of settings, with the names of the hosts that have it; null = unknown."""
    names_by_settings: dict[_Settings, list[str]] = {}
    for host in hosts:
        scheduler = scheduler_of(host, catalog)
        for gpu_scheduler in scheduler.gpus:
            names_by_settings.setdefault(_settings(gpu_scheduler, scheduler), []).append(host.name)
    ordered = sorted(names_by_settings.items(), key=lambda group: tuple(map(str, group[0])))
    return [HostModeRecord(*settings, len(names), sorted(set(names))) for settings, names in ordered]


_Settings = tuple[str, str, str | None, str | None, bool | None, str | None, str | None]
"""The first fields of the record."""


def _settings(gpu_scheduler: GpuScheduler, host: HostScheduler) -> _Settings:
    gpu = gpu_scheduler.gpu
    note = gpu_scheduler.note
    return (
        gpu.name,
        mode(gpu),
        note or _words(gpu_scheduler.configured),
        note or _words(gpu_scheduler.effective),
        reboot_pending(gpu) or gpu_scheduler.reboot_pending,
        host.host.assignment_policy,
        host.driver.version if host.driver else None,
    )


def _words(reading: Reading | None) -> str | None:
    return None if reading is None or isinstance(reading, Unread) else str(reading)
