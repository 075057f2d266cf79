"""Check whether guests are ready for work on their GPUs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gpuops.errors import Refused

if TYPE_CHECKING:
    from gpuops.execute.site import Site
    from gpuops.model.guests.guest import GuestReply, GuestSystem
    from gpuops.model.nights.rotation import Policy
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.model.vcenter.vm import Vm
    from gpuops.plan.guest.question import GuestQuestion, GuestVerdicts
    from gpuops.vsphere.connection import Connection


def guest_check(
    question: GuestQuestion,
    inventory: Inventory,
    site: Site,
    policy: Policy | None = None,
    environ: Mapping[str, str] = os.environ,
) -> GuestVerdicts:
    """Return verdicts on driver, licence, CUDA, frameworks, RDMA and clock of the guests that `question` selects.

    Runs one program in each guest, which only reads; changes nothing in vCenter. A guest that cannot be reached gets a
    verdict with the reason. Raises UsageError, VmNotFound, VmAmbiguous, Refused without a login for guests,
    NotConnected.
    """
    from gpuops.catalog.catalog_files import load_drivers
    from gpuops.model.guests.guest import GuestReply
    from gpuops.plan.guest.question import check_reachable, judge_guests, select_guests
    from gpuops.vsphere.connection import Connection
    from gpuops.vsphere.guests.guest_facts import guest_systems

    if not isinstance(site.vcenter, Connection):
        raise Refused("guests cannot be checked on a saved inventory", hint="run the command with --vcenter")
    if policy is not None and policy.needs_tags:
        inventory = site.vcenter.with_tags(inventory)
    vms = select_guests(inventory, question, policy)
    inventory = site.hosts.with_settings(inventory, sorted({vm.host for vm in vms if vm.host and vm.vgpus}))
    systems = guest_systems(site.vcenter, [vm.ref for vm in vms])
    tools = question.door is None
    replies: dict[str, GuestReply] = {}
    reachable: list[tuple[Vm, GuestSystem]] = []
    for vm in vms:
        system = systems.get(vm.ref)
        unreachable = check_reachable(vm, system, tools=tools)
        if unreachable is None and system is not None:
            reachable.append((vm, system))
        else:
            replies[vm.ref] = unreachable or GuestReply(None, "it was not asked")
    replies.update(_replies(question, site.vcenter, reachable, site, environ))
    return judge_guests(inventory, vms, lambda vm: replies[vm.ref], question.wanted, load_drivers())


def _replies(
    question: GuestQuestion,
    connection: Connection,
    reachable: Sequence[tuple[Vm, GuestSystem]],
    site: Site,
    environ: Mapping[str, str],
) -> Mapping[str, GuestReply]:
    """Return the reply of each reachable guest, by VM (ref): over VMware Tools, or over SSH if the question says so."""
    frameworks = [framework.name for framework in question.wanted.frameworks]
    if question.door is None:
        from gpuops.vsphere.guests.guest_answers import ToolsAnswers

        return ToolsAnswers(connection, site.say).replies(reachable, frameworks)
    from gpuops.config.vcenter.login import guest_keys
    from gpuops.hostshell.guest_ssh import SshAnswers
    from gpuops.vsphere.guests.guest_facts import vcenter_time

    key, known_hosts = guest_keys(environ)
    return SshAnswers(question.door, known_hosts, key, lambda: vcenter_time(connection)).replies(reachable, frameworks)
