"""What the Ansible module `gpu_diagnosis_info` calls."""

from __future__ import annotations

from gpuops.api import Site
from gpuops.config.date_text import parse_since
from gpuops.extras.diagnosis.diagnosing import diagnose
from gpuops.extras.diagnosis.view import diagnosed_document
from gpuops.report.document import Document
from gpuops.tasks.perform import reading


@reading
def gpu_diagnosis_info(
    site: Site, vm: str | None = None, host: str | None = None, since: str | None = None
) -> Document:
    """Return which component slows VMs down, by stored measurements. Raises UsageError, VmNotFound, HostNotFound."""
    inventory = site.vcenter.inventory()
    begin = parse_since("--since", since, inventory.taken_at) if since is not None else None
    return {"diagnosis": diagnosed_document(diagnose(inventory, site, vm=vm, host=host, since=begin), inventory)}
