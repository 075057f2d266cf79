"""What a lock VM holds may be anybody's: a lease, or a refusal that shows it."""

from __future__ import annotations

import pytest

from gpuops.errors import Refused
from gpuops.plan.rotation.lease_rules import parse_lease

LEASE = '{"format":1,"owner":"a","nonce":"b","epoch":%s,"expires":"2026-01-01T00:00:00Z"}'


@pytest.mark.parametrize(
    "text", ["[" * 20_000, LEASE % "1e999", LEASE % "[]", "5", "null", "x"], ids=lambda text: text[:60]
)
def test_what_no_gpuops_wrote_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="a value that this gpuops did not write"):
        parse_lease(text)
