"""Reads tags of VMs and hosts through the vSphere Automation API; SOAP does not offer them before vSphere 9.1.

`vmware-vcenter` speaks to the JSON-RPC endpoint /api; it is imported when tags are asked for, and only its session and
tagging bindings, for the whole of it takes longer to load than to answer.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from gpuops.errors import GpuopsError, LoginRefused, NoPermission, ProtocolError, Refused
from gpuops.vsphere.transport import network

if TYPE_CHECKING:
    import requests

    from gpuops.model.inventory import Inventory
    from gpuops.model.target import Target
    from gpuops.vsphere.session import Session

OBJECTS_PER_CALL: Final = 1000
"""VMs and hosts in one `list_attached_tags_on_objects`."""
_LONGEST_SAID: Final = 200


def with_tags(session: Session, inventory: Inventory, vms: Collection[str] | None = None) -> Inventory:
    """The same snapshot with `category:tag` of every VM and host, or of these VMs alone, sorted; () = it has none.

    One call per 1,000 of them, and two per tag in use. Raises NotConnected in its kinds, NoPermission.
    """
    from gpuops.vsphere.transport.automation import automation_session

    target = session.target
    if not target.tls:
        raise Refused(
            f"tags cannot be read from {target.address}: their API is spoken over https only",
            hint="use https://, or custom attributes in place of tags",
        )
    with _quiet(), _translated(target), automation_session(target) as http, _tagging(target, http) as service:
        hosts = inventory.hosts if vms is None else ()
        asked = inventory.vms if vms is None else [ref for ref in inventory.vms if ref in vms]
        objects = [("HostSystem", ref) for ref in hosts] + [("VirtualMachine", ref) for ref in asked]
        attached = _attached(service, objects)
        names = _names(service, {tag for tags in attached.values() for tag in tags})

    def of(ref: str) -> tuple[str, ...]:
        return tuple(sorted(names[tag] for tag in attached.get(ref, ()) if tag in names))

    return replace(
        inventory,
        vms={**inventory.vms, **{ref: replace(inventory.vms[ref], tags=of(ref)) for ref in asked}},
        hosts={**inventory.hosts, **{ref: replace(inventory.hosts[ref], tags=of(ref)) for ref in hosts}},
    )


@contextmanager
def _tagging(target: Target, http: requests.Session) -> Iterator[Any]:
    """The tagging services, logged in for as long as they are needed."""
    from com.vmware.cis.tagging_client import StubFactory
    from com.vmware.cis_client import Session as LoginService
    from vmware.vapi.lib.connect import get_requests_connector
    from vmware.vapi.security.client.security_context_filter import LegacySecurityContextFilter
    from vmware.vapi.security.session import create_session_security_context
    from vmware.vapi.security.user_password import create_user_password_security_context
    from vmware.vapi.stdlib.client.factories import StubConfigurationFactory

    def configured(security: Any) -> Any:
        connector = get_requests_connector(
            session=http,
            url=f"https://{target.address}/api",
            timeout=network.SILENCE_S,
            pool_size=None,  # a number would make it mount adapters of its own, with the system's trust
            provider_filter_chain=[LegacySecurityContextFilter(security_context=security)],
        )
        return StubConfigurationFactory.new_std_configuration(connector)

    password = create_user_password_security_context(target.username, target.password.reveal())
    configuration = configured(create_session_security_context(LoginService(configured(password)).create()))
    try:
        yield StubFactory(configuration)
    finally:
        with suppress(*_vapi_errors(), *network.LOST_ERRORS):
            LoginService(configuration).delete()


def _attached(service: Any, objects: list[tuple[str, str]]) -> Mapping[str, Collection[str]]:
    """Tag ids by managed object id, for those that have any."""
    from com.vmware.vapi.std_client import DynamicID

    found: dict[str, Collection[str]] = {}
    for start in range(0, len(objects), OBJECTS_PER_CALL):
        page = [DynamicID(type=kind, id=ref) for kind, ref in objects[start : start + OBJECTS_PER_CALL]]
        for each in service.TagAssociation.list_attached_tags_on_objects(page):
            found[each.object_id.id] = each.tag_ids
    return found


def _names(service: Any, tags: Collection[str]) -> Mapping[str, str]:
    """`category:tag` by tag id; one deleted meanwhile is left out."""
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


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings and log lines that tell a user nothing; our own error says what they say."""
    logging.getLogger("vmware").addHandler(logging.NullHandler())
    with warnings.catch_warnings():
        # the SDK loads its messages in a way that newer Pythons have another name for
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"(vmware|com)\.")
        warnings.filterwarnings("ignore", message="Unverified HTTPS request")  # said once, in red, at the entrance
        yield


@contextmanager
def _translated(target: Target) -> Iterator[None]:
    from com.vmware.vapi.std.errors_client import Unauthenticated, Unauthorized

    try:
        yield
    except Unauthenticated as error:
        raise LoginRefused(
            f"{target.address} refuses {target.username} for tags", hint="check the user name and password"
        ) from error
    except Unauthorized as error:
        raise NoPermission("this login may not read tags", hint="ask for read access to tags and VMs") from error
    except (*network.LOST_ERRORS, network.UnreadableReply) as error:
        raise network.connection_error(target, error) from error
    except _vapi_errors() as error:
        raise _not_answered(target, error) from error


def _vapi_errors() -> tuple[type[Exception], ...]:
    """What the SDK raises for an error reply, and for one it cannot make sense of."""
    from vmware.vapi.bindings.error import VapiError
    from vmware.vapi.data.serializers.jsonrpc import JsonRpcError
    from vmware.vapi.exception import CoreException

    return (VapiError, JsonRpcError, CoreException, *network.UNREADABLE_ERRORS)


def _not_answered(target: Target, error: Exception) -> GpuopsError:
    said = next(iter(_messages(error)), "")
    return ProtocolError(
        f"{target.address} does not tell tags: {type(error).__name__}{f': {said[:_LONGEST_SAID]}' if said else ''}",
        hint="custom attributes say the same over the main API",
    )


def _messages(error: Exception) -> Iterator[str]:
    """What the server says, as its error replies have it, or what the SDK itself says of a reply."""
    for message in getattr(error, "messages", None) or ():
        said = getattr(message, "default_message", None) or getattr(message, "def_msg", None)
        if isinstance(said, str):
            yield said
