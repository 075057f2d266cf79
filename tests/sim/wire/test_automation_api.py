"""The REST wires of the vSphere Automation API: what is refused has VMware's words and shape, never Python's."""

from __future__ import annotations

import base64
import itertools
import json
import random
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from typing import Any

import pytest

from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from tests.sim.lab import category_spec
from tests.sim.wire.automation_clients import TAGGING, Rest

ERRORS = "com.vmware.vapi.std.errors"


@pytest.fixture
def rest() -> Iterator[Rest]:
    with SimServer(build("lab"), tls=False) as server:
        client = Rest(server)
        yield client
        client.close()
    assert server.world.bugs == []


def require_refusal(answer: tuple[int, Any], status: int, kind: str) -> dict[str, Any]:
    """The message of an error reply, whose shape is that of a vCenter 8 (terraform-provider-vsphere issue 1819)."""
    assert (answer[0], answer[1]["type"]) == (status, f"{ERRORS}.{kind}")
    assert answer[1]["value"]["error_type"] == kind.upper()
    (message,) = answer[1]["value"]["messages"]
    assert set(message) == {"id", "default_message", "args"}
    return dict(message)


def test_null_is_no_body(rest: Rest) -> None:
    tag = rest.tag("night", rest.category("rotation"))
    rest.attach(tag, "VirtualMachine", rest.moid("ml-07"))
    assert rest.attached(tag) == (200, {"value": [{"type": "VirtualMachine", "id": rest.moid("ml-07")}]})


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("tag", {}, 'Structure operation-input is missing a field "create_spec"'),
        ("tag", None, 'Structure operation-input is missing a field "create_spec"'),
        ("tag", [], "Type mismatch, expected an object of type STRUCTURE, but got LIST"),
        ("tag", {"create_spec": 1}, "Type mismatch, expected an object of type STRUCTURE, but got INTEGER"),
        ("category", {"create_spec": {**category_spec("a"), "name": 5}}, "expected an object of type STRING"),
        (
            "category",
            {"create_spec": {**category_spec("a"), "cardinality": "SOME"}},
            "SOME is not a value of com.vmware.cis.tagging.category_model.cardinality",
        ),
        ("category", {"create_spec": category_spec("")}, "A category needs a name"),
        ("category", {"create_spec": {"name": "a"}}, 'is missing a field "description"'),
        ("tag-association?~action=list-attached-tags", {"object_id": {"type": "VirtualMachine"}}, 'a field "id"'),
    ],
)
def test_a_body_of_another_shape_is_an_invalid_argument(rest: Rest, path: str, body: object, message: str) -> None:
    answer = rest("POST", f"{TAGGING}/{path}", body)
    assert message in require_refusal(answer, 400, "invalid_argument")["default_message"]


def test_a_list_in_place_of_parameters_is_an_invalid_argument(rest: Rest) -> None:
    tag = rest.tag("night", rest.category("rotation"))
    answer = rest("POST", f"{TAGGING}/tag-association/id:{tag}?~action=list-attached-objects", [])
    assert require_refusal(answer, 400, "invalid_argument")["id"] == "vapi.data.validate.mismatch"


def test_other_errors_have_their_kinds(rest: Rest) -> None:
    answer = rest("POST", f"{TAGGING}/category", {"create_spec": category_spec("a"), "more": 1})
    assert require_refusal(answer, 400, "unexpected_input")["args"] == ["more", "operation-input"]
    assert require_refusal(rest("POST", f"{TAGGING}/category", b"{"), 400, "invalid_request")
    assert require_refusal(rest("GET", f"{TAGGING}/tag/id:none"), 404, "not_found")
    assert require_refusal(rest("POST", f"{TAGGING}/tag?~action=fly"), 404, "operation_not_found")
    message = require_refusal(rest("GET", "/rest/vcenter/no-such-thing"), 404, "not_found")
    assert message["default_message"] == "Unable to find operations for URL: /rest/vcenter/no-such-thing."


