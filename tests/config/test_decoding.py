"""Limits of an annotation hold for the option of a union that the content fits."""

from __future__ import annotations

from typing import Annotated

import pytest
from msgspec import Meta

from gpuops.config.decoding import Section, WrongContent, decode


class LimitedSection(Section):
    """Keys with limits on unions."""

    number: Annotated[int | None, Meta(ge=1)] = None
    names: Annotated[tuple[str, ...] | str, Meta(min_length=1)] = "x"


@pytest.mark.parametrize("content", [{"number": None}, {"number": 1}, {"names": ["a"]}, {"names": "a"}])
def test_an_option_within_the_limits_is_accepted(content: dict[str, object]) -> None:
    decode(LimitedSection, content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"number": 0}, "number: should be 1 or more"),
        ({"names": ""}, "names: should not be empty"),
        ({"names": []}, "names: should not be an empty list"),
    ],
)
def test_an_option_beyond_the_limits_is_refused(content: dict[str, object], message: str) -> None:
    with pytest.raises(WrongContent, match=message):
        decode(LimitedSection, content)
