"""Parses SOAP requests to typed arguments, writes results and faults as SOAP replies, and serves storage policies.

/pbm lists the storage policies that every vCenter has; no VM and no disk has one. It serves what the Terraform provider
for vSphere asks for (its config.go and spbm_helper.go; govmomi, pbm/client.go): the service content when it is
configured and before each question, PbmQueryAssociatedProfile of each VM and disk that it reads, and for its data
source of policies PbmQueryProfile and PbmRetrieveContent. Other methods are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final
from xml.parsers import expat

from lxml import etree
from pyVmomi import SoapAdapter, VmomiSupport, pbm, vmodl

from gpuops.sim.core.encoder import NAMESPACE, Encoded, Encoding, encoder, escape
from gpuops.sim.core.managed_object import ManagedObject
from gpuops.sim.inventory import faults
from gpuops.sim.render.defaults import filled

if TYPE_CHECKING:
    from gpuops.sim.world import World

_ENVELOPE: Final = f"{{{SoapAdapter.XMLNS_SOAPENV}}}"

_HEAD: Final = (
    '<?xml version="1.0" encoding="UTF-8"?>\n'
    '<soapenv:Envelope xmlns:soapenc="http://schemas.xmlsoap.org/soap/encoding/" '
    'xmlns:soapenv="http://schemas.xmlsoap.org/soap/envelope/" '
    'xmlns:xsd="http://www.w3.org/2001/XMLSchema" '
    'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"><soapenv:Body>'
)
_TAIL: Final = "</soapenv:Body></soapenv:Envelope>"
_PARSER: Final = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, remove_comments=True)
_FILTER_SPEC: Final = vmodl.query.PropertyCollector.FilterSpec
_PROPERTY_SPEC: Final = vmodl.query.PropertyCollector.PropertySpec
_OPERATION_ID_HEADERS: Final = ("operationID", "opID", "activationID")


class InvalidEnvelope(ValueError):
    """The request is not a SOAP envelope, or not one that a vSphere client sends."""


@dataclass(frozen=True, slots=True)
class SoapRequest:
    """A parsed envelope: the method element is kept as XML until its parameter types are known."""

    method: str
    receiver_type: str
    moid: str
    operation_id: str
    version: str
    element: Any
    namespace: str = NAMESPACE

    @property
    def wire(self) -> Callable[[str], Encoding]:
        """Returns the encoder of a version."""
        return encoder

    def arguments(self, info: Any) -> dict[str, Any]:
        """Return the parameters as pyVmomi values by name; None for an omitted one, an empty list for an omitted list.

        Raises vmodl.fault.InvalidRequest for unknown or unreadable parameters, InvalidArgument for a missing one.
        """
        elements: dict[str, list[Any]] = {}
        for child in self.element:
            elements.setdefault(etree.QName(child).localname, []).append(child)
        elements.pop("_this", None)
        parameters = {parameter.name: parameter for parameter in info.params}
        unknown = next((name for name in elements if name not in parameters), None)
        if unknown is not None:
            raise vmodl.fault.InvalidRequest(msg=f"{self.method} has no parameter {unknown}")
        return {
            name: _argument(elements.get(name, []), parameter, self.version) for name, parameter in parameters.items()
        }

    def property_path(self) -> str:
        """Return the path of the property that a Fetch reads. Raises vmodl.fault.InvalidArgument without one."""
        for child in self.element:
            if etree.QName(child).localname == "prop":
                return (child.text or "").strip()
        raise vmodl.fault.InvalidArgument(msg="A specified parameter was not correct: prop", invalidProperty="prop")

    def start_types(self) -> Iterator[str]:
        """The types of the objects that a bulk read starts from."""
        for element in self.element.iter():
            if isinstance(element.tag, str) and element.tag.rsplit("}", 1)[-1] == "obj":
                yield element.get("type", "")

    def reply(self, result: Any, declared_type: Any) -> tuple[int, bytes]:
        """The HTTP status and body with a method's result; a void or unset one has no returnval."""
        parts = (
            result.parts
            if isinstance(result, Encoded)
            else [_encode_return(result, declared_type, self.version).encode()]
        )
        head, tail = f'{_HEAD}<{self.method}Response xmlns="{self.namespace}">', f"</{self.method}Response>{_TAIL}"
        return 200, b"".join((head.encode(), *parts, tail.encode()))

    def property_reply(self, fragment: bytes, declared_type: Any) -> tuple[int, bytes]:
        """The HTTP status and body with the value of a property; without a returnval if it is unset."""
        # a fragment is <val ...>...</val>: 4 and 6 are the lengths of `<val` and `</val>`
        returnval = [b"<returnval", fragment[4:-6], b"</returnval>"] if fragment else []
        return self.reply(Encoded(returnval), object)

    def fault_reply(self, fault: Any) -> bytes:
        """The body of a reply with a fault."""
        return fault_reply(fault, self.version)


