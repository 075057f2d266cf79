"""The function that asks guests: whether they are ready for work on their GPUs."""

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
    """What each of these guests tells of driver, licence, CUDA, frameworks, RDMA and clock, judged.

    In each guest one program is run, which only reads; nothing in vCenter is changed. Raises UsageError, VmNotFound,
    VmAmbiguous, Refused without a login for guests, NotConnected in its kinds.
    """
    from gpuops.catalog.driver_file import load_drivers
    from gpuops.model.guests.guest import GuestReply
    from gpuops.plan.guest.question import check_reachable, judge_guests, select_guests
    from gpuops.vsphere.connection import Connection
    from gpuops.vsphere.reading.guests.guest_systems import guest_systems

    if not isinstance(site.vcenter, Connection):
        raise Refused("a saved inventory has no guests to ask", hint="ask the vCenter")
    if policy is not None and policy.needs_tags:
        inventory = site.vcenter.with_tags(inventory)
    vms = select_guests(inventory, question, policy)
    inventory = site.hosts.with_settings(inventory, sorted({vm.host for vm in vms if vm.host and vm.vgpus}))
    systems = guest_systems(site.vcenter, [vm.ref for vm in vms])
    tools = question.door is None
    found: dict[str, GuestReply] = {}
    asked: list[tuple[Vm, GuestSystem]] = []
    for vm in vms:
        system = systems.get(vm.ref)
        refused = check_reachable(vm, system, tools=tools)
        if refused is None and system is not None:
            asked.append((vm, system))
        else:
            found[vm.ref] = refused or GuestReply(None, "it was not asked")
    found.update(_replies(question, site.vcenter, asked, site, environ))
    return judge_guests(inventory, vms, lambda vm: found[vm.ref], question.wanted, load_drivers())


def _replies(
    question: GuestQuestion,
    connection: Connection,
    asked: Sequence[tuple[Vm, GuestSystem]],
    site: Site,
    environ: Mapping[str, str],
) -> Mapping[str, GuestReply]:
    frameworks = [each.name for each in question.wanted.frameworks]
    if question.door is None:
        from gpuops.vsphere.writing.guest_answers import ToolsAnswers

        return ToolsAnswers(connection, site.say).replies(asked, frameworks)
    from gpuops.config.vcenter.login import guest_keys
    from gpuops.hostshell.guest_answers import SshAnswers
    from gpuops.vsphere.reading.guests.guest_systems import vcenter_time

    key, known = guest_keys(environ)
    return SshAnswers(question.door, known, key, lambda: vcenter_time(connection)).replies(asked, frameworks)
