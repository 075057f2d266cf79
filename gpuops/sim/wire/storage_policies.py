"""Answers on /pbm: the storage policies that every vCenter has, and that no VM and no disk has one.

What the Terraform provider for vSphere asks for (its config.go and spbm_helper.go; govmomi, pbm/client.go): the service
content when it is configured and before each question, PbmQueryAssociatedProfile of each VM and disk that it reads, and
for its data source of policies PbmQueryProfile and PbmRetrieveContent. Other methods are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import VmomiSupport, pbm, vmodl

from gpuops.sim.inventory import faults
from gpuops.sim.render.defaults import filled
from gpuops.sim.wire import soap

if TYPE_CHECKING:
    from gpuops.sim.world import World

PATHS: Final = ("/pbm", "/pbm/sdk")
"""Where govmomi and pyVmomi look for it."""
NAMESPACE: Final = "urn:pbm"
OLDEST: Final = "pbm.version.version2"
"""What is spoken with a client that names no version, as govmomi."""
POLICIES: Final = {
    "aa6d5a82-1c88-45da-85d3-3d74b91a5bad": "vSAN Default Storage Policy",
    "4d5f673c-536f-11e6-beb8-9e71128cae77": "VM Encryption Policy",
}
"""Those of a new vCenter by their ids, which are the same in each one (govmomi, pbm/simulator/profiles.go)."""
OBJECTS: Final[Mapping[str, Any]] = {
    "sessionManager": pbm.auth.SessionManager("SessionManager"),
    "capabilityMetadataManager": pbm.capability.CapabilityMetadataManager("CapabilityMetadataManager"),
    "profileManager": pbm.profile.ProfileManager("ProfileManager"),
    "complianceManager": pbm.compliance.ComplianceManager("complianceManager"),
    "placementSolver": pbm.placement.PlacementSolver("placementSolver"),
}
_ALL: Final[list[Any]] = [pbm.ServiceInstance("ServiceInstance"), *OBJECTS.values()]
RECEIVERS: Final = {(obj._wsdlName, obj._moId): obj for obj in _ALL}
STORAGE: Final = pbm.profile.ResourceType(resourceType="STORAGE")


def _content(instance_uuid: str) -> Any:
    about = pbm.AboutInfo(name="PBM", version="2.0", instanceUuid=instance_uuid)
    return pbm.ServiceInstanceContent(aboutInfo=about, **OBJECTS)


def _list_policies(resourceType: Any, profileCategory: str | None) -> Any:  # noqa: N803 - the API's names
    if resourceType.resourceType != "STORAGE" or profileCategory not in (None, "REQUIREMENT"):
        return []
    return [pbm.profile.ProfileId(uniqueId=key) for key in POLICIES]


def _read(profileIds: Any) -> Any:  # noqa: N803 - the API's names
    keys = [profile.uniqueId for profile in profileIds]
    if not keys or any(key not in POLICIES for key in keys):
        raise faults.wrong_argument("profileIds")
    return [
        filled(
            pbm.profile.CapabilityBasedProfile,
            profileId=pbm.profile.ProfileId(uniqueId=key),
            name=POLICIES[key],
            profileCategory="REQUIREMENT",
            resourceType=STORAGE,
            constraints=pbm.profile.SubProfileCapabilityConstraints(),
        )
        for key in keys
    ]


ANSWERS: Final[Mapping[str, Callable[..., Any]]] = {
    "PbmQueryAssociatedProfile": lambda entity: [],
    "PbmQueryAssociatedProfiles": lambda entities: [
        pbm.profile.QueryProfileResult(object=entity) for entity in entities
    ],
    "PbmQueryProfile": _list_policies,
    "PbmRetrieveContent": _read,
}


def answer(world: World, action: str, body: bytes, cookie: str) -> tuple[int, bytes]:
    """Return (HTTP status, reply) of one request. `cookie` is vCenter's session cookie, or empty: a client may send it
    in the SOAP header instead."""
    version = VmomiSupport.versionMap.get(action.strip('"').removeprefix("urn:"), OLDEST)
    try:
        request = replace(soap.parse(body, version), namespace=NAMESPACE)
    except soap.InvalidEnvelope as error:
        return 500, soap.fault_reply(vmodl.fault.InvalidRequest(msg=str(error)), version)
    header = request.element.getroottree().getroot().find(".//{*}vcSessionCookie")
    token = cookie or (header.text or "" if header is not None else "")
    with world.lock:
        world.clock.take_request()
        session = world.sessions.find(token)
        if session is not None:
            session.active_at = world.clock.now()
        try:
            return _reply(world, request, logged_in=session is not None)
        except vmodl.MethodFault as fault:
            return 500, request.fault_reply(fault)


def _reply(world: World, request: soap.SoapRequest, *, logged_in: bool) -> tuple[int, bytes]:
    try:
        info = VmomiSupport.GetWsdlMethod(NAMESPACE, request.method).info
    except KeyError:
        raise vmodl.fault.MethodNotFound(
            msg=f"There is no method {request.method}.",
            method=request.method,
            receiver=VmomiSupport.ManagedObject(request.moid),
        ) from None
    receiver = RECEIVERS.get((request.receiver_type, request.moid))
    if not isinstance(receiver, info.type):
        raise vmodl.fault.ManagedObjectNotFound(
            msg=f"There is no object '{request.receiver_type}:{request.moid}'.",
            obj=VmomiSupport.ManagedObject(request.moid),
        )
    if request.method == "PbmRetrieveServiceContent":  # the only method that needs no login
        return request.reply(_content(world.get("ServiceInstance").instance_uuid), info.result)
    if not logged_in:
        raise vmodl.fault.SecurityError(msg="The session is not authenticated.")
    if request.method not in ANSWERS:
        raise faults.not_supported(f"The method {request.method} is not simulated.")
    return request.reply(ANSWERS[request.method](**request.arguments(info)), info.result)
