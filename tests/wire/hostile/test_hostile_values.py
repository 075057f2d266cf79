"""Well-formed replies that tell what no vCenter tells: exit code 5 or an unknown value, never an internal error."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from gpuops.console.failure import run_guarded
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.target import Secret, Target
from gpuops.report.monitoring.fleet_view import fleet
from gpuops.vsphere.reading import collect
from gpuops.vsphere.session import Session
from tests.wire.hostile.hostile_replies import Hostile, _envelope, _pack
from tests.wire.hostile.hostile_server import HostileServer

Rewrite = Callable[[bytes], bytes]


@pytest.fixture(scope="module")
def hostile_server() -> Iterator[HostileServer]:
    with HostileServer() as server:
        yield server


@pytest.fixture
def server(hostile_server: HostileServer) -> HostileServer:
    hostile_server.strikes, hostile_server.rewrites = {}, {}
    return hostile_server


def target_of(server: HostileServer) -> Target:
    honest = server.honest
    return Target("127.0.0.1", honest.username, Secret(honest.password), port=server.port, tls=False)


def read(server: HostileServer) -> tuple[int, Inventory | None]:
    """Exit code of a read of the whole inventory, and what was read."""
    inventories: list[Inventory] = []

    def inventory() -> None:
        with Session(target_of(server)) as session:
            collected = collect.inventory(session)
            fleet_document = fleet(collected, catalog_of(collected))
            assert len(fleet_document.hosts) <= len(collected.hosts) and len(fleet_document.vms) <= len(collected.vms)
            inventories.append(collected)

    from gpuops.api import catalog_of

    return run_guarded(inventory), inventories[0] if inventories else None


def require_refused(server: HostileServer, capsys: pytest.CaptureFixture[str], reason: str) -> None:
    code, _ = read(server)
    line = capsys.readouterr().err
    assert (code, line.startswith("error: ")) == (5, True), line
    assert reason in line
    assert "Traceback" not in line
    assert len(line) < 500


def fault(kind: str) -> Hostile:
    detail = f'<detail><x xmlns="urn:vim25" xsi:type="{kind}"/></detail>'
    return Hostile(
        _envelope(f"<soapenv:Fault><faultstring>no</faultstring>{detail}</soapenv:Fault>"),
        status="500 Internal Server Error",
    )


def folders(count: int) -> Rewrite:
    """The parent of the first folder in a reply is the last of a chain of so many."""

    def rewrite(body: bytes) -> bytes:
        chain = "".join(
            f'<objects><obj type="Folder">group-x{number}</obj><propSet><name>name</name>'
            f'<val xsi:type="xsd:string">f</val></propSet><propSet><name>parent</name>'
            f'<val xsi:type="ManagedObjectReference" type="Folder">group-x{(number + 1) % count}</val>'
            f"</propSet></objects>"
            for number in range(count)
        )
        if b'type="Folder"' not in body.partition(b"</obj>")[0] and b"ContainerView" not in body:
            return body
        body = re.sub(rb"(<name>parent</name><val[^>]*>)[^<]+", rb"\g<1>group-x0", body)
        return body.replace(b"<objects>", chain.encode() + b"<objects>", 1)

    return rewrite


def without(name: str) -> Rewrite:
    return lambda body: re.sub(rf"<{name}[ >].*?</{name}>".encode(), b"", body)


def value(path: str, text: str) -> Rewrite:
    """Every value of that property path is this text."""
    pattern = re.compile(rf"(<name>{re.escape(path)}</name><val[^>]*>)[^<]*".encode())
    return lambda body: pattern.sub(rb"\g<1>" + text.encode(), body)


def element(name: str, text: str) -> Rewrite:
    """Every element of that name has this text."""
    pattern = re.compile(rf"(<{re.escape(name)}(?: [^>]*)?>)[^<]*".encode())
    return lambda body: pattern.sub(rb"\g<1>" + text.encode(), body)


@pytest.mark.parametrize(
    ("strike", "reason"),
    [
        (Hostile(b"<a>" + b" " * (3 * 1024**2) + b"</a>"), "more than 1 MiB"),
        (Hostile(_pack(1), headers={"Content-Encoding": "gzip"}), "compressed"),
        (Hostile(b"{}"), "not XML"),
    ],
    ids=["large", "packed", "JSON"],
)
def test_the_versions_are_asked_of_no_vcenter(
    server: HostileServer, capsys: pytest.CaptureFixture[str], strike: Hostile, reason: str
) -> None:
    server.strikes = {"GET": strike}
    require_refused(server, capsys, reason)


@pytest.mark.parametrize(
    "kind", ["VirtualMachine", "int", "", "..", "x:y:", "ArrayOfInt", "ArrayOf" * 20_000, "Fault", "_", "InvalidLogin"]
)
def test_a_login_is_refused_with_a_fault_of_any_name(
    server: HostileServer, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    server.strikes = {"Login": fault(kind)}
    require_refused(server, capsys, "refuses")


@pytest.mark.parametrize("name", ["viewManager", "propertyCollector", "rootFolder", "sessionManager"])
@pytest.mark.parametrize("rewrite", [without, lambda name: element(name, ""), lambda name: element(name, "a b")])
def test_a_vcenter_without_what_every_vcenter_has(
    server: HostileServer, capsys: pytest.CaptureFixture[str], rewrite: Callable[[str], Rewrite], name: str
) -> None:
    server.rewrites = {"RetrieveServiceContent": rewrite(name)}
    require_refused(server, capsys, f"returns no {name}")


def test_a_login_answered_with_a_strange_cookie(server: HostileServer, capsys: pytest.CaptureFixture[str]) -> None:
    strike = Hostile(_envelope("<LoginResponse/>"), headers={"Set-Cookie": "vmware_soap_session\x01=a; a\\b=\x02"})
    server.strikes = {"Login": strike}
    code, _ = read(server)
    assert code == 5, capsys.readouterr().err


@pytest.mark.parametrize("count", [1, 2, 5000])
def test_folders_within_themselves_or_thousands_deep(
    server: HostileServer, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    server.rewrites = {"RetrievePropertiesEx": folders(count)}
    require_refused(server, capsys, "more than 100 folders within each other")


def test_a_folder_of_an_endless_name(server: HostileServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.rewrites = {"RetrievePropertiesEx": value("name", "x" * 100_000)}
    require_refused(server, capsys, "a path of more than 24,000 characters")


@pytest.mark.parametrize(
    "body", [b"", b"<returnval/>", b"<returnval></returnval>"], ids=["nothing", "empty", "without objects"]
)
def test_a_read_without_any_object_is_no_empty_vcenter(
    server: HostileServer, capsys: pytest.CaptureFixture[str], body: bytes
) -> None:
    answer = f'<RetrievePropertiesExResponse xmlns="urn:vim25">{body.decode()}</RetrievePropertiesExResponse>'
    server.strikes = {"RetrievePropertiesEx": Hostile(_envelope(answer))}
    require_refused(server, capsys, "without the view that gpuops read")


def test_pages_without_objects_and_without_end(server: HostileServer, capsys: pytest.CaptureFixture[str]) -> None:
    page = "<returnval><token>1</token></returnval>"
    answer = f'<RetrievePropertiesExResponse xmlns="urn:vim25">{page}</RetrievePropertiesExResponse>'
    server.strikes = {
        "RetrievePropertiesEx": Hostile(_envelope(answer)),
        "ContinueRetrievePropertiesEx": Hostile(_envelope(answer)),
    }
    require_refused(server, capsys, "pages without objects")


def test_more_objects_than_were_asked_for(server: HostileServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Hosts are read one by one and pages hold 250 objects, so a server that sends thousands more is not followed."""
    object_pattern = re.compile(rb"<objects>.*?</objects>", re.DOTALL)

    def flood(body: bytes) -> bytes:
        first = object_pattern.search(body)
        assert first is not None
        return body.replace(first[0], b'<objects><obj type="Task">task-1</obj></objects>' * 30_000 + first[0], 1)

    server.rewrites = {"RetrievePropertiesEx": flood}
    require_refused(server, capsys, "more than 20,000 objects")


