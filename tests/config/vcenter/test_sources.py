"""Which vCenter is meant, and how it is reached: every source against every other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuops.config.decoding import decode
from gpuops.config.vcenter.destination import Destination, Simulated
from gpuops.config.vcenter.layers import Flags
from gpuops.config.vcenter.sources import journal_url, label, resolve
from gpuops.config.vcenter.targets import Configuration, NamedTarget
from gpuops.errors import TargetError, UsageError
from gpuops.model.vcenter.bulk_reader import BulkReader
from gpuops.model.vcenter.target import Secret

PROD = NamedTarget(host="prod.example.com", username="of-target", ca_file=Path("target.pem"), proxy="target:1")
CONFIGURATION = Configuration(default="prod", targets={"prod": PROD, "lab": NamedTarget(host="sim:lab")})

GPUOPS = {
    "GPUOPS_VCENTER": "https://vc.example.com",
    "GPUOPS_USERNAME": "of-gpuops",
    "GPUOPS_PASSWORD": "pw-gpuops",
    "GPUOPS_CA_FILE": "gpuops.pem",
    "GPUOPS_INSECURE": "true",
    "GPUOPS_PROXY": "gpuops:1",
}
VMWARE = {
    "VMWARE_HOST": "vc.example.com",
    "VMWARE_PORT": "443",
    "VMWARE_USER": "of-vmware",
    "VMWARE_PASSWORD": "pw-vmware",
    "VMWARE_VALIDATE_CERTS": "no",
    "VMWARE_PROXY_HOST": "vmware",
    "VMWARE_PROXY_PORT": "1",
}
GOVC = {
    "GOVC_URL": "https://of-url:pw-url@vc.example.com/sdk",
    "GOVC_USERNAME": "of-govc",
    "GOVC_PASSWORD": "pw-govc",
    "GOVC_INSECURE": "1",
    "GOVC_TLS_CA_CERTS": "govc.pem",
}


def reach(flags: Flags, environ: dict[str, str], configuration: Configuration | None = None) -> Destination:
    destination = resolve(flags, environ, configuration or Configuration())
    assert isinstance(destination, Destination)
    return destination


def test_a_flag_wins_over_everything() -> None:
    flags = Flags("https://vc.example.com", "of-flag", Path("pw"), None, Path("flag.pem"), False, proxy="flag:1")
    destination = reach(flags, {**GPUOPS, **VMWARE, **GOVC}, CONFIGURATION)
    assert (destination.username, destination.password_file, destination.password) == ("of-flag", Path("pw"), None)
    assert (destination.ca_files, destination.proxy) == ((Path("flag.pem"),), "flag:1")
    assert (destination.verify, destination.origins["verify"]) == (False, "--insecure")


def test_each_setting_is_looked_up_alone() -> None:
    environ = {"GPUOPS_VCENTER": "https://vc.example.com", "VMWARE_USER": "of-vmware", "GOVC_PASSWORD": "pw-govc"}
    destination = reach(Flags(), environ)
    assert (destination.username, destination.password) == ("of-vmware", Secret("pw-govc"))


@pytest.mark.parametrize("family", [VMWARE, GOVC], ids=["vmware", "govc"])
def test_variables_that_speak_of_another_vcenter_lend_it_nothing(family: dict[str, str]) -> None:
    destination = reach(Flags(vcenter="https://other.example.com"), family)
    assert (destination.username, destination.password, destination.verify, destination.proxy) == (
        None,
        None,
        True,
        None,
    )


def test_a_higher_source_may_switch_verification_back_on() -> None:
    environ = {**VMWARE, "GPUOPS_INSECURE": "false"}
    assert reach(Flags(), environ).verify is True


@pytest.mark.parametrize(
    ("flag", "environ", "files"),
    [
        ("flag.pem", {"GPUOPS_CA_FILE": "a", "GOVC_TLS_CA_CERTS": "b", "REQUESTS_CA_BUNDLE": "c"}, ("flag.pem",)),
        (None, {"GPUOPS_CA_FILE": "a", "GOVC_TLS_CA_CERTS": "b", "REQUESTS_CA_BUNDLE": "c"}, ("a",)),
        (None, {"GOVC_TLS_CA_CERTS": "b:b2", "REQUESTS_CA_BUNDLE": "c"}, ("b", "b2")),
        (None, {"REQUESTS_CA_BUNDLE": "c"}, ("c",)),
        (None, {}, ()),
    ],
)
def test_authorities_in_their_order(flag: str | None, environ: dict[str, str], files: tuple[str, ...]) -> None:
    flags = Flags(vcenter="https://vc.example.com", ca_file=Path(flag) if flag else None)
    assert reach(flags, environ).ca_files == tuple(map(Path, files))


def test_a_targets_own_authority_comes_before_the_one_for_every_server() -> None:
    assert reach(Flags(), {"REQUESTS_CA_BUNDLE": "c"}, CONFIGURATION).ca_files == (Path("target.pem"),)
    assert reach(Flags(vcenter="prod"), {"GOVC_TLS_CA_CERTS": "b"}, CONFIGURATION).ca_files == (Path("b"),)


def test_a_named_target_is_the_last_source() -> None:
    destination = reach(Flags(vcenter="prod"), {"VMWARE_USER": "of-vmware"}, CONFIGURATION)
    assert (destination.label, destination.address.host, destination.username) == (
        "prod",
        "prod.example.com",
        "of-vmware",
    )
    assert destination.proxy == "target:1"


@pytest.mark.parametrize(
    ("username", "is_own"),
    [(None, True), ("of-target", True), ("OF-TARGET", True), ("administrator@vsphere.local", False)],
)
def test_another_user_is_not_sent_the_password_of_the_targets_own(username: str | None, is_own: bool) -> None:
    target = msgspec.structs.replace(PROD, password_file=Path("prod.password"), credential="prod-password")
    configuration = Configuration(targets={"prod": target})
    for flags, environ in (
        (Flags(vcenter="prod", username=username), {}),
        (Flags(vcenter="prod"), {"GPUOPS_USERNAME": username} if username else {}),
    ):
        destination = reach(flags, environ, configuration)
        expected = (Path("prod.password"), "prod-password") if is_own else (None, None)
        assert (destination.password_file, destination.credential) == expected


def test_the_password_of_a_target_comes_last() -> None:
    configuration = Configuration(targets={"prod": msgspec.structs.replace(PROD, password_file=Path("of-target"))})
    destination = reach(Flags(vcenter="prod", password_file=Path("of-flag")), {"GPUOPS_PASSWORD": "pw"}, configuration)
    assert (destination.password, destination.password_file) == (None, Path("of-flag"))
    destination = reach(Flags(vcenter="prod"), {"GPUOPS_PASSWORD": "pw"}, configuration)
    assert (destination.password, destination.password_file) == (Secret("pw"), None)


def test_a_target_that_says_verify_false_is_remembered_as_such() -> None:
    configuration = Configuration(targets={"old": NamedTarget(host="old.example.com", verify=False)})
    destination = reach(Flags(vcenter="old"), {}, configuration)
    assert (destination.verify, destination.insecure_by_target, destination.origins["verify"]) == (
        False,
        True,
        "targets.old.verify",
    )
    by_flag = reach(Flags(vcenter="prod", verify=False), {}, CONFIGURATION)
    assert (by_flag.verify, by_flag.insecure_by_target) == (False, False)


def test_nothing_configured_names_the_simulated_one_and_does_not_pick_it() -> None:
    with pytest.raises(TargetError, match="no vCenter is configured") as caught:
        resolve(Flags(), {}, Configuration())
    assert "--vcenter sim:lab" in caught.value.hint
    assert caught.value.exit_code == 2


def test_targets_without_a_default_are_named() -> None:
    with pytest.raises(TargetError) as caught:
        resolve(Flags(), {}, Configuration(targets={"prod": PROD}))
    assert "prod" in caught.value.hint


def test_an_unknown_name_lists_the_near_ones() -> None:
    with pytest.raises(TargetError, match="did you mean prod") as caught:
        resolve(Flags(vcenter="prd"), {}, CONFIGURATION)
    assert "https://prd" in caught.value.hint


def test_no_password_on_the_command_line() -> None:
    with pytest.raises(TargetError, match="command line") as caught:
        resolve(Flags(vcenter="https://me:Cn4ry@vc.example.com"), {}, Configuration())
    assert "Cn4ry" not in str(caught.value)
    assert reach(Flags(vcenter="https://me@vc.example.com"), {"GPUOPS_USERNAME": "you"}).username == "me"
    assert reach(Flags(), {"GPUOPS_VCENTER": "https://me:pw@vc.example.com"}).password == Secret("pw")


@pytest.mark.parametrize(
    ("environ", "variable"),
    [
        ({"GPUOPS_INSECURE": "perhaps"}, "GPUOPS_INSECURE"),
        ({"VMWARE_HOST": "vc", "VMWARE_PORT": "https"}, "VMWARE_PORT"),
        ({"VMWARE_VALIDATE_CERTS": "2"}, "VMWARE_VALIDATE_CERTS"),
        ({"GOVC_URL": "ftp://vc"}, "GOVC_URL"),
    ],
)
def test_a_variable_that_makes_no_sense_is_named(environ: dict[str, str], variable: str) -> None:
    with pytest.raises(UsageError, match=variable):
        resolve(Flags(vcenter="https://vc.example.com"), environ, Configuration())


def test_an_empty_variable_says_nothing() -> None:
    environ = {"GPUOPS_VCENTER": "", "VMWARE_HOST": "", "GOVC_URL": "", "GPUOPS_INSECURE": ""}
    assert reach(Flags(), environ, CONFIGURATION).label == "prod"


def test_a_served_simulator_is_reached_by_its_ready_file(tmp_path: Path) -> None:
    ready: dict[str, Any] = {"url": "https://127.0.0.1:4711/sdk", "username": "u", "password": "p", "ca_file": "ca"}
    path = tmp_path / "ready.json"
    path.write_text(json.dumps(ready), encoding="utf-8")
    destination = reach(Flags(vcenter=f"sim@{path}"), {})
    assert (destination.address.port, destination.username, destination.password) == (4711, "u", Secret("p"))
    assert destination.ca_files == (Path("ca"),)


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"url": "x:y"}'])
def test_what_is_no_ready_file_is_said(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "ready.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(TargetError, match="ready file"):
        resolve(Flags(vcenter=f"sim@{path}"), {}, Configuration())


@pytest.mark.parametrize(
    ("flag", "environ", "default", "expected"),
    [
        ("a", {"GPUOPS_VCENTER": "b"}, "c", "a"),
        (None, {"GPUOPS_VCENTER": "b", "VMWARE_HOST": "d"}, "c", "b"),
        (None, {"GOVC_URL": "https://u:p@vc.example.com"}, "c", "vc.example.com"),
        (None, {}, "c", "c"),
        (None, {}, None, None),
    ],
)
def test_how_the_user_names_it_holds_no_password(
    flag: str | None, environ: dict[str, str], default: str | None, expected: str | None
) -> None:
    assert label(flag, environ, default) == expected


@pytest.mark.parametrize("proxy", ["me:S3cret@proxy:1", "http://proxy:1", "proxy", "proxy:"])
def test_a_proxy_is_a_host_and_a_port(proxy: str) -> None:
    with pytest.raises(TargetError, match="not the address of an HTTP proxy") as raised:
        resolve(Flags(vcenter="https://vc.example.com", proxy=proxy), {}, Configuration())
    assert "S3cret" not in f"{raised.value} {raised.value.hint}"


READERS = decode(Configuration, {"targets": {"prod": {"host": "vc", "reader": "json"}, "lab": {"host": "l"}}})


@pytest.mark.parametrize(
    ("flags", "environ", "expected"),
    [
        (Flags(vcenter="prod", reader=BulkReader.SOAP), {"GPUOPS_READER": "auto"}, "soap"),
        (Flags(vcenter="prod"), {"GPUOPS_READER": "soap"}, "soap"),
        (Flags(vcenter="prod"), {}, "json"),
        (Flags(vcenter="lab"), {}, "auto"),
        (Flags(vcenter="sim:lab"), {"GPUOPS_READER": "soap"}, "soap"),
        (Flags(vcenter="https://elsewhere.example.com"), {}, "auto"),
    ],
)
def test_how_inventories_are_read(flags: Flags, environ: dict[str, str], expected: str) -> None:
    assert resolve(flags, environ, READERS).reader == expected


JOURNAL = decode(
    Configuration,
    {
        "default": "prod",
        "targets": {"prod": {"host": "vc", "journal_url": "postgresql://of-file/j"}, "lab": {"host": "l"}},
    },
)


@pytest.mark.parametrize(
    ("flags", "environ", "expected"),
    [
        (Flags(journal_url="postgresql://of-flag/j"), {"GPUOPS_JOURNAL_URL": "postgresql://u:pw@of-variable/j"},
         "postgresql://of-flag/j"),
        (Flags(), {"GPUOPS_JOURNAL_URL": "postgresql://u:pw@of-variable/j"}, "postgresql://u:pw@of-variable/j"),
        (Flags(), {}, "postgresql://of-file/j"),
        (Flags(vcenter="prod"), {}, "postgresql://of-file/j"),
        (Flags(vcenter="lab"), {}, None),
        (Flags(vcenter="https://elsewhere.example.com"), {}, None),
    ],
)  # fmt: skip
def test_where_the_journal_lies(flags: Flags, environ: dict[str, str], expected: str | None) -> None:
    assert reach(flags, environ, JOURNAL).journal_url == expected
    assert journal_url(flags, environ, JOURNAL) == expected, "without asking a vCenter, too"
    assert "pw" not in repr(reach(flags, environ, JOURNAL))


def test_a_target_that_names_no_journal_has_the_fleets() -> None:
    """`rotate skip-next` on any machine writes where the runners read."""
    fleet = decode(Configuration, {**msgspec.to_builtins(JOURNAL), "fleet": {"url": "postgresql://of-fleet/j"}})
    for vcenter, environ, expected in (
        ("lab", {}, "postgresql://of-fleet/j"),
        ("prod", {}, "postgresql://of-file/j"),
        ("lab", {"GPUOPS_JOURNAL_URL": "postgresql://of-variable/j"}, "postgresql://of-variable/j"),
        ("https://elsewhere.example.com", {}, None),
    ):
        assert reach(Flags(vcenter=vcenter), environ, fleet).journal_url == expected
        assert journal_url(Flags(vcenter=vcenter), environ, fleet) == expected


def test_a_served_vcenter_has_a_journal_where_one_says(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    ready.write_text('{"url": "https://127.0.0.1:1/sdk", "username": "u", "password": "p"}', encoding="utf-8")
    environ = {"GPUOPS_JOURNAL_URL": "postgresql://db/j"}
    assert reach(Flags(vcenter=f"sim@{ready}"), environ).journal_url == "postgresql://db/j"


@pytest.mark.parametrize(
    "url", ["postgresql://u:Cn4ry@db/j", "postgresql://db/j?user=u&password=Cn4ry", "postgresql://u:Cn4ry@[db/j"]
)
def test_a_password_of_a_journal_is_no_flag(url: str) -> None:
    with pytest.raises(TargetError, match="every user of this machine can read a command line") as refused:
        reach(Flags(vcenter="https://vc.example.com", journal_url=url), {})
    assert "Cn4ry" not in f"{refused.value.message} {refused.value.hint}"


def test_a_private_vcenter_keeps_its_journal_to_itself() -> None:
    assert resolve(Flags(vcenter="sim:lab"), {"GPUOPS_JOURNAL_URL": "postgresql://db/j"}, JOURNAL) == Simulated("lab")
    with pytest.raises(TargetError, match="--journal-url cannot be used with sim:lab: its journal ends"):
        resolve(Flags(vcenter="sim:lab", journal_url="postgresql://db/j"), {}, JOURNAL)
