"""Addresses that a guest reports: one that leads to no other machine, or is no address alone, is not used."""

from __future__ import annotations

import pytest

from gpuops.plan.core.guest_address import unicast_address


@pytest.mark.parametrize(
    "text",
    [
        "10.1.2.3",
        "192.168.0.1",
        "203.0.113.9",
        "8.8.8.8",
        "100.64.0.1",
        "198.18.0.7",
        "198.19.0.7",
        "127.64.0.7",
        "127.65.255.1",
        "fd00::1",
        "2001:db8::7",
        "2606:4700::1111",
    ],
)
def test_a_host(text: str) -> None:
    assert str(unicast_address(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "fd00::1%\nevil.example.com slots=8",
        "fd00::1%eth0",
        "fd00::1%",
        "fe80::1%1",
        "2001:db8::1%25",
        "127.0.0.1",
        "127.1.2.3",
        "127.63.255.255",
        "127.66.0.0",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
        "0.0.0.0",
        "0.1.2.3",
        "::",
        "224.0.0.1",
        "ff02::1",
        "fec0::1",
        "169.254.1.2",
        "fe80::1",
        "64:ff9b::1",
        "4000::1",
        "",
        "10.1.2.3\n",
        " 10.1.2.3",
        "10.1.2.3 slots=8",
        "10.1.2",
        "010.1.2.3",
        "10.1.2.3/24",
        "1234",
        "gpu-01",
        "fd00::1\n",
        "١.2.3.4",
    ],
)
def test_no_host(text: str) -> None:
    assert unicast_address(text) is None
