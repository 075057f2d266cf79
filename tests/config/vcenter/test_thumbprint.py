"""The SHA-256 that a certificate is held to: how it may be written, and who is asked for it."""

from __future__ import annotations

import pytest

from gpuops.config.vcenter.destination import Destination, sha256_of
from gpuops.config.vcenter.layers import Flags
from gpuops.config.vcenter.sources import resolve
from gpuops.config.vcenter.targets import Configuration, NamedTarget
from gpuops.errors import TargetError

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
