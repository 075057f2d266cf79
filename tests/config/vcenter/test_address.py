"""Addresses of vCenters, as people write them."""

from __future__ import annotations

import pytest

from gpuops.config.vcenter.destination import Address
from gpuops.errors import TargetError
from gpuops.model.vcenter.target import Secret


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
        ("me:s3cret", "what is given"),
        ("https://me:s3cret", "what is given"),
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
