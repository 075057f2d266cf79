"""What is done once somebody has agreed: not before, not without, and again where it is asked again."""

from __future__ import annotations

from typing import cast

import pytest

from gpuops.errors import Refused
from gpuops.execute.site import agreed, once_agreed
from gpuops.plan.core.plan import Report


def test_it_is_done_after_each_yes_with_what_was_agreed_to_and_never_after_a_no() -> None:
    events = list[object]()
    first, second = cast(Report, object()), cast(Report, object())

    def ask(report: Report) -> None:
        events.append("asked")
        if report is second:
            raise Refused("no")

    consent = once_agreed(once_agreed(ask, events.append), lambda _: events.append("then"))
    consent(first)
    consent(first)
    with pytest.raises(Refused):
        consent(second)
    assert events == ["asked", first, "then", "asked", first, "then", "asked"]
    once_agreed(agreed, events.append)(second)
    assert events[-1] is second
