"""`gpuops cluster`: makes, shows and removes clusters, and runs a program or an all-reduce over their VMs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuops.console import output
from gpuops.console.commands import VerbTable
from gpuops.console.options import CommonOptions, DryRun
from gpuops.console.spread import reads_sites, spread
from gpuops.errors import UsageError, report_exit_code
from gpuops.extras.clusters.creating import create_cluster
from gpuops.extras.clusters.existing import delete_cluster, read_clusters
from gpuops.extras.clusters.run_request import AllReduceProgram, BenchWish, Launcher, Rendezvous, RunWish, Transport

if TYPE_CHECKING:
    from gpuops.extras.clusters.answers import ClusterRemoved
    from gpuops.extras.clusters.cluster_plan import ClusterPlan
    from gpuops.model.vcenter.target import Secret

ClusterName = Annotated[str, typer.Argument(metavar="CLUSTER", help="Name of the cluster, as in its file.")]
SshPort = Annotated[
    int,
    typer.Option(min=1, max=65535, metavar="PORT", help="Port of the guests' SSH servers, for mpirun and horovodrun."),
]
_MOST_NODES = 1024


@spread
def cluster_run(
    common: CommonOptions,
    name: ClusterName,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="The program and its arguments.")],
    launcher: Annotated[Launcher, typer.Option(help="Program that starts the ranks.")] = Launcher.MPIRUN,
    transport: Annotated[
        Transport | None, typer.Option(help="Network transport between ranks; default: the libraries choose.")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of ranks; default: one for each GPU.")
    ] = None,
    rendezvous: Annotated[
        Rendezvous, typer.Option(help="How the nodes of torchrun find each other.")
    ] = Rendezvous.STATIC,
    timeout: Annotated[
        int | None,
        typer.Option(min=1, metavar="SECONDS", help="Time limit: the program is ended then (exit code 124)."),
    ] = None,
    ssh_port: SshPort = 22,
    dry_run: DryRun = False,
) -> None:
    """Run a program over the VMs of a cluster, and show what rank 0 prints.

    Guest operations start it, as GPUOPS_GUEST_USERNAME. This command ends with its exit code; Ctrl-C ends it in every
    guest. With --output json what it prints goes to stderr.

    \b
    Examples:
      gpuops cluster run train -- python3 train.py
      gpuops cluster run train --launcher torchrun --transport rdma -- train.py
      gpuops cluster run train --dry-run -- hostname
    """
    from gpuops.api.connection import passwords_of
    from gpuops.console.opening import open_site
    from gpuops.extras.clusters.cluster_runs import cluster_run as run
    from gpuops.extras.clusters.view import end_text, launch_text, run_document

    wish = RunWish(tuple(command), launcher, transport, ranks, rendezvous, timeout, ssh_port)
    with open_site(common) as site:
        site.say = output.note
        lines = _Printed(passwords_of(site), to_stderr=common.format.is_document)
        outcome = run(name, wish, site, lines.add_output, apply=not dry_run)
    lines.end()
    output.refused(outcome.plan.reasons)
    document = run_document(outcome.cluster, outcome.plan, outcome.end, outcome.exit_code)
    if outcome.end is None:
        output.show(launch_text(outcome.plan), document)
    else:
        output.note(end_text(outcome.end))
        output.show((), document)
    output.leave(outcome.exit_code)


@spread
def cluster_bench(
    common: CommonOptions,
    name: ClusterName,
    nodes: Annotated[
        str, typer.Option(metavar="N,N,...", help="Numbers of nodes to measure over, one after another.")
    ] = "1,2,4",
    sizes: Annotated[str, typer.Option(metavar="SIZE,SIZE", help="Buffer sizes of each rank.")] = "1MiB,64MiB",
    transports: Annotated[
        str, typer.Option(metavar="tcp,rdma", help="Transports to measure: both, or one of them.")
    ] = "tcp,rdma",
    program: Annotated[
        AllReduceProgram | None, typer.Option(help="Program that measures; default: the first that the guest has.")
    ] = None,
    timeout: Annotated[int, typer.Option(min=1, metavar="SECONDS", help="How long each number may take.")] = 600,
    ssh_port: SshPort = 22,
) -> None:
    """Measure an all-reduce over nodes of a cluster, by TCP and by RDMA.

    Shows seconds, bus bandwidth as the NCCL tests define it, and the efficiency with more nodes.

    \b
    Examples:
      gpuops cluster bench train
      gpuops cluster bench train --nodes 2,4 --sizes 64MiB --transports rdma
    """
    from gpuops.console.opening import open_site
    from gpuops.extras.clusters.cluster_runs import cluster_bench as bench
    from gpuops.extras.clusters.run_request import parse_size
    from gpuops.extras.clusters.view import ClusterBenchDocument, bench_text

    wish = BenchWish(
        _node_counts(nodes),
        tuple(sorted({parse_size(size) for size in sizes.split(",")})),
        _transports(transports),
        program,
        timeout,
        ssh_port,
    )
    with open_site(common) as site:
        site.say = output.progress
        outcome = bench(name, wish, site)
    output.show(bench_text(outcome), ClusterBenchDocument.made_of(outcome))
    output.leave(report_exit_code(partly=not outcome.complete))


def _node_counts(text: str) -> tuple[int, ...]:
    """Parse `--nodes`. Raises UsageError."""
    words = [word.strip() for word in text.split(",")]
    wrong = next((word for word in words if not word.isdecimal() or not 1 <= int(word[:5]) <= _MOST_NODES), None)
    if wrong is not None:
        raise UsageError(f"--nodes {text}: {wrong!r} is not a number of nodes", hint="write --nodes 1,2,4")
    return tuple(sorted(set(map(int, words))))


def _transports(text: str) -> tuple[Transport, ...]:
    """Parse `--transports`. Raises UsageError."""
    words = [word.strip() for word in text.split(",")]
    wrong = next((word for word in words if word not in list(Transport)), None)
    if wrong is not None:
        raise UsageError(
            f"--transports {text}: unknown transport {wrong!r}", hint="write tcp, rdma, or both as tcp,rdma"
        )
    return tuple(dict.fromkeys(map(Transport, words)))


class _Printed:
    """Prints the output of a program line by line, without passwords (`ProgramLines`)."""

    def __init__(self, withheld: Sequence[Secret], *, to_stderr: bool) -> None:
        from gpuops.extras.clusters.view import ProgramLines

        self._stream = sys.stderr if to_stderr else sys.stdout
        self._lines = ProgramLines(withheld)

    def add_output(self, piece: bytes) -> None:
        self._print(self._lines.add_output(piece))

    def end(self) -> None:
        self._print(self._lines.end())

    def _print(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._stream.write(f"{line}\n")
        self._stream.flush()


cluster = VerbTable("cluster", "Make, show, use and remove clusters of VMs for training.")
cluster.command("run")(cluster_run)
cluster.command("bench")(cluster_bench)

ClusterFileOption = typer.Option("--file", "-f", metavar="FILE", help="The cluster: templates/cluster.yaml is one.")
ClusterNameArgument = typer.Argument(metavar="[CLUSTER]", help="Name of the cluster, in place of a file.")


def cluster_name_of(file: Path | None, name: str | None) -> str | None:
    """Return the name of the cluster: that in the file, or the one typed; None if neither is given.

    Raises UsageError if both are given, PolicyError for an invalid file.
    """
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
        bool,
        typer.Option("--keep-on-failure", help="After an error, keep the new VMs; run the command again to continue."),
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

    cluster_name = cluster_name_of(file, name)
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

    cluster_name = cluster_name_of(file, name)
    if cluster_name is None:
        raise UsageError("no cluster is named", hint="add its name, or use --file, for example templates/cluster.yaml")

    def consent(planned: ClusterRemoved) -> None:
        if planned.vms and not yes:
            confirm(cluster_removed_text(planned), "the VMs above are removed")

    with open_site(common) as site:
        site.say = output.note
        removal = delete_cluster(cluster_name, site, apply=not dry_run, consent=consent)
    output.refused(removal.reasons)
    output.show(cluster_removed_text(removal), ClusterDeleteDocument.made_of(removal))
    output.leave(removal.exit_code)
