"""Tasks about clusters of VMs for training. The modules `gpu_cluster` and `gpu_cluster_info` call them."""

from __future__ import annotations

from pathlib import Path

from gpuops.api import Site
from gpuops.errors import UsageError
from gpuops.extras.clusters.answers import ClusterMade, ClusterRemoved
from gpuops.extras.clusters.cluster_file import load_cluster
from gpuops.extras.clusters.creating import create_cluster as cluster_create
from gpuops.extras.clusters.existing import delete_cluster as cluster_delete
from gpuops.extras.clusters.existing import read_clusters as cluster_show
from gpuops.extras.clusters.view import ClusterCreateDocument, ClusterDeleteDocument
from gpuops.report.document import Document
from gpuops.tasks.perform import PARTLY, REFUSED, TaskResult, difference, reading, task_result
from gpuops.tasks.task_connection import ConnectionArguments, open_site


def gpu_cluster(
    connection: ConnectionArguments, state: str, file: str | None, name: str | None, *, resume: bool, apply: bool
) -> TaskResult:
    """Make the cluster of a file, or remove it by its file or its name.

    Raises UsageError for a file or options that mean nothing, and whatever `gpuops cluster` raises.
    """
    wish = load_cluster(Path(file).expanduser()) if file is not None else None
    if state == "present" and wish is None:
        raise UsageError("state=present needs the file of the cluster", hint="set file, see templates/cluster.yaml")
    site, warnings = open_site(connection)
    with site:
        if state == "present" and wish is not None:
            return _creation_result(
                cluster_create(wish, site, apply=apply, keep=resume, consent=lambda plan: None), warnings
            )
        return _removal_result(
            cluster_delete(wish.name if wish is not None else name or "", site, apply=apply), warnings
        )


@reading
def gpu_cluster_info(site: Site, name: str | None = None) -> Document:
    """Return the clusters of a vCenter, or the one of this name, which may be none."""
    return {"clusters": [cluster for cluster in cluster_show(None, site) if name in (None, cluster.name)]}


def _creation_result(outcome: ClusterMade, warnings: list[str]) -> TaskResult:
    document = ClusterCreateDocument.made_of(outcome)
    failed = [reason for reason in (outcome.failed, *outcome.left) if reason]
    reasons = [*(rejection.line for rejection in outcome.plan.rejections), *failed]
    changes = {member.name: [member.host, *member.does] for member in document.members if member.does}
    diff = [difference(vm, "", "\n".join([*lines, ""])) for vm, lines in changes.items()]
    headline = ("all that was made is removed again" if outcome.undone else PARTLY) if outcome.failed else REFUSED
    document_of_task = {"changed": outcome.changed, "diff": diff, "cluster": document}
    # the error names each problem once; `reasons` has a line for each host and VM
    reasons_said = (*outcome.plan.reasons, *failed)
    return task_result(
        document_of_task, outcome.exit_code, reasons, (*warnings, *outcome.plan.warnings), headline, *reasons_said
    )


def _removal_result(removal: ClusterRemoved, warnings: list[str]) -> TaskResult:
    document = ClusterDeleteDocument.made_of(removal)
    reasons = [*(rejection.line for rejection in removal.rejections), *removal.left]
    diff = [difference(member.vm.name, "is there\n", "") for member in removal.vms if not removal.rejections]
    document_of_task = {"changed": document.changed, "diff": diff, "cluster": document}
    reasons_said = (*removal.reasons, *removal.left)
    return task_result(
        document_of_task, removal.exit_code, reasons, warnings, PARTLY if removal.left else REFUSED, *reasons_said
    )
