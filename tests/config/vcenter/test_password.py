"""Where a password comes from, in which order, and that it is never repeated."""

from __future__ import annotations

import errno
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpuops.config.decoding import decode
from gpuops.config.vcenter.destination import Address, Destination
from gpuops.config.vcenter.layers import Flags
from gpuops.config.vcenter.login_settings import find_password, read_password_file
from gpuops.config.vcenter.sources import resolve
from gpuops.config.vcenter.targets import Configuration
from gpuops.errors import TargetError
from gpuops.model.vcenter.target import Secret

THERE = Destination(label="prod", address=Address("vc.example.com"), username="me", name="prod")


def file(folder: Path, name: str, content: str) -> Path:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    path.chmod(0o600)
    return path


def test_sources_in_their_order(tmp_path: Path) -> None:
    named = file(tmp_path, "named", "of-file\n")
    file(tmp_path, "gpuops-password", "of-systemd\n")
    file(tmp_path, "gpuops-password-prod", "of-systemd-for-prod\n")
    systemd = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    everything = replace(THERE, password=Secret("given"), password_file=named)
    assert find_password(everything, systemd, lambda prompt: "typed") == Secret("given")
    everything = replace(everything, password=None)
    assert find_password(everything, systemd, lambda prompt: "typed") == Secret("of-file")
    everything = replace(everything, password_file=None)
    assert find_password(everything, systemd, lambda prompt: "typed") == Secret("of-systemd-for-prod")
    assert find_password(replace(everything, name="other"), systemd, lambda prompt: "typed") == Secret("of-systemd")
    assert find_password(everything, {}, lambda prompt: "typed") == Secret("typed")


def test_the_prompt_says_who_and_where() -> None:
    prompts: list[str] = []

    def ask(prompt: str) -> str:
        prompts.append(prompt)
        return "typed"

    find_password(THERE, {}, ask)
    assert prompts == ["Password of me at https://vc.example.com: "]


def test_without_a_person_and_without_a_source_the_login_is_not_tried() -> None:
    with pytest.raises(TargetError, match="no password for me") as caught:
        find_password(THERE, {}, None)
    assert "--password-file" in caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("entry", "other_login"),
    [
        ({"password_file": "/etc/gpuops/prod"}, "night@vsphere.local"),
        ({"credential": "prod"}, "night@vsphere.local"),
        ({}, None),
    ],
)
def test_a_missing_password_says_whose_password_the_target_names(
    entry: dict[str, str], other_login: str | None
) -> None:
    """The password of the target is sent for no other user."""
    target = {"host": "vc.example.com", "username": "night@vsphere.local", **entry}
    configuration = decode(Configuration, {"targets": {"prod": target}})
    where = resolve(Flags(vcenter="prod", username="admin@vsphere.local"), {}, configuration)
    assert isinstance(where, Destination)
    with pytest.raises(TargetError) as caught:
        find_password(where, {}, None)
    names = f": [targets.prod] has only the password of {other_login}" if other_login else ""
    assert caught.value.message == f"no password for admin@vsphere.local at https://vc.example.com{names}"
    assert (f"or log in as {other_login}" in caught.value.hint) is (other_login is not None)


def test_line_ends_and_a_byte_order_mark_are_dropped(tmp_path: Path) -> None:
    assert read_password_file(file(tmp_path, "a", " with blanks \n")) == Secret(" with blanks ")
    assert read_password_file(file(tmp_path, "b", "windows\r\n")) == Secret("windows")
    assert read_password_file(file(tmp_path, "c", "\ufeffmarked\r\n")) == Secret("marked")
    assert read_password_file(file(tmp_path, "d", "twice\n\n")) == Secret("twice")
    assert read_password_file(file(tmp_path, "e", "twice\r\n\r\n")) == Secret("twice")
    assert read_password_file(file(tmp_path, "f", "a:1\nb:2\n"), several_lines=True) == Secret("a:1\nb:2")


