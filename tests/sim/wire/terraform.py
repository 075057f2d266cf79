"""The requests of the Terraform provider for vSphere, as plain HTTP.

What it asks and in which order: its public source (terraform-provider-vsphere: config.go, spbm_helper.go,
resource_pool_helper.go, virtual_machine_helper.go, virtual_machine_config_structure.go,
resource_vsphere_virtual_machine.go and the files below internal/virtualdevice), and that of govmomi, which sends them.
"""

from __future__ import annotations

import base64
import http.client
import json
from typing import Any

from lxml import etree

from gpuops.sim.server import SimServer

SERVICE = ("ServiceInstance", "ServiceInstance")
INDEX = ("SearchIndex", "SearchIndex")
COLLECTOR = ("PropertyCollector", "propertyCollector")
PROFILES = ("PbmProfileProfileManager", "ProfileManager")
TAGGING = "/rest/com/vmware/cis/tagging"
XSI = "{http://www.w3.org/2001/XMLSchema-instance}type"
Reference = tuple[str, str]


class Refused(Exception):
    """A SOAP fault; its text is the type of the fault."""


def reference(tag: str, obj: Reference) -> str:
    return f'<{tag} type="{obj[0]}">{obj[1]}</{tag}>'


def plain(element: Any) -> Any:
    """An element as Python values: text, or a dictionary in which each name has the list of its values."""
    if len(element) == 0:
        return (element.get("type"), element.text) if element.get("type") else element.text or ""
    fields: dict[str, Any] = {"": element.get(XSI, "")}
    for child in element:
        fields.setdefault(etree.QName(child).localname, []).append(plain(child))
    return fields


