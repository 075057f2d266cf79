"""What the Ansible module `gpu_sizing_info` calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuops.config.date_text import parse_since
from gpuops.extras.sizing.size_request import SizeRequest
from gpuops.extras.sizing.sizing import size_by_history, size_stated
from gpuops.extras.sizing.view import sizing_document
from gpuops.tasks.perform import TaskResult, unchanged_result
from gpuops.tasks.task_connection import ConnectionArguments, open_site, policy_of, request_of


def gpu_sizing_info(
    connection: ConnectionArguments,
    *,
    workloads: str | None = None,
    busy: str | None = None,
    overlap: str | None = None,
    policy: str | None = None,
    pool: str | None = None,
    since: str | None = None,
    **options: Any,
) -> TaskResult:
    """Return how many VMs may share a GPU; `options` are fields of `SizeRequest`.

    vCenter is read only if the request does not state how busy VMs are: the history of VMs shows that then.

    Raises UsageError, PolicyError, Refused, VmNotFound, VmAmbiguous.
    """
    request = request_of(SizeRequest, options)
    of_history = {"--policy": policy, "--pool": pool, "--since": since}
    file = Path(workloads).expanduser() if workloads else None
    stated = size_stated(request, file, busy, overlap, of_history)
    if stated is not None:
        return unchanged_result({"sizing": sizing_document(stated)})
    rules = policy_of(policy)
    site, warnings = open_site(connection)
    with site:
        inventory = site.vcenter.inventory()
        begin = parse_since("--since", since, inventory.taken_at) if since is not None else None
        sizing = size_by_history(request, inventory, site, rules, pool=pool, since=begin)
    return unchanged_result({"sizing": sizing_document(sizing)}, warnings)