@pytest.mark.parametrize("content", ["Cn4ry\nsecond\n", "Cn4ry\r\n# prod\r\n", "\nCn4ry", "old Mac\rCn4ry"])
def test_several_lines_are_no_password(tmp_path: Path, content: str) -> None:
    path = file(tmp_path, "pw", content)
    with pytest.raises(TargetError) as caught:
        read_password_file(path)
    assert caught.value.message == f"the password file {path} has several lines"


@pytest.mark.parametrize("content", [b"", b"\n", b"\r\n\r\n", b"\xef\xbb\xbf", b"\xff\xfe", b"x" * 70_000])
def test_what_cannot_be_a_password_is_refused_and_not_repeated(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "pw"
    path.write_bytes(content)
    with pytest.raises(TargetError, match="password file") as caught:
        read_password_file(path)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o602, 0o666])
def test_a_file_that_others_can_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = file(tmp_path, "pw", "Cn4ry")
    path.chmod(mode)
    destination = replace(THERE, password_file=path)
    with pytest.raises(TargetError, match=f"by others .mode {mode:o}.") as caught:
        find_password(destination, {}, None)
    assert (caught.value.exit_code, caught.value.hint) == (2, f"chmod 600 {path}")
    assert "Cn4ry" not in str(caught.value)
    path.chmod(0o400)
    assert find_password(destination, {}, None) == Secret("Cn4ry")


def test_a_file_of_somebody_else_may_be_shared_with_our_group_but_not_with_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file(tmp_path, "pw", "of-service")
    path.chmod(0o640)
    uid = path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    assert find_password(replace(THERE, password_file=path), {}, None) == Secret("of-service")
    path.chmod(0o644)
    with pytest.raises(TargetError, match="by others"):
        find_password(replace(THERE, password_file=path), {}, None)


def test_a_pipe_is_not_asked_for_its_mode(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"piped\n")
    os.close(writing)
    try:
        assert find_password(replace(THERE, password_file=Path(f"/dev/fd/{reading}")), {}, None) == Secret("piped")
    finally:
        os.close(reading)


def test_a_systemd_credential_may_show_a_groups_right(tmp_path: Path) -> None:
    file(tmp_path, "gpuops-password", "of-systemd").chmod(0o440)
    assert find_password(THERE, {"CREDENTIALS_DIRECTORY": str(tmp_path)}, None) == Secret("of-systemd")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=os.strerror(errno.ENOENT)):
        read_password_file(tmp_path / "none")


def test_a_named_credential_needs_its_directory(tmp_path: Path) -> None:
    destination = replace(THERE, credential="vc")
    with pytest.raises(TargetError, match="CREDENTIALS_DIRECTORY"):
        find_password(destination, {}, None)
    file(tmp_path, "vc", "of-credential")
    assert find_password(destination, {"CREDENTIALS_DIRECTORY": str(tmp_path)}, None) == Secret("of-credential")


def test_a_keyring_that_is_not_installed_says_how_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(TargetError, match="keyring package") as caught:
        find_password(replace(THERE, keyring=True), {}, None)
    assert "install keyring" in caught.value.hint


def test_a_keyring_is_asked_for_user_and_host(monkeypatch: pytest.MonkeyPatch) -> None:
    questions: list[tuple[str, str]] = []
    fake: Any = ModuleType("keyring")
    fake.errors = ModuleType("keyring.errors")
    fake.errors.KeyringError = RuntimeError

    def get_password(service: str, user: str) -> str:
        questions.append((service, user))
        return "of-keyring"

    fake.get_password = get_password
    monkeypatch.setitem(sys.modules, "keyring", fake)
    monkeypatch.setitem(sys.modules, "keyring.errors", fake.errors)
    assert find_password(replace(THERE, keyring=True), {}, None) == Secret("of-keyring")
    assert questions == [("gpuops", "me@vc.example.com")]
