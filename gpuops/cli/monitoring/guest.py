"""`gpuops guest check`: whether guests are ready for work on their GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuops.console import completion, output
from gpuops.console.commands import VerbTable
from gpuops.console.options import CommonOptions, PolicyFile
from gpuops.console.spread import spread
from gpuops.errors import report_exit_code
from gpuops.model.guests.guest import GuestWay
from gpuops.plan.guest.rows import GuestNeeds, MustHave

if TYPE_CHECKING:
    from gpuops.model.nights.ml_queue import SshDoor

guest = VerbTable("guest", "Ask guests whether they are ready for work on their GPUs.")


@guest.command("check")
@spread
def guest_check(
    common: CommonOptions,
    vm: Annotated[
        str | None,
        typer.Option(metavar="VM", autocompletion=completion.vms, help="This VM, or those with a GPU so named."),
    ] = None,
    pool: Annotated[str | None, typer.Option(metavar="NAME", help="The VMs of this pool of the policy.")] = None,
    policy: Annotated[Path | None, PolicyFile] = None,
    via: Annotated[GuestWay, typer.Option(help="How guests are asked.")] = GuestWay.TOOLS,
    ssh_user: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --via ssh: who enters them (root).")
    ] = None,
    ssh_host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Their address, {vm} is the VM's name ({vm}).")
    ] = None,
    ssh_port: Annotated[int | None, typer.Option(min=1, max=65535, metavar="PORT", help="Their port (22).")] = None,
    framework: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[VERSION]", help="A framework that python3 must have there: torch>=2.3."),
    ] = None,
    expect: Annotated[
        list[MustHave] | None, typer.Option(help="What must be there, and is else only looked at where it is.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit code 3 unless every row of every guest passes.")
    ] = False,
) -> None:
    """Say of guests whether driver, licence, CUDA, frameworks, RDMA and clock are ready. Changes nothing.

    In each guest one program is run, by VMware Tools as GPUOPS_GUEST_USERNAME, or over SSH. Linux and Windows.

    \b
    Examples:
      gpuops guest check --vm 'gpu-*' --framework 'torch>=2.3' --vcenter sim:stacks
      gpuops guest check --vm ml-07 --via ssh --ssh-user root --ssh-host '{vm}.example.com'
      gpuops guest check --pool ml --policy /etc/gpuops/policy.yaml --strict
    """
    from gpuops import api
    from gpuops.config.policy import load_policy
    from gpuops.console.opening import open_site, read_inventory
    from gpuops.plan.guest.question import GuestQuestion, wanted_frameworks
    from gpuops.report.monitoring.guest import guest_check_document, guest_check_text

    needs = GuestNeeds(wanted_frameworks(framework or ()), frozenset(expect or ()))
    question = GuestQuestion(vm, pool, needs, _door(via, ssh_user, ssh_host, ssh_port)).checked(
        policy=policy is not None
    )
    rules = load_policy(policy) if policy is not None else None
    with open_site(common) as site:
        site.say = output.note
        verdicts = api.guest_check(question, read_inventory(site, common), site, rules)
    output.show(guest_check_text(verdicts, via), guest_check_document(verdicts, via))
    output.leave(report_exit_code(refused=strict and not verdicts.ready))


def _door(via: GuestWay, user: str | None, host: str | None, port: int | None) -> SshDoor | None:
    from gpuops.plan.guest.question import ssh_door

    return ssh_door(via, user, host, port)