def test_names_of_tags_and_categories_are_had_once(rest: Rest) -> None:
    first, second = rest.category("first"), rest.category("second")
    assert rest("POST", f"{TAGGING}/category", {"create_spec": category_spec("first")})[0] == 400
    rename = {"update_spec": {"name": "first"}}
    require_refusal(rest("PATCH", f"{TAGGING}/category/id:{second}", rename), 400, "already_exists")
    first_tag, second_tag = rest.tag("one", first), rest.tag("two", first)
    require_refusal(
        rest("PATCH", f"{TAGGING}/tag/id:{second_tag}", {"update_spec": {"name": "one"}}), 400, "already_exists"
    )
    assert rest("PATCH", f"{TAGGING}/tag/id:{first_tag}", {"update_spec": {"name": "one"}})[0] == 200


def test_a_tag_is_attached_where_its_category_allows_it(rest: Rest) -> None:
    """Tag_association.attach of the vSphere Automation API reference: associability, cardinality, a valid object."""
    of_hosts = rest.tag("rack-1", rest.category("rack", "HostSystem"))
    vm, host = rest.moid("ml-07"), rest.moid("esx-01.lab", "HostSystem")
    require_refusal(rest.attach(of_hosts, "VirtualMachine", vm), 400, "invalid_argument")
    assert rest.attach(of_hosts, "HostSystem", host)[0] == 200
    anything = rest.tag("mine", rest.category("owner"))
    for kind, moid in (("VirtualMachine", "vm-none"), ("HostSystem", vm), ("NoType", vm)):
        require_refusal(rest.attach(anything, kind, moid), 400, "invalid_argument")
    assert rest.attached(anything)[1] == {"value": []}
    single = rest.category("role", "VirtualMachine", cardinality="SINGLE")
    day, night = rest.tag("day", single), rest.tag("night", single)
    assert [rest.attach(day, "VirtualMachine", vm)[0] for _ in range(2)] == [200, 200]
    require_refusal(rest.attach(night, "VirtualMachine", vm), 400, "invalid_argument")
    attachable = rest("POST", f"{TAGGING}/tag-association?~action=list-attachable-tags", _object(vm))[1]["value"]
    assert sorted(attachable) == sorted([anything, day])


def _object(vm: str) -> dict[str, Any]:
    return {"object_id": {"type": "VirtualMachine", "id": vm}}


def test_a_batch_does_what_it_can_and_tells_the_rest(rest: Rest) -> None:
    tag = rest.tag("night", rest.category("rotation", "VirtualMachine"))
    vm = rest.moid("ml-07")
    objects = [{"type": "VirtualMachine", "id": vm_id} for vm_id in ("vm-none", vm)]
    path = f"{TAGGING}/tag-association/id:{tag}?~action=attach-tag-to-multiple-objects"
    result = rest("POST", path, {"object_ids": objects})[1]["value"]
    assert (result["success"], len(result["error_messages"])) == (False, 1)
    assert rest.attached(tag)[1]["value"] == objects[1:]
    path = f"{TAGGING}/tag-association?~action=attach-multiple-tags-to-object"
    result = rest("POST", path, {**_object(vm), "tag_ids": ["urn:none"]})[1]["value"]
    assert (result["success"], "urn:none" in result["error_messages"][0]["default_message"]) == (False, True)
    require_refusal(rest("POST", path, {**_object("vm-none"), "tag_ids": [tag]}), 403, "unauthorized")


def test_the_newer_shape_has_no_wrapping(rest: Rest) -> None:
    status, category = rest("POST", "/api/cis/tagging/category", category_spec("owner"))
    assert (status, category.startswith("urn:vmomi:InventoryServiceCategory:")) == (201, True)
    spec = {"name": "me", "description": "", "category_id": category}
    status, tag = rest("POST", "/api/cis/tagging/tag", spec)
    assert rest("GET", f"/api/cis/tagging/tag/{tag}")[1]["name"] == "me"
    assert rest("POST", f"/api/cis/tagging/tag-association/{tag}?action=attach", _object(rest.moid("ml-07"))) == (
        204,
        None,
    )
    assert rest("DELETE", f"/api/cis/tagging/tag/{tag}") == (204, None)
    status, error = rest("GET", f"/api/cis/tagging/tag/{tag}")
    assert (status, error["error_type"]) == (404, "NOT_FOUND")