@pytest.mark.parametrize(
    "moment", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00", "-0001-01-01T00:00:00Z", "2026-13-01", ""]
)
def test_moments_at_the_ends_of_the_calendar(
    server: HostileServer, capsys: pytest.CaptureFixture[str], moment: str
) -> None:
    server.rewrites = {"RetrievePropertiesEx": value("runtime.bootTime", moment)}
    code, collected = read(server)
    assert code == 0, capsys.readouterr().err
    assert collected is not None
    assert {host.booted for host in collected.hosts.values()} == {None}
    server.rewrites = {"CurrentTime": element("returnval", moment)}
    require_refused(server, capsys, "vCenter returned no valid time")


@pytest.mark.parametrize("digits", [30, 400, 5000])
@pytest.mark.parametrize("path", ["hardware.memorySize", "memorySizeInKB", "summary.config.memorySizeMB", "vendorId"])
def test_a_number_that_no_field_can_hold_is_unknown(
    server: HostileServer, capsys: pytest.CaptureFixture[str], path: str, digits: int
) -> None:
    rewrite = value if "." in path else element
    server.rewrites = {"RetrievePropertiesEx": rewrite(path, "9" * digits)}
    code, collected = read(server)
    assert code == 0, capsys.readouterr().err
    assert collected is not None
    if path == "hardware.memorySize":
        assert {host.memory_mib for host in collected.hosts.values()} == {None}
