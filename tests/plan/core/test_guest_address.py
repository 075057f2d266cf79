"""Addresses that a guest reports: one that leads to no other machine, or is no address alone, is not used."""

from __future__ import annotations

from typing import Final

import pytest
import yaml

from gpuops.plan.core.guest_address import unicast_address
from tests.plan.case import CASES

ADDRESSES: Final = yaml.safe_load((CASES / "guest-addresses.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("text", ADDRESSES["used"])
def test_a_host(text: str) -> None:
    assert str(unicast_address(text)) == text


@pytest.mark.parametrize("text", ADDRESSES["refused"])
def test_no_host(text: str) -> None:
    assert unicast_address(text) is None
