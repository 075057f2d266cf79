"""What a task says of the connection means what it means to Ansible's users, and to the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuops.config.vcenter.destination import Destination
from gpuops.errors import GpuopsError, NotTrusted, Refused, TargetError, UsageError
from gpuops.model.vcenter.target import Secret
from gpuops.tasks.task_connection import ConnectionArguments, open_site, reach

CONFIGURATION = """
[targets.prod]
host = "vc-prod.example.com"
username = "gpuops"
verify = false
"""


def destination(arguments: ConnectionArguments, environ: dict[str, str] | None = None) -> Destination:
    reached = reach(arguments, {"HOME": "/nonexistent", **(environ or {})})
    assert isinstance(reached, Destination)
    return reached


@pytest.mark.parametrize(
    ("hostname", "port", "address"),
    [
        ("vcenter01", None, "https://vcenter01"),
        ("vc.example.com", None, "https://vc.example.com"),
        ("vc.example.com", 8443, "https://vc.example.com:8443"),
        ("vc.example.com:9443", 8443, "https://vc.example.com:9443"),
        ("https://vc.example.com/sdk", 8443, "https://vc.example.com:8443"),
        ("https://vc.example.com:9443/sdk", 8443, "https://vc.example.com:9443"),
        ("2001:db8::1", 8443, "https://[2001:db8::1]:8443"),
        ("[2001:db8::1]", None, "https://[2001:db8::1]"),
        ("[2001:db8::1]:9443", 8443, "https://[2001:db8::1]:9443"),
    ],
)
def test_a_hostname_is_an_address(hostname: str, port: int | None, address: str) -> None:
    assert str(destination(ConnectionArguments(hostname=hostname, port=port)).address) == address


def test_a_target_of_the_configuration_file_goes_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(CONFIGURATION, encoding="utf-8")
    by_target = destination(ConnectionArguments(hostname="prod", password="x"), {"GPUOPS_CONFIG": str(file)})
    assert (by_target.name, by_target.username, by_target.verify) == ("prod", "gpuops", False)
    assert (
        destination(ConnectionArguments(hostname="prod", validate_certs=True), {"GPUOPS_CONFIG": str(file)}).verify
        is True
    )


def test_what_is_left_out_comes_from_the_variables_of_the_vmware_collections() -> None:
    environ = {"VMWARE_HOST": "vc", "VMWARE_PORT": "444", "VMWARE_USER": "u", "VMWARE_PASSWORD": "p"}
    by_variables = destination(
        ConnectionArguments(), {**environ, "VMWARE_VALIDATE_CERTS": "false", "VMWARE_PROXY_HOST": "proxy"}
    )
    assert (str(by_variables.address), by_variables.username, by_variables.password) == (
        "https://vc:444",
        "u",
        Secret("p"),
    )
    assert (by_variables.verify, by_variables.proxy) == (False, "proxy:8080")
    by_arguments = destination(
        ConnectionArguments(username="other", validate_certs=True, proxy_host="mine", proxy_port=3128), environ
    )
    assert (by_arguments.username, by_arguments.verify, by_arguments.proxy) == ("other", True, "mine:3128")


def test_a_journal_with_a_password_is_no_command_line() -> None:
    url = "postgresql://gpuops:secret@db/gpuops"
    with_journal = destination(ConnectionArguments(hostname="vc", journal_url=url))
    assert with_journal.journal_url == url
    assert "secret" not in repr(with_journal)
    assert "secret" not in repr(ConnectionArguments(journal_url=url, password="secret"))


def test_how_inventories_are_read_is_an_argument() -> None:
    assert destination(ConnectionArguments(hostname="vc", reader="json")).reader == "json"
    assert destination(ConnectionArguments(hostname="vc")).reader == "auto"


def test_what_cannot_be_meant_is_said() -> None:
    with pytest.raises(UsageError, match="reader is not a known reader"):
        reach(ConnectionArguments(hostname="vc", reader="xml"), {})
    with pytest.raises(UsageError, match="exclude each other"):
        reach(ConnectionArguments(hostname="vc", password="p", password_file="/f"), {})
    with pytest.raises(TargetError, match="port is set, but hostname is not"):
        reach(ConnectionArguments(port=443), {"HOME": "/nonexistent"})
    with pytest.raises(TargetError, match="no vCenter is configured"):
        reach(ConnectionArguments(), {"HOME": "/nonexistent"})


@pytest.mark.parametrize("guarded", [False, True])
def test_an_unverified_connection_is_noted_and_a_rotation_over_it_is_a_decision_of_the_task(
    tmp_path: Path, guarded: bool
) -> None:
    environ = {"HOME": str(tmp_path), "GPUOPS_STATE_DIR": str(tmp_path / "state")}
    arguments = ConnectionArguments(hostname="127.0.0.1:1", username="u", password="p", validate_certs=False)
    with pytest.raises(GpuopsError, match=r"127\.0\.0\.1"):  # nothing listens there
        open_site(arguments, guarded=guarded, environ=environ)
    (line,) = (tmp_path / "state" / "audit.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["said_by"] == "validate_certs"


def test_a_variable_does_not_decide_it_for_a_rotation(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "VMWARE_HOST": "vc", "VMWARE_VALIDATE_CERTS": "no"}
    with pytest.raises(Refused, match="VMWARE_VALIDATE_CERTS is refused for an unattended rotation"):
        open_site(ConnectionArguments(username="u", password="p"), guarded=True, environ=environ)


def test_a_password_is_not_sent_in_the_clear(tmp_path: Path) -> None:
    with pytest.raises(NotTrusted, match="not encrypted"):
        open_site(
            ConnectionArguments(hostname="http://vc.example.com", username="u", password="p"),
            environ={"HOME": str(tmp_path)},
        )