@cache
def negotiate(soap_action: str, newest: str) -> str:
    """The API version to speak: what the client's SOAPAction names, at most `newest` (such as 8.0.3.0)."""
    server = VmomiSupport.versionMap[f"vim25/{newest}"]
    requested_version = VmomiSupport.versionMap.get(soap_action.strip('"').removeprefix("urn:"), server)
    return str(requested_version if VmomiSupport.IsChildVersion(server, requested_version) else server)


@cache
def service_versions(newest: str) -> bytes:
    """Return the document /sdk/vimServiceVersions.xml: the version `newest` and the older ones compatible with it."""
    server = VmomiSupport.versionMap[f"vim25/{newest}"]
    older = [
        VmomiSupport.versionIdMap[version]
        for version in VmomiSupport.GetServiceVersions("vim25")
        if VmomiSupport.versionIdMap[version] and version != server and VmomiSupport.IsChildVersion(server, version)
    ]
    priors = "".join(f"<version>{number}</version>" for number in older)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<namespaces version="1.0"><namespace><name>urn:vim25</name>'
        f"<version>{newest}</version><priorVersions>{priors}</priorVersions></namespace></namespaces>"
    ).encode()


def parse(body: bytes, version: str) -> SoapRequest:
    """The request in an envelope. Raises InvalidEnvelope."""
    try:
        envelope = etree.fromstring(body, _PARSER)
    except etree.XMLSyntaxError as error:
        raise InvalidEnvelope(f"not XML: {error}") from error
    content = envelope.find(f"{_ENVELOPE}Body")
    if content is None or len(content) == 0:
        raise InvalidEnvelope("the envelope has no SOAP body")
    element = content[0]
    this_element = next((child for child in element if etree.QName(child).localname == "_this"), None)
    if this_element is None:
        raise InvalidEnvelope("the request has no _this, which names its object")
    return SoapRequest(
        method=etree.QName(element).localname,
        receiver_type=this_element.get("type", "").rsplit(":", 1)[-1],
        moid=(this_element.text or "").strip(),
        operation_id=_operation_id(envelope.find(f"{_ENVELOPE}Header")),
        version=version,
        element=element,
    )


def _operation_id(header: Any) -> str:
    if header is None:
        return ""
    header_texts = {etree.QName(child).localname: child.text or "" for child in header if isinstance(child.tag, str)}
    return next((header_texts[name] for name in _OPERATION_ID_HEADERS if name in header_texts), "")


def _argument(elements: list[Any], parameter: Any, version: str) -> Any:
    if issubclass(parameter.type, list):
        item_type = parameter.type.Item
        return parameter.type([decode(element, item_type, version) for element in elements])
    if elements:
        return decode(elements[0], parameter.type, version)
    if parameter.flags & VmomiSupport.F_OPTIONAL:
        return None
    raise vmodl.fault.InvalidArgument(
        msg=f"A specified parameter was not correct: {parameter.name}", invalidProperty=parameter.name
    )


def decode(element: Any, expected: Any, version: str) -> Any:
    """Return the typed value of an XML element.

    Raises vmodl.fault.InvalidRequest for an unreadable element, InvalidType for a value of another type.
    """
    text = etree.tostring(element, with_tail=False)
    try:
        if expected is _FILTER_SPEC:  # large ones are not cached, to limit the memory of the cache
            value = (_cached_filter_spec if len(text) <= _LARGEST_CACHED else _filter_spec)(text, version)
        else:
            value = _value(text, expected, version)
    except (AttributeError, KeyError, TypeError, ValueError, expat.ExpatError) as error:
        raise _unreadable(vmodl.fault.InvalidRequest, element, expected) from error
    if _names_its_type(expected) and not isinstance(value, expected):
        raise _unreadable(vmodl.fault.InvalidType, element, expected)
    return value


