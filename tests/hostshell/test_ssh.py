"""Files of keys that cannot be read or relied on: one line that names the file, before any host is called."""

from __future__ import annotations

import os
from pathlib import Path

import asyncssh
import pytest

from gpuops.errors import Refused
from gpuops.hostshell.ssh import Ssh


@pytest.fixture
def known_hosts(tmp_path: Path) -> Path:
    path = tmp_path / "known_hosts"
    path.write_text("")
    path.chmod(0o600)
    return path


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "id"
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(path)
    path.chmod(0o600)
    return path


def test_a_key_that_is_none_is_named(known_hosts: Path, key: Path) -> None:
    key.write_text("junk\n")
    with pytest.raises(Refused, match="id: no private key can be read from it") as refused:
        Ssh(known_hosts=known_hosts, key=key).run("esx-01", "nvidia-smi")
    assert "--ssh-key" in refused.value.hint


def test_a_key_that_is_not_there_is_named(known_hosts: Path, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="gone: no private key can be read from it"):
        Ssh(known_hosts=known_hosts, key=tmp_path / "gone").run("esx-01", "nvidia-smi")


def test_a_key_that_is_a_pipe_is_not_waited_for(known_hosts: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(Refused, match="pipe: no private key can be read from it"):
        Ssh(known_hosts=known_hosts, key=tmp_path / "pipe").run("esx-01", "nvidia-smi")


def test_known_hosts_that_are_none_are_named(known_hosts: Path) -> None:
    known_hosts.write_text("esx-01\n")
    with pytest.raises(Refused, match="known_hosts: no hosts' keys can be read from it"):
        Ssh(known_hosts=known_hosts).run("esx-01", "nvidia-smi")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o644, 0o666])
def test_a_key_that_others_can_read_or_write_is_refused(known_hosts: Path, key: Path, mode: int) -> None:
    key.chmod(mode)
    with pytest.raises(Refused, match=rf"others can read or write {key} \(mode {mode:o}\)") as refused:
        Ssh(known_hosts=known_hosts, key=key, address_of=_nobody).run("esx-01", "nvidia-smi")
    assert refused.value.hint == f"chmod 600 {key}"


def test_so_is_a_key_that_would_be_tried_without_being_named(
    known_hosts: Path, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".ssh").mkdir()
    key.rename(tmp_path / ".ssh" / "id_rsa")
    (tmp_path / ".ssh" / "id_rsa").chmod(0o644)
    (tmp_path / ".ssh" / "id_rsa.pub").write_text("public\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(Refused, match=r"others can read or write .*/id_rsa \(mode 644\)"):
        Ssh(known_hosts=known_hosts, address_of=_nobody).run("esx-01", "nvidia-smi")


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o664, 0o666])
def test_known_hosts_that_others_can_write_are_refused(known_hosts: Path, mode: int) -> None:
    known_hosts.chmod(mode)
    with pytest.raises(Refused, match=rf"others can write {known_hosts} \(mode {mode:o}\)") as refused:
        Ssh(known_hosts=known_hosts, key=known_hosts.parent / "gone", address_of=_nobody).run("esx-01", "nvidia-smi")
    assert refused.value.hint == f"chmod 644 {known_hosts}"


def test_known_hosts_in_a_directory_that_others_can_write_are_refused(known_hosts: Path) -> None:
    known_hosts.parent.chmod(0o777)
    with pytest.raises(Refused, match=f"everybody can write in {known_hosts.parent}"):
        Ssh(known_hosts=known_hosts, address_of=_nobody).run("esx-01", "nvidia-smi")


def _nobody(host: str) -> str:
    raise AssertionError(f"{host} was called")


@pytest.mark.parametrize(
    "host", ["a" * 64, "a..b", ".a", "a\0b", "a b", "a\nb", "", "\u00fc" * 64, "x." * 200, "\ud800", "a" * 5000]
)
def test_a_name_that_no_host_has_is_refused(known_hosts: Path, key: Path, host: str) -> None:
    with pytest.raises(Refused, match="cannot be reached by SSH") as refused:
        Ssh(known_hosts=known_hosts, key=key).run(host, "nvidia-smi")
    assert len(refused.value.message) < 300
    with pytest.raises(Refused, match="cannot be reached by SSH"):
        Ssh(known_hosts=known_hosts, key=key, address_of=lambda _: host).run("esx-01", "nvidia-smi")


@pytest.mark.parametrize("user", ["a\nb", "", "a\0", "a b", "x" * 300, "\ud800"])
def test_a_user_that_is_none_is_refused(known_hosts: Path, key: Path, user: str) -> None:
    with pytest.raises(Refused, match="is not a valid SSH user name"):
        Ssh(user, known_hosts=known_hosts, key=key).run("esx-01", "nvidia-smi")


@pytest.mark.parametrize("command", ["nvidia-smi\nreboot", "a\0b"])
def test_a_command_of_several_lines_is_not_sent(known_hosts: Path, key: Path, command: str) -> None:
    with pytest.raises(Refused, match="is not sent"):
        Ssh(known_hosts=known_hosts, key=key).run("esx-01", command)