class Provider:
    """A configured provider: sessions over SOAP and REST, and the service of storage policies."""

    def __init__(self, server: SimServer) -> None:
        self._server = server
        self._connection = http.client.HTTPConnection(server.host, server.port)
        self._cookie = ""
        self._session = ""

    def configure(self) -> None:
        """Log in to each service, as the provider does before anything else."""
        content = self.call("RetrieveServiceContent", SERVICE)
        assert content[0]["about"][0]["apiType"] == ["VirtualCenter"]
        login = f"<userName>{self._server.username}</userName><password>{self._server.password}</password>"
        self.call("Login", content[0]["sessionManager"][0], login)
        basic = base64.b64encode(f"{self._server.username}:{self._server.password}".encode()).decode()
        self._session = self.rest("POST", "/rest/com/vmware/cis/session", authorization=f"Basic {basic}")
        (policies,) = self.policies("PbmRetrieveServiceContent", ("PbmServiceInstance", "ServiceInstance"))
        assert policies["profileManager"] == [PROFILES]

    def close(self) -> None:
        self._connection.close()

    # --- the three services ---------------------------------------------------------------------------------------

    def call(self, method: str, moref: Reference, body: str = "") -> list[Any]:
        return self._soap("/sdk", "urn:vim25", "urn:vim25/8.0.3.0", method, moref, body)

    def policies(self, method: str, moref: Reference = PROFILES, body: str = "") -> list[Any]:
        return self._soap("/pbm", "urn:pbm", "urn:pbm/", method, moref, body)

    def rest(self, verb: str, path: str, body: object = None, **headers: str) -> Any:
        all_headers = {**headers, "vmware-api-session-id": self._session, "content-type": "application/json"}
        raw = json.dumps(body).encode() if body is not None else None
        self._connection.request(verb, path, raw, all_headers)
        reply = self._connection.getresponse()
        document = json.loads(reply.read() or b"{}")
        assert reply.status == 200, document
        return document.get("value")

    def _soap(self, path: str, namespace: str, action: str, method: str, moref: Reference, body: str) -> list[Any]:
        header = f"<vcSessionCookie>{self._cookie}</vcSessionCookie>" if namespace != "urn:vim25" else ""
        envelope = (
            '<Envelope xmlns="http://schemas.xmlsoap.org/soap/envelope/"'
            ' xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xmlns:xsd="http://www.w3.org/2001/XMLSchema">'
            f"<Header>{header}</Header>"
            f'<Body><{method} xmlns="{namespace}">{reference("_this", moref)}{body}</{method}></Body></Envelope>'
        )
        cookie = {"Cookie": f"vmware_soap_session={self._cookie}"} if self._cookie else {}
        self._connection.request("POST", path, envelope.encode(), {"SOAPAction": action, **cookie})
        reply = self._connection.getresponse()
        document = etree.fromstring(reply.read())
        if new_cookie := reply.getheader("set-cookie"):
            self._cookie = new_cookie.partition('"')[2].partition('"')[0]
        if (fault := document.find(".//{*}detail")) is not None:
            raise Refused(fault[0].get(XSI))
        return [plain(element) for element in document.iterfind(".//{*}returnval")]

    # --- what govmomi makes of them -------------------------------------------------------------------------------

    def properties(self, obj: Reference, *paths: str) -> dict[str, Any]:
        """These properties of one object, or all of them."""
        path_set = "".join(f"<pathSet>{path}</pathSet>" for path in paths) or "<all>true</all>"
        spec = f"<propSet><type>{obj[0]}</type>{path_set}</propSet><objectSet>{reference('obj', obj)}</objectSet>"
        (content,) = self.call("RetrieveProperties", COLLECTOR, f"<specSet>{spec}</specSet>")
        return {prop["name"][0]: prop["val"][0] for prop in content.get("propSet", [])}

    def path_of(self, obj: Reference) -> list[str]:
        """The names of an object and of those above it, as govmomi reads them of every object that it is given."""
        upwards = (
            '<selectSet xsi:type="TraversalSpec"><name>up</name><type>ManagedEntity</type><path>parent</path>'
            "<skip>false</skip><selectSet><name>up</name></selectSet></selectSet>"
            '<selectSet xsi:type="TraversalSpec"><type>VirtualMachine</type><path>parentVApp</path><skip>false</skip>'
            "<selectSet><name>up</name></selectSet></selectSet>"
        )
        spec = (
            "<propSet><type>ManagedEntity</type><pathSet>name</pathSet><pathSet>parent</pathSet></propSet>"
            "<propSet><type>VirtualMachine</type><pathSet>parentVApp</pathSet></propSet>"
            f"<objectSet>{reference('obj', obj)}<skip>false</skip>{upwards}</objectSet>"
        )
        contents = self.call("RetrieveProperties", COLLECTOR, f"<specSet>{spec}</specSet>")
        return [prop["val"][0] for content in contents for prop in content["propSet"] if prop["name"] == ["name"]]

    def at(self, path: str) -> Reference:
        (obj,) = self.call("FindByInventoryPath", INDEX, f"<inventoryPath>{path}</inventoryPath>")
        self.path_of(obj)
        return obj

    def by_uuid(self, uuid: str) -> Reference | None:
        arguments = f"<uuid>{uuid}</uuid><vmSearch>true</vmSearch><instanceUuid>false</instanceUuid>"
        return next(iter(self.call("FindByUuid", INDEX, arguments)), None)

    def is_vapp(self, pool: Reference) -> bool:
        """A pool is a vApp if a reference to it as one is not refused."""
        try:
            return bool(self.path_of(("VirtualApp", pool[1])))
        except Refused as fault:
            assert str(fault) == "ManagedObjectNotFound"
            return False

    def run(self, method: str, moref: Reference, body: str = "") -> Any:
        """The result of a task, waited for with a collector of its own."""
        (task,) = self.call(method, moref, body)
        (collector,) = self.call("CreatePropertyCollector", COLLECTOR)
        spec = "<propSet><type>Task</type><pathSet>info</pathSet></propSet>"
        spec += f"<objectSet>{reference('obj', task)}</objectSet>"
        self.call("CreateFilter", collector, f"<spec>{spec}</spec><partialUpdates>false</partialUpdates>")
        version, state = "", ""
        while state not in ("success", "error"):
            (update,) = self.call("WaitForUpdatesEx", collector, f"<version>{version}</version>")
            version = update["version"][0]
            for change in update["filterSet"][0]["objectSet"][0]["changeSet"]:
                info = change["val"][0]
                state = info["state"][0]
        self.call("DestroyPropertyCollector", collector)
        assert state == "success", info["error"]
        return info.get("result", [None])[0]