@cache
def _names_its_type(expected: Any) -> bool:
    """Whether a value names its own type, which then must be the one expected or derive from it."""
    return issubclass(expected, (VmomiSupport.ManagedObject, VmomiSupport.DataObject))


def _unreadable(kind: Any, element: Any, expected: Any) -> Exception:
    """Return an InvalidRequest, or the InvalidType of a value that names another type (vSphere API)."""
    name, expected_name = etree.QName(element).localname, VmomiSupport.GetWsdlName(expected)
    return kind(msg=f"{name} cannot be read as {expected_name}")


def _value(text: bytes, expected: Any, version: str) -> Any:
    deserializer = SoapAdapter.SoapDeserializer(version=version)
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    deserializer.Deserialize(parser, expected, nsMap={})
    parser.Parse(text, True)
    return deserializer.GetResult()


def _filter_spec(text: bytes, version: str) -> Any:
    element = etree.fromstring(text, _PARSER)
    property_sets = element.findall("{*}propSet")
    for property_set in property_sets:
        element.remove(property_set)
    value = _value(etree.tostring(element), _FILTER_SPEC, version)
    if property_sets:
        value.propSet = [
            _property_spec(etree.tostring(property_set, with_tail=False), version) for property_set in property_sets
        ]
    return value


_cached_filter_spec: Final = lru_cache(maxsize=256)(_filter_spec)
"""A client that polls sends the same spec again and again. The decoded specs can be shared: nothing changes them."""
_LARGEST_CACHED: Final = 16 * 1024


@lru_cache(maxsize=1024)
def _property_spec(text: bytes, version: str) -> Any:
    """Return a decoded PropertySpec; it is cached, because clients send the same long list with every read."""
    return _value(text, _PROPERTY_SPEC, version)


def _encode_return(result: Any, declared_type: Any, version: str) -> str:
    if result is None or declared_type is type(None):
        return ""
    writer = encoder(version)
    if issubclass(declared_type, list):
        return writer.array("returnval", result, declared_type)
    return writer.element("returnval", result.ref if isinstance(result, ManagedObject) else result, declared_type)


def fault_reply(fault: Any, version: str) -> bytes:
    """The 500 reply: a SOAP Fault whose detail is the typed fault."""
    code = "ServerFaultCode"
    text = escape(fault.msg or type(fault).__name__.rsplit(".", 1)[-1])
    detail = encoder(version).fault_detail(fault)
    return (
        f"{_HEAD}<soapenv:Fault><faultcode>{code}</faultcode><faultstring>{text}</faultstring>"
        f"<detail>{detail}</detail></soapenv:Fault>{_TAIL}"
    ).encode()


PATHS: Final = ("/pbm", "/pbm/sdk")
"""The paths that govmomi and pyVmomi use for storage policies."""
PBM_NAMESPACE: Final = "urn:pbm"
OLDEST: Final = "pbm.version.version2"
"""The version for clients that name none, such as govmomi."""
POLICIES: Final = {
    "aa6d5a82-1c88-45da-85d3-3d74b91a5bad": "vSAN Default Storage Policy",
    "4d5f673c-536f-11e6-beb8-9e71128cae77": "VM Encryption Policy",
}
"""The policies of a new vCenter by id; the ids are the same in every vCenter (govmomi, pbm/simulator/profiles.go)."""
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


def _read_policies(profileIds: Any) -> Any:  # noqa: N803 - the API's names
    """Return the storage policies with these ids. Raises InvalidArgument."""
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
    "PbmRetrieveContent": _read_policies,
}


def answer_storage_policies(world: World, action: str, body: bytes, cookie: str) -> tuple[int, bytes]:
    """Return (HTTP status, reply) of one request. `cookie` is vCenter's session cookie, or empty: a client may send it
    in the SOAP header instead."""
    version = VmomiSupport.versionMap.get(action.strip('"').removeprefix("urn:"), OLDEST)
    try:
        request = replace(parse(body, version), namespace=PBM_NAMESPACE)
    except InvalidEnvelope as error:
        return 500, fault_reply(vmodl.fault.InvalidRequest(msg=str(error)), version)
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


def _reply(world: World, request: SoapRequest, *, logged_in: bool) -> tuple[int, bytes]:
    """Return (HTTP status, reply) of a method of the storage policy service. Raises a vmodl fault."""
    try:
        info = VmomiSupport.GetWsdlMethod(PBM_NAMESPACE, request.method).info
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
