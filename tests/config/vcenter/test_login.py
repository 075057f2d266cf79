"""What `vsphere` connects to, whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuops.config.vcenter.destination import Address, Destination
from gpuops.config.vcenter.login import login
from gpuops.errors import TargetError
from gpuops.model.vcenter.target import Secret, Target

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
