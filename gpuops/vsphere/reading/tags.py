"""Reads tags of VMs and hosts through the vSphere Automation API; SOAP does not offer them before vSphere 9.1."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from gpuops.vsphere.transport.automation_login import Purpose, automation_login

if TYPE_CHECKING:
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.vsphere.session import Session

OBJECTS_PER_CALL: Final = 1000
"""VMs and hosts in one `list_attached_tags_on_objects`."""
_LOGIN_PURPOSE: Final = Purpose(
    "tags",
    hint_if_refused="ask for read access to tags and VMs",
    hint_if_unreadable="use custom attributes, which the main API has",
    hint_without_tls="give the address of the vCenter as https://HOST, or use custom attributes instead of tags",
)


def with_tags(session: Session, inventory: Inventory, vms: Collection[str] | None = None) -> Inventory:
    """Return the snapshot with the sorted tags (`category:tag`) of all VMs and hosts, or of these VMs.

    One call per 1,000 of them, and two per tag in use. Raises NotConnected and its subclasses, NoPermission.
    """
    with automation_login(session.target, _LOGIN_PURPOSE) as configuration:
        from com.vmware.cis.tagging_client import StubFactory

        service = StubFactory(configuration)
        hosts = inventory.hosts if vms is None else ()
        vm_refs = inventory.vms if vms is None else [ref for ref in inventory.vms if ref in vms]
        objects = [("HostSystem", ref) for ref in hosts] + [("VirtualMachine", ref) for ref in vm_refs]
        tags_by_ref = _read_attached_tags(service, objects)
        names = _names(service, {tag for tags in tags_by_ref.values() for tag in tags})

    def tags_of(ref: str) -> tuple[str, ...]:
        return tuple(sorted(names[tag] for tag in tags_by_ref.get(ref, ()) if tag in names))

    return inventory.completed(
        vms=[replace(inventory.vms[ref], tags=tags_of(ref)) for ref in vm_refs],
        hosts=[replace(inventory.hosts[ref], tags=tags_of(ref)) for ref in hosts],
    )


def _read_attached_tags(service: Any, objects: list[tuple[str, str]]) -> Mapping[str, Collection[str]]:
    """Return the tag ids by managed object id, for objects with tags."""
    from com.vmware.vapi.std_client import DynamicID

    tags_by_ref: dict[str, Collection[str]] = {}
    for start in range(0, len(objects), OBJECTS_PER_CALL):
        page = [DynamicID(type=kind, id=ref) for kind, ref in objects[start : start + OBJECTS_PER_CALL]]
        for attachment in service.TagAssociation.list_attached_tags_on_objects(page):
            tags_by_ref[attachment.object_id.id] = attachment.tag_ids
    return tags_by_ref


def _names(service: Any, tags: Collection[str]) -> Mapping[str, str]:
    """Return `category:tag` by tag id, without tags that were deleted meanwhile."""
    from com.vmware.vapi.std.errors_client import NotFound

    categories: dict[str, str] = {}
    names: dict[str, str] = {}
    for ref in sorted(tags):
        with suppress(NotFound):
            tag = service.Tag.get(ref)
            if tag.category_id not in categories:
                categories[tag.category_id] = service.Category.get(tag.category_id).name
            names[ref] = f"{categories[tag.category_id]}:{tag.name}"
    return names
