"""The login for guests: a user, and a password that is in a private file, the environment or a credential."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.config.vcenter.login import guest_login
from gpuops.config.vcenter.targets import GuestEntry
from gpuops.errors import TargetError
from gpuops.model.vcenter.target import GuestLogin, Secret


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