def test_the_types_of_a_category_have_no_namespace(rest: Rest) -> None:
    category = rest.category("place", "urn:vim25:HostSystem", "Datastore")
    category_model = rest("GET", f"{TAGGING}/category/id:{category}")[1]["value"]
    assert category_model["associable_types"] == ["Datastore", "HostSystem"]
    rest("PATCH", f"{TAGGING}/category/id:{category}", {"update_spec": {"associable_types": ["urn:vim25:Folder"]}})
    assert rest("GET", f"{TAGGING}/category/id:{category}")[1]["value"]["associable_types"] == ["Folder"]


@pytest.mark.parametrize(
    ("login", "use"),
    [("/rest/com/vmware/cis/session", f"{TAGGING}/tag"), ("/api/session", "/api/cis/tagging/tag")],
)
def test_a_cookie_jar_is_enough(rest: Rest, login: str, use: str) -> None:
    """Curl with a cookie jar and vmware_exporter send the session back as they got it: as a cookie."""
    server = rest.server
    at = f"http://{server.host}:{server.port}"
    basic = base64.b64encode(f"{server.username}:{server.password}".encode()).decode()
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    opener.open(urllib.request.Request(f"{at}{login}", b"", {"Authorization": f"Basic {basic}"})).close()
    with opener.open(f"{at}{use}") as reply:
        assert json.loads(reply.read()) in ([], {"value": []})
    opener.open(urllib.request.Request(f"{at}{login}", method="DELETE")).close()
    with pytest.raises(urllib.error.HTTPError) as raised:
        opener.open(f"{at}{use}")
    with raised.value:
        assert raised.value.code == 401


PYTHON = re.compile(r"\b[A-Z]\w*(Error|Exception)\b|Traceback|NoneType|object has no|\bdict\b|\.py\b")
VALUES: tuple[object, ...] = (None, [], {}, 0, -1.5, True, "", "x", [None], [[]], {"": None}, [{"id": {}}], {"id": []})
NAMES = ("create_spec", "update_spec", "tag_id", "tag_ids", "object_id", "object_ids", "category_id", "name", "type")
RAW = (b"", b"null", b"{", b"[" * 5000, b"\xff\xfe", b'"', b"NaN", b'{"a":1}{"a":2}', b"1e999", b"9" * 5000)


def bodies() -> Iterator[object]:
    rng = random.Random(16)
    yield from RAW
    yield from VALUES
    for name, value in itertools.product(NAMES, VALUES):
        yield {name: value}
    for _ in range(60):
        inner = {rng.choice(NAMES): rng.choice(VALUES) for _ in range(3)}
        yield {rng.choice(NAMES): inner, rng.choice(NAMES): rng.choice(VALUES)}


def test_no_body_is_answered_in_words_of_python(rest: Rest) -> None:
    tag = rest.tag("night", rest.category("rotation"))
    paths = [
        *(f"{TAGGING}/{kind}" for kind in ("category", "tag", f"tag/id:{tag}?~action=attach")),
        f"{TAGGING}/tag?~action=list-tags-for-category",
        f"{TAGGING}/tag-association/id:{tag}?~action=list-attached-objects",
        f"{TAGGING}/tag-association/id:{tag}?~action=attach",
        f"{TAGGING}/tag-association?~action=list-attached-tags-on-objects",
        f"{TAGGING}/tag-association?~action=attach-multiple-tags-to-object",
        "/api/cis/tagging/category",
        f"/api/cis/tagging/tag-association/{tag}?action=attach",
        "/api",
    ]
    for number, body in enumerate(bodies()):
        for path in itertools.islice(itertools.cycle(paths), number, number + 4):
            status, document = rest("POST", path, body)
            text = json.dumps(document)
            assert status < 500, (path, body, text)
            assert not PYTHON.search(text), (path, body, text)


def test_a_session_says_whose_it_is_and_ends(rest: Rest) -> None:
    status, session = rest("POST", "/rest/com/vmware/cis/session?~action=get")
    assert (status, session["value"]["user"]) == (200, rest.server.username)
    assert rest("GET", "/api/session")[1]["user"] == rest.server.username
    assert rest("DELETE", "/api/session") == (204, None)
    status, error = rest("GET", "/api/session")
    assert (status, error["error_type"]) == (401, "UNAUTHENTICATED")
