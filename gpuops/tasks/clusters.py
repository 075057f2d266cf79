"""Tasks about clusters of VMs for training. The modules `gpu_cluster` and `gpu_cluster_info` call them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpuops.tasks.connection import ConnectionArguments, open_site
from gpuops.tasks.result import TaskResult, reasons_line

if TYPE_CHECKING:
    from gpuops.plan.cluster.answers import ClusterMade, ClusterRemoved
    from gpuops.report.document import Document


def gpu_cluster(
    connection: ConnectionArguments,
    *,
    present: bool,
    file: str | None = None,
    name: str | None = None,
    resume: bool = False,
    apply: bool,
) -> TaskResult:
    """The cluster of that file, made or removed, or removed by its name.

    Raises UsageError for a file or options that mean nothing, and whatever `gpuops cluster` raises.
    """
    from gpuops.api import cluster_create, cluster_delete
    from gpuops.config.cluster_file import load_cluster
    from gpuops.errors import UsageError

    wish = load_cluster(Path(file).expanduser()) if file is not None else None
    if present and wish is None:
        raise UsageError("state=present needs the file of the cluster", hint="templates/cluster.yaml is one")
    site, warnings = open_site(connection)
    with site:
        if present and wish is not None:
            return _made(cluster_create(wish, site, apply=apply, keep=resume, consent=lambda plan: None), warnings)
        return _removed(cluster_delete(wish.name if wish is not None else name or "", site, apply=apply), warnings)


def gpu_cluster_info(connection: ConnectionArguments, *, name: str | None = None) -> TaskResult:
    """The clusters of a vCenter, or the one of this name, which may be none."""
    from gpuops.api import cluster_show
    from gpuops.report.document import as_values
    from gpuops.report.workloads.cluster import ShownTrainingClusterRecord

    site, warnings = open_site(connection)
    with site:
        found = tuple(each for each in cluster_show(None, site) if name in (None, each.name))
    clusters = [as_values(ShownTrainingClusterRecord.made_of(each)) for each in found]
    return TaskResult({"changed": False, "clusters": clusters}, warnings=tuple(warnings))


def _made(made: ClusterMade, warnings: list[str]) -> TaskResult:
    from gpuops.report.document import as_values
    from gpuops.report.workloads.cluster import ClusterCreateDocument

    document = as_values(ClusterCreateDocument.made_of(made))
    failed = [each for each in (made.failed, *made.left) if each]
    does = {each["name"]: [each["host"], *each["does"]] for each in document["members"] if each["does"]}
    undone = "all that was made is removed again" if made.undone else "partly done"
    headline = undone if made.failed else "refused, nothing changed"
    return TaskResult(
        {
            "changed": made.changed,
            "diff": [_difference(vm, "", "\n".join([*words, ""])) for vm, words in does.items()],
            "reasons": [*(each.line for each in made.plan.rejections), *failed],
            "cluster": document,
        },
        made.exit_code,
        reasons_line([*made.plan.reasons, *failed], headline) if made.exit_code else "",
        (*warnings, *made.plan.warnings),
    )


def _removed(found: ClusterRemoved, warnings: list[str]) -> TaskResult:
    from gpuops.report.document import as_values
    from gpuops.report.workloads.cluster import ClusterDeleteDocument

    document = as_values(ClusterDeleteDocument.made_of(found))
    headline = "partly done" if found.left else "refused, nothing changed"
    gone = [] if found.rejections else [each.vm.name for each in found.vms]
    return TaskResult(
        {
            "changed": document["changed"],
            "diff": [_difference(vm, "is there\n", "") for vm in gone],
            "reasons": [*(each.line for each in found.rejections), *found.left],
            "cluster": document,
        },
        found.exit_code,
        reasons_line([*found.reasons, *found.left], headline) if found.exit_code else "",
        tuple(warnings),
    )


def _difference(vm: str, before: str, after: str) -> Document:
    return {"before_header": vm, "after_header": vm, "before": before, "after": after}
