"""`gpuops cluster`: clusters of VMs for training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuops.console import output
from gpuops.console.commands import VerbTable
from gpuops.console.options import CommonOptions, DryRun
from gpuops.console.spread import reads_sites, spread
from gpuops.errors import UsageError
from gpuops.extras.clusters.creating import create_cluster
from gpuops.extras.clusters.removing import delete_cluster
from gpuops.extras.clusters.run_cli import cluster_bench, cluster_run
from gpuops.extras.clusters.showing import read_clusters

if TYPE_CHECKING:
    from gpuops.extras.clusters.plan import ClusterPlan

cluster = VerbTable("cluster", "Make, show, use and remove clusters of VMs for training.")
cluster.command("run")(cluster_run)
cluster.command("bench")(cluster_bench)

ClusterFileOption = typer.Option("--file", "-f", metavar="FILE", help="The cluster: templates/cluster.yaml is one.")
ClusterNameArgument = typer.Argument(metavar="[CLUSTER]", help="Its name, in place of a file.")


def name_meant(file: Path | None, name: str | None) -> str | None:
    """Return the name of the cluster that the options mean; None = they say none. Raises UsageError for both."""
    from gpuops.extras.clusters.cluster_file import load_cluster

    if file is not None and name is not None:
        raise UsageError("--file and the name of a cluster exclude each other", hint="the file has a name of its own")
    return load_cluster(file).name if file is not None else name


@cluster.command("create")
@spread
def cluster_create(
    common: CommonOptions,
    file: Annotated[Path, ClusterFileOption],
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before VMs are made.")] = False,
    keep_on_failure: Annotated[
        bool, typer.Option("--keep-on-failure", help="If something fails, keep what was made: the same again goes on.")
    ] = False,
) -> None:
    """Make the VMs of a cluster from a template: GPUs, RDMA network card, reserved memory; all of them, or none.

    Hosts and template are checked first. Run the same command again to continue after an interruption.

    \b
    Examples:
      gpuops cluster create --file templates/cluster.yaml --dry-run --vcenter sim:training
      gpuops cluster create --file templates/cluster.yaml --yes --vcenter sim:training
    """
    from gpuops.console.opening import open_site
    from gpuops.console.running import confirm
    from gpuops.extras.clusters.cluster_file import load_cluster
    from gpuops.extras.clusters.view import ClusterCreateDocument, cluster_made_text, cluster_plan_text

    wish = load_cluster(file)

    def consent(plan: ClusterPlan) -> None:
        if not yes:
            confirm(cluster_plan_text(plan), "the plan above makes and starts VMs")

    with open_site(common) as site:
        site.say = output.note
        outcome = create_cluster(wish, site, apply=not dry_run, keep=keep_on_failure, consent=consent)
    output.refused(outcome.plan.reasons)
    output.show(cluster_made_text(outcome), ClusterCreateDocument.made_of(outcome))
    output.leave(outcome.exit_code)


@cluster.command("show")
@spread
@reads_sites
def cluster_show(
    common: CommonOptions,
    file: Annotated[Path | None, ClusterFileOption] = None,
    name: Annotated[str | None, ClusterNameArgument] = None,
) -> None:
    """Show clusters: their VMs by rank, hosts, addresses, and what is missing. Changes nothing.

    \b
    Examples:
      gpuops cluster show --vcenter sim:training
      gpuops cluster show train
    """
    from gpuops.console.opening import open_site
    from gpuops.extras.clusters.view import ClusterShowDocument, clusters_text

    cluster_name = name_meant(file, name)
    with open_site(common) as site:
        clusters = read_clusters(cluster_name, site)
    output.show(clusters_text(clusters), ClusterShowDocument.from_attributes(clusters=clusters))


@cluster.command("delete")
@spread
def cluster_delete(
    common: CommonOptions,
    file: Annotated[Path | None, ClusterFileOption] = None,
    name: Annotated[str | None, ClusterNameArgument] = None,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before VMs are removed.")] = False,
) -> None:
    """Remove the VMs of a cluster, with their disks, and no other VM.

    Only VMs with the marker of the cluster are removed. Run the same command again to continue after an interruption.

    \b
    Examples:
      gpuops cluster delete --file templates/cluster.yaml --dry-run --vcenter sim:training
      gpuops cluster delete train --yes
    """
    from gpuops.console.opening import open_site
    from gpuops.console.running import confirm
    from gpuops.extras.clusters.view import ClusterDeleteDocument, cluster_removed_text

    cluster_name = name_meant(file, name)
    if cluster_name is None:
        raise UsageError("which cluster is not said", hint="name it, or --file templates/cluster.yaml")
    with open_site(common) as site:
        site.say = output.note
        removal = delete_cluster(cluster_name, site, apply=False)
        if not dry_run and not removal.rejections:
            if removal.vms and not yes:
                confirm(cluster_removed_text(removal), "the VMs above are removed")
            removal = delete_cluster(cluster_name, site, apply=True)
    output.refused(removal.reasons)
    output.show(cluster_removed_text(removal), ClusterDeleteDocument.made_of(removal))
    output.leave(removal.exit_code)
