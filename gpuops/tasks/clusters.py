"""Tasks about clusters of VMs for training. The modules `gpu_cluster` and `gpu_cluster_info` call them."""

from __future__ import annotations

from pathlib import Path

from gpuops.api import Site, cluster_create, cluster_delete, cluster_show
from gpuops.config.cluster_file import load_cluster
from gpuops.errors import UsageError
from gpuops.plan.cluster.answers import ClusterMade, ClusterRemoved
from gpuops.report.document import Document
from gpuops.report.workloads.cluster import ClusterCreateDocument, ClusterDeleteDocument, ShownTrainingClusterRecord
from gpuops.tasks.connection import ConnectionArguments, open_site
from gpuops.tasks.result import PARTLY, REFUSED, TaskResult, difference, reading, task_result


def gpu_cluster(
    connection: ConnectionArguments, state: str, file: str | None, name: str | None, *, resume: bool, apply: bool
) -> TaskResult:
    """Make the cluster of a file, or remove it by its file or its name.

    Raises UsageError for a file or options that mean nothing, and whatever `gpuops cluster` raises.
    """
    wish = load_cluster(Path(file).expanduser()) if file is not None else None
    if state == "present" and wish is None:
        raise UsageError("state=present needs the file of the cluster", hint="templates/cluster.yaml is one")
    site, warnings = open_site(connection)
    with site:
        if state == "present" and wish is not None:
            return _made(cluster_create(wish, site, apply=apply, keep=resume, consent=lambda plan: None), warnings)
        return _removed(cluster_delete(wish.name if wish is not None else name or "", site, apply=apply), warnings)


@reading
def gpu_cluster_info(site: Site, name: str | None = None) -> Document:
    """The clusters of a vCenter, or the one of this name, which may be none."""
    shown = (cluster for cluster in cluster_show(None, site) if name in (None, cluster.name))
    return {"clusters": list(map(ShownTrainingClusterRecord.made_of, shown))}


def _made(made: ClusterMade, warnings: list[str]) -> TaskResult:
    document = ClusterCreateDocument.made_of(made)
    failed = [reason for reason in (made.failed, *made.left) if reason]
    reasons = [*(rejection.line for rejection in made.plan.rejections), *failed]
    changes = {member.name: [member.host, *member.does] for member in document.members if member.does}
    diff = [difference(vm, "", "\n".join([*lines, ""])) for vm, lines in changes.items()]
    headline = ("all that was made is removed again" if made.undone else PARTLY) if made.failed else REFUSED
    result = {"changed": made.changed, "diff": diff, "cluster": document}
    said = (*made.plan.reasons, *failed)
    return task_result(result, made.exit_code, reasons, (*warnings, *made.plan.warnings), headline, *said)


def _removed(removed: ClusterRemoved, warnings: list[str]) -> TaskResult:
    document = ClusterDeleteDocument.made_of(removed)
    reasons = [*(rejection.line for rejection in removed.rejections), *removed.left]
    diff = [difference(member.vm.name, "is there\n", "") for member in removed.vms if not removed.rejections]
    result = {"changed": document.changed, "diff": diff, "cluster": document}
    said = (*removed.reasons, *removed.left)
    return task_result(result, removed.exit_code, reasons, warnings, PARTLY if removed.left else REFUSED, *said)
