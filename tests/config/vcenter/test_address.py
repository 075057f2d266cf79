"""What a vCenter and its guests are logged in to with: addresses, thumbprints, passwords in private files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuops.config.vcenter.destination import Address, Destination, sha256_of
from gpuops.config.vcenter.layers import Flags
from gpuops.config.vcenter.login_settings import guest_login, login
from gpuops.config.vcenter.sources import resolve
from gpuops.config.vcenter.targets import Configuration, GuestEntry, NamedTarget
from gpuops.errors import TargetError
from gpuops.model.vcenter.target import GuestLogin, Secret, Target


def test_user_and_password_are_decoded_and_kept_apart() -> None:
    address = Address.parse("https://svc%40vsphere.local:p%3Ass@vc.example.com")
    assert (address.username, address.password) == ("svc@vsphere.local", Secret("p:ss"))
    assert address == Address("vc.example.com")
    assert "p:ss" not in repr(address)
    assert "p:ss" not in str(address)


@pytest.mark.parametrize(
    ("text", "shown_text"),
    [
        ("", "''"),
        ("ftp://vc", "'ftp://vc'"),
        ("https://", "'https://'"),
        ("https://vc:99999", "'https://vc:99999'"),
        ("https://vc/ui", "'https://vc/ui'"),
        ("https://vc/sdk?s3cret=1", "'https://vc/sdk'"),
        ("h h", "'h h'"),
        ("vc_1..lab!", "'vc_1..lab!'"),
        ("https://me:s3cret@vc/ui", "'vc/ui'"),
        ("me:s3cret/@vc/ui", "'vc/ui'"),
        ("me:s3cret", "the given text"),
        ("https://me:s3cret", "the given text"),
        ("https://[::1]/ui", "'https://[::1]/ui'"),
    ],
)
def test_what_is_no_address_is_named_without_a_password(text: str, shown_text: str) -> None:
    with pytest.raises(TargetError) as caught:
        Address.parse(text)
    assert str(caught.value) == f"{shown_text} is not the address of a vCenter"
    assert caught.value.hint


def test_the_given_port_wins_over_the_default_one() -> None:
    assert Address.parse("vc", port=8443).port == 8443
    assert Address.parse("vc:9443", port=8443).port == 9443


ONE, TWO, THREE = "ab" * 32, "cd" * 32, "ef" * 32


@pytest.mark.parametrize(
    "written",
    [
        ONE,
        ONE.upper(),
        ":".join([ONE[:2].upper()] * 32),
        f"sha256 Fingerprint={':'.join(['AB'] * 32)}",
        f"SHA256:{ONE}",
    ],
)
def test_as_people_copy_it(written: str) -> None:
    assert sha256_of(written, "--thumbprint") == ONE


@pytest.mark.parametrize(
    ("written", "words"), [("ab" * 20, "SHA-1"), ("", "64 hex"), (ONE[1:], "64 hex"), ("xy" * 32, "64 hex")]
)
def test_what_is_none_is_refused_and_its_source_named(written: str, words: str) -> None:
    with pytest.raises(TargetError, match=f"GPUOPS_THUMBPRINT is .*{words}") as raised:
        sha256_of(written, "GPUOPS_THUMBPRINT")
    assert "openssl" in raised.value.hint


def thumbprint_in_force(flags: Flags, environ: dict[str, str]) -> str | None:
    prod = NamedTarget(host="prod.example.com", thumbprint=THREE)
    where = resolve(flags, environ, Configuration(default="prod", targets={"prod": prod}))
    assert isinstance(where, Destination)
    return where.thumbprint


def test_sources_in_their_order() -> None:
    assert thumbprint_in_force(Flags(thumbprint=ONE), {"GPUOPS_THUMBPRINT": TWO}) == ONE
    assert thumbprint_in_force(Flags(), {"GPUOPS_THUMBPRINT": TWO}) == TWO
    assert thumbprint_in_force(Flags(), {}) == THREE


def test_a_targets_certificate_is_not_asked_of_another_vcenter() -> None:
    assert thumbprint_in_force(Flags(vcenter="https://other.example.com"), {}) is None


THERE = Destination(
    label="prod",
    address=Address("vc.example.com", 8443),
    username="me",
    password=Secret("Cn4ry"),
    verify=False,
    ca_files=(Path("/ca.pem"),),
    proxy="proxy:3128",
)


def test_everything_arrives() -> None:
    expected = Target(
        "vc.example.com", "me", Secret("Cn4ry"), 8443, ca_files=("/ca.pem",), verify=False, proxy="proxy:3128"
    )
    assert login(THERE, {}, None) == expected
    assert "Cn4ry" not in repr(expected)


def test_without_a_user_name_nobody_is_asked_for_a_password() -> None:
    with pytest.raises(TargetError, match="no user name") as missing:
        login(replace(THERE, username=None), {}, lambda prompt: pytest.fail("asked"))
    assert missing.value.exit_code == 2


def test_nobody_is_named_so_there_is_none() -> None:
    assert guest_login({"GPUOPS_GUEST_PASSWORD": "unused"}) is None


def test_a_file_comes_first_then_the_environment_then_the_credential(tmp_path: Path) -> None:
    file = tmp_path / "guest"
    file.write_text("of-the-file\n")
    file.chmod(0o600)
    (tmp_path / "gpuops-guest-password").write_text("of-systemd\n")
    environ = {
        "GPUOPS_GUEST_USERNAME": "ml",
        "GPUOPS_GUEST_PASSWORD_FILE": str(file),
        "GPUOPS_GUEST_PASSWORD": "spoken",
        "CREDENTIALS_DIRECTORY": str(tmp_path),
    }
    for source, password in (
        ("GPUOPS_GUEST_PASSWORD_FILE", "of-the-file"),
        ("GPUOPS_GUEST_PASSWORD", "spoken"),
        ("CREDENTIALS_DIRECTORY", "of-systemd"),
    ):
        assert guest_login(environ) == GuestLogin("ml", Secret(password))
        del environ[source]
    with pytest.raises(TargetError, match="no password for the guest user 'ml'"):
        guest_login(environ)


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "guest"
    file.write_text("open\n")
    file.chmod(0o644)
    with pytest.raises(TargetError, match="can be read or written by others"):
        guest_login({"GPUOPS_GUEST_USERNAME": "ml", "GPUOPS_GUEST_PASSWORD_FILE": str(file)})


def test_a_target_names_its_own_guests_user_and_the_environment_comes_first(tmp_path: Path) -> None:
    file = tmp_path / "guest"
    file.write_text("of-the-target\n")
    file.chmod(0o600)
    entry = GuestEntry(username="keeper", password_file=file)
    assert guest_login({}, "prod", entry) == GuestLogin("keeper", Secret("of-the-target"))
    spoken = {"GPUOPS_GUEST_PASSWORD": "spoken"}
    assert guest_login(spoken, "prod", entry) == GuestLogin("keeper", Secret("spoken"))
    with pytest.raises(TargetError, match="no password for the guest user 'other' of GPUOPS_GUEST_USERNAME"):
        guest_login({"GPUOPS_GUEST_USERNAME": "other"}, "prod", entry)


def test_a_targets_credential_is_its_own_before_the_common_one(tmp_path: Path) -> None:
    for name in ("gpuops-guest-password", "gpuops-guest-password-prod", "chosen"):
        (tmp_path / name).write_text(f"of-{name}\n")
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    logins = [
        guest_login(environ, target, GuestEntry(username="keeper", credential=credential))
        for target, credential in (("prod", None), ("lab", None), ("lab", "chosen"))
    ]
    assert [login.password.reveal() for login in logins if login is not None] == [
        "of-gpuops-guest-password-prod",
        "of-gpuops-guest-password",
        "of-chosen",
    ]
    with pytest.raises(TargetError, match=r"no password for the guest user 'keeper' of \[targets\.prod\.guest\]"):
        guest_login({}, "prod", GuestEntry(username="keeper"))


def test_it_never_shows_its_password() -> None:
    assert "spoken" not in repr(guest_login({"GPUOPS_GUEST_USERNAME": "ml", "GPUOPS_GUEST_PASSWORD": "spoken"}))
