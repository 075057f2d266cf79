"""Files of keys that cannot be read: one line that names the file, before anybody is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.errors import Refused
from gpuops.hostshell.ssh import Ssh


def test_a_key_that_is_none_is_named(tmp_path: Path) -> None:
    known, key = tmp_path / "known_hosts", tmp_path / "id"
    known.write_text("")
    key.write_text("junk\n")
    with pytest.raises(Refused, match="id: no private key can be read from it") as refused:
        Ssh(known_hosts=known, key=key).run("esx-01", "nvidia-smi")
    assert "--ssh-key" in refused.value.hint


def test_a_key_that_is_not_there_is_named(tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text("")
    with pytest.raises(Refused, match="gone: no private key can be read from it"):
        Ssh(known_hosts=known, key=tmp_path / "gone").run("esx-01", "nvidia-smi")


def test_known_hosts_that_are_none_are_named(tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text("esx-01\n")
    with pytest.raises(Refused, match="known_hosts: no hosts' keys can be read from it"):
        Ssh(known_hosts=known).run("esx-01", "nvidia-smi")
