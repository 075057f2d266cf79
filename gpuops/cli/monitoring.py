"""`gpuops inventory`, `doctor`, `roles`, `readiness` and `guest check`: commands that examine and change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuops.console import completion, output
from gpuops.console.commands import VerbTable
from gpuops.console.options import CommonOptions, HostShellOptions, PolicyFile
from gpuops.console.spread import reads_sites, spread
from gpuops.errors import NoPermission, UsageError, report_exit_code
from gpuops.model.guests.guest import GuestWay, MustHave
from gpuops.plan.core.scope import Scope

if TYPE_CHECKING:
    from gpuops.api import Site
    from gpuops.model.vcenter.inventory import Inventory


@spread
@reads_sites
def doctor(
    common: CommonOptions,
    host_shell: HostShellOptions,
    scope: Scope,
    roles: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Compare the privileges of this login with these roles: templates/roles/*.yaml."
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Compare this machine's timers with the windows of this rotation policy."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 3 for anything worse than a note.")] = False,
    assumptions: Annotated[
        bool,
        typer.Option("--assumptions", help="List the rules that gpuops assumes, and which of them this vCenter shows."),
    ] = False,
) -> None:
    """Say what stands in the way on hosts, GPUs and VMs, each with its reason and what to do. Changes nothing.

    With --host-shell ssh it also runs nvidia-smi on the hosts, for MIG mode and ECC. With --assumptions it also reads
    tasks, events and counters of vCenter, to judge the rules of vSphere and NVIDIA that gpuops assumes.

    \b
    Examples:
      gpuops doctor --vcenter sim:lab
      gpuops doctor --strict --cluster lab-cluster --vcenter sim:lab
      gpuops doctor --roles templates/roles/night.yaml --vcenter sim:lab
      gpuops doctor --policy templates/policy.yaml --vcenter sim:lab
      gpuops doctor --assumptions --vcenter sim:lab
    """
    if assumptions:
        if roles is not None or policy is not None or scope != Scope():
            raise UsageError(
                "--assumptions is about the complete vCenter: it excludes --host, --cluster, --roles and --policy",
                hint="run gpuops doctor --assumptions without these options",
            )
        _list_assumptions(common, host_shell, strict=strict)
        return
    from gpuops.api import doctor as examine
    from gpuops.config.policy import load_policy
    from gpuops.config.role_file import load_roles
    from gpuops.console.opening import open_site, remember
    from gpuops.report.monitoring.doctor_view import doctor_document, doctor_text

    wishes = load_roles(roles) if roles is not None else ()
    policy_and_file = (load_policy(policy), policy) if policy is not None else None
    with open_site(common) as site:
        host_shell.give_to(site)
        examination = examine(site, scope, wishes, policy_and_file)
    remember(common, examination.inventory)
    output.show(doctor_text(examination), doctor_document(examination))
    output.leave(report_exit_code(refused=strict and not examination.healthy))


def _list_assumptions(common: CommonOptions, host_shell: HostShellOptions, *, strict: bool) -> None:
    """Show which rules this vCenter confirms or contradicts; with `strict` a contradicted one is exit code 3."""
    from gpuops.api.first_contact import judged_contact
    from gpuops.console.opening import open_site
    from gpuops.model.assumption import Standing
    from gpuops.report.first_contact_view import AssumptionsDocument, assumptions_text

    with open_site(common) as site:
        host_shell.give_to(site)
        judged = judged_contact(site)
    output.show(assumptions_text(judged), AssumptionsDocument.made_of(judged))
    output.leave(report_exit_code(refused=strict and any(row.standing is Standing.CONTRADICTED for row in judged.rows)))


roles = VerbTable("roles", "Compare vCenter's roles with those that gpuops needs, and make them.")
RoleFile = Annotated[
    Path, typer.Option("--file", metavar="FILE", help="The file with the roles: templates/roles/*.yaml.")
]


@roles.command("show")
@spread
@reads_sites
def roles_show(common: CommonOptions, file: RoleFile) -> None:
    """Show which roles of the file exist, and which privileges each lacks or has in excess. Changes nothing.

    \b
    Example:
      gpuops roles show --file templates/roles/night.yaml --vcenter sim:lab
    """
    _compare_roles(common, file, apply=False)


@roles.command("apply")
@spread
def roles_apply(
    common: CommonOptions,
    file: RoleFile,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be written; change nothing.")] = False,
) -> None:
    """Create the roles of the file in vCenter, and change roles of the same name to match the file.

    Needs Authorization.ModifyRoles. It assigns no role: an administrator does that on the objects in each `where`.

    \b
    Example:
      gpuops roles apply --file templates/roles/night.yaml --vcenter sim:lab
    """
    _compare_roles(common, file, apply=not dry_run)


def _compare_roles(common: CommonOptions, file: Path, *, apply: bool) -> None:
    from gpuops.api import roles as compare_roles
    from gpuops.config.role_file import load_roles
    from gpuops.console.opening import open_site
    from gpuops.report.monitoring.doctor_view import roles_document, roles_text

    wishes = load_roles(file)
    with open_site(common) as site:
        states = compare_roles(wishes, site, apply=apply)
    output.show(roles_text(states), roles_document(states))


@spread
@reads_sites
def readiness(
    common: CommonOptions,
    scope: Scope,
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 3 if a host cannot be emptied.")] = False,
    inventory_file: Annotated[
        Path | None, typer.Option("--inventory", metavar="FILE", help="Use a saved snapshot, without a vCenter.")
    ] = None,
) -> None:
    """Say of each host with GPUs whether it can be emptied, and whether it can be lost. Changes nothing.

    With --host also which VM goes where, in which order. A rolling change checks the same before its first host.

    \b
    Examples:
      gpuops readiness --vcenter sim:scattered
      gpuops readiness --host esx-01 --vcenter sim:scattered
      gpuops readiness --strict --cluster scattered-cluster --vcenter sim:scattered
    """
    from gpuops import api
    from gpuops.console.opening import open_site, read_inventory
    from gpuops.report.monitoring.readiness_view import readiness_document, readiness_text

    with open_site(common, inventory_file=inventory_file) as site:
        answer = api.readiness(scope, read_inventory(site, common, inventory_file=inventory_file), site)
    output.show(readiness_text(answer, scope), readiness_document(answer))
    output.leave(report_exit_code(refused=strict and not answer.ready))


guest = VerbTable("guest", "Ask guests whether they are ready for work on their GPUs.")


@guest.command("check")
@spread
def guest_check(
    common: CommonOptions,
    vm: Annotated[
        str | None,
        typer.Option(
            metavar="VM", autocompletion=completion.vms, help="This VM, or a pattern for VMs with a GPU: ml-*."
        ),
    ] = None,
    pool: Annotated[str | None, typer.Option(metavar="NAME", help="The VMs of this pool of the policy.")] = None,
    policy: Annotated[Path | None, PolicyFile] = None,
    via: Annotated[GuestWay, typer.Option(help="How the check runs in guests.")] = GuestWay.TOOLS,
    ssh_user: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --via ssh: the user in the guests (root).")
    ] = None,
    ssh_host: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="With --via ssh: the address, with {vm} for the VM's name ({vm})."),
    ] = None,
    ssh_port: Annotated[
        int | None, typer.Option(min=1, max=65535, metavar="PORT", help="With --via ssh: the port (22).")
    ] = None,
    framework: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[VERSION]", help="A framework that python3 in the guest must have: torch>=2.3."),
    ] = None,
    expect: Annotated[
        list[MustHave] | None,
        typer.Option(help="What must be present; without this it is checked only if it is present."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit code 3 unless every row of every guest passes.")
    ] = False,
) -> None:
    """Say whether driver, licence, CUDA, frameworks, RDMA and clock of guests are ready. Changes nothing.

    Runs one program in each guest, over VMware Tools as GPUOPS_GUEST_USERNAME, or over SSH. Linux and Windows.

    \b
    Examples:
      gpuops guest check --vm 'gpu-*' --framework 'torch>=2.3' --vcenter sim:stacks
      gpuops guest check --vm ml-07 --via ssh --ssh-user root --ssh-host '{vm}.example.com'
      gpuops guest check --pool ml --policy /etc/gpuops/policy.yaml --strict
    """
    from gpuops import api
    from gpuops.config.policy import load_policy
    from gpuops.console.opening import open_site, read_inventory
    from gpuops.plan.guest.guest_check import GuestQuestion, parse_frameworks, ssh_door
    from gpuops.plan.guest.rows import GuestNeeds
    from gpuops.report.monitoring.doctor_view import guest_check_document, guest_check_text

    needs = GuestNeeds(parse_frameworks(framework or ()), frozenset(expect or ()))
    question = GuestQuestion(vm, pool, needs, ssh_door(via, ssh_user, ssh_host, ssh_port))
    question = question.checked(policy=policy is not None)
    rules = load_policy(policy) if policy is not None else None
    with open_site(common) as site:
        site.say = output.note
        verdicts = api.guest_check(question, read_inventory(site, common), site, rules)
    output.show(guest_check_text(verdicts, via), guest_check_document(verdicts, via))
    output.leave(report_exit_code(refused=strict and not verdicts.ready))


@spread
@reads_sites
def inventory(
    common: CommonOptions,
    host_shell: HostShellOptions,
    vms: Annotated[bool, typer.Option("--vms", help="Show a table of the VMs with GPU devices.")] = False,
    hosts: Annotated[bool, typer.Option("--hosts", help="Show each host, also if there are more than 20.")] = False,
    cluster: Annotated[
        str | None,
        typer.Option(help="Only the hosts of this cluster.", metavar="NAME", autocompletion=completion.clusters),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Only this host.", metavar="HOST", autocompletion=completion.hosts)
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            help="Only hosts that offer this vGPU profile, and its figures.",
            metavar="NAME",
            autocompletion=completion.profiles,
        ),
    ] = None,
    holder: Annotated[
        str | None,
        typer.Option(help="Only the GPUs that this VM holds.", metavar="VM", autocompletion=completion.vms),
    ] = None,
    free: Annotated[
        bool,
        typer.Option("--free", help="Only GPUs with room for a vGPU (of --profile), and free whole GPUs."),
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Show only the first N hosts (with --vms: VMs), and the number of others."
        ),
    ] = None,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Save the snapshot, to plan on it later.")] = None,
    inventory_file: Annotated[
        Path | None, typer.Option("--inventory", metavar="FILE", help="Show a saved snapshot, without a vCenter.")
    ] = None,
) -> None:
    """Show hosts, NUMA nodes, GPUs, who holds them, and what is free.

    With --host-shell ssh also the health of GPUs, and where vGPUs lie on them, as the hosts' own nvidia-smi reports it.

    \b
    Examples:
      gpuops inventory --vcenter sim:lab
      gpuops inventory --profile a100-3-20c --free --output json --vcenter sim:lab
      gpuops inventory --save fleet.json --vcenter sim:lab
    """
    from gpuops.api import catalog_of
    from gpuops.console.opening import open_site, read_inventory
    from gpuops.report.monitoring.fleet_view import FleetFilters, fleet
    from gpuops.report.monitoring.inventory_view import MOST_HOSTS, fleet_document, fleet_text, summary_text, vms_text

    if vms and (hosts or free):
        raise UsageError(f"--vms and --{'hosts' if hosts else 'free'} exclude each other", hint="give one of them")
    filters = FleetFilters(cluster, host, profile, holder, free)
    with open_site(common, inventory_file=inventory_file) as site:
        host_shell.give_to(site, inventory_file)
        fleet_now = site.with_vgpus(read_inventory(site, common, inventory_file=inventory_file))
        if save is not None and inventory_file is None:  # a saved inventory has these offers already
            fleet_now = _with_offers(fleet_now, site)
    if save is not None:
        from gpuops.config import snapshot

        snapshot.save(fleet_now, save)
    filtered_fleet = fleet(fleet_now, catalog_of(fleet_now), filters)
    is_unfiltered = filters == FleetFilters() and limit is None and not hosts
    if vms:
        text = vms_text(filtered_fleet, limit)
    elif is_unfiltered and len(filtered_fleet.gpu_hosts) > MOST_HOSTS:
        text = summary_text(filtered_fleet)
    else:
        text = fleet_text(filtered_fleet, limit)
    output.show(text, fleet_document(filtered_fleet, limit))


def _with_offers(snapshot: Inventory, site: Site) -> Inventory:
    """Return the inventory with the hosts' offers that plans of DirectPath devices and device groups need."""
    try:
        return site.vcenter.with_config_targets(
            snapshot, [host.ref for host in snapshot.hosts.values() if host.gpus and host.connected]
        )
    except NoPermission as error:
        output.note(f"warning: saved without what hosts offer for DirectPath and device groups: {error.message}")
        return snapshot
