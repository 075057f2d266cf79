"""The section of a policy that says on which evenings a night may begin, at which times, in which time zone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from itertools import combinations
from typing import Annotated
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field, ValidationInfo, WithJsonSchema, model_validator

from gpuops.config.sections.section import Section, Text, accepted_before, mistake
from gpuops.model.window import RETURN_FLOOR, Weekday, Window

_DAY = timedelta(days=1)
_CLOCK = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")


def _known_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (OSError, ValueError, KeyError) as error:
        raise mistake(f"{name!r} is not an IANA zone such as Europe/Berlin") from error
    return name


def _day(text: str) -> str:
    try:
        if len(text) != len("2026-12-24"):
            raise ValueError
        date.fromisoformat(text)
    except ValueError:
        raise mistake(f"{text!r} is no date", "write it as 2026-12-24") from None
    return text


def _clock(text: str) -> str:
    if not _CLOCK.fullmatch(text):
        raise mistake(f"{text!r} is no time of day", 'write it as "20:00"')
    return text


Zone = Annotated[Text, AfterValidator(_known_zone)]
Clock = Annotated[str, AfterValidator(_clock), WithJsonSchema({"type": "string", "pattern": f"^{_CLOCK.pattern}$"})]
Day = Annotated[str, AfterValidator(_day), WithJsonSchema({"type": "string", "format": "date"})]
Days = Annotated[list[Day], Field(max_length=1000)]


class WindowSection(Section):
    """One window."""

    name: Text = ""
    opens: Clock
    closes: Clock
    zone: Zone
    back_by: Clock | None = None
    weekdays: list[Annotated[Weekday, Field(strict=False)]] = Field(default=list(Weekday), min_length=1)
    also_on: Days = Field(default_factory=list)
    not_on: Days = Field(default_factory=list)

    @model_validator(mode="after")
    def _holds_a_night(self, info: ValidationInfo) -> WindowSection:
        if self.opens == self.closes:
            raise mistake("opens and closes at the same minute: no night fits in it")
        if self.window().length > _DAY:
            raise mistake(
                f"back_by {self.back_by} is not between closes {self.closes} and the next opening at {self.opens}",
                "`back_by` is when desktops are back: at `closes`, or after it",
            )
        if self.window().length <= RETURN_FLOOR and not accepted_before(info):
            minutes, floor = (int(length.total_seconds()) // 60 for length in (self.window().length, RETURN_FLOOR))
            raise mistake(
                f"lasts {minutes} min, and {floor} are kept for bringing desktops back: it cannot hold the return",
                "open it earlier, or let `back_by` be later",
            )
        both = sorted(set(self.also_on) & set(self.not_on))
        if both:
            raise mistake(f"{both[0]} stands in `also_on` and in `not_on`", "leave it in one of them")
        return self

    def window(self) -> Window:
        return Window(
            opens=time.fromisoformat(self.opens),
            closes=time.fromisoformat(self.closes),
            zone=ZoneInfo(self.zone),
            back_by=time.fromisoformat(self.back_by) if self.back_by else None,
            weekdays=frozenset(self.weekdays),
            also_on=frozenset(date.fromisoformat(day) for day in self.also_on),
            not_on=frozenset(date.fromisoformat(day) for day in self.not_on),
            name=self.name,
        )


def refuse_overlapping(windows: Sequence[Window]) -> None:
    """Raises the mistake of windows of which two would be one night, or of which one opens before the other is over."""
    for one, other in combinations(windows, 2):
        explicit = sorted(one.also_on | other.also_on)
        both = [str(day) for day in explicit if one.opens_on(day) and other.opens_on(day)]
        both = [str(day) for day in Weekday if day in one.weekdays & other.weekdays] + both
        if both:
            raise mistake(
                f"{_called(one)} and {_called(other)} both open on {both[0]}: a night is one evening",
                "give each evening to one of them: `weekdays`, `also_on`, `not_on`",
            )
    for earlier in windows:
        for later in windows:
            if earlier is not later and _runs_into(earlier, later):
                raise mistake(
                    f"{_called(later)} opens before the desktops of {_called(earlier)} are back",
                    "open it later, or let the other's `back_by` be earlier",
                )


def _runs_into(earlier: Window, later: Window) -> bool:
    """Whether one that opens on the evening after another's opens before that one is over, in one zone."""
    if str(earlier.zone) != str(later.zone):
        return False
    mornings = {day.next for day in earlier.weekdays} | {Weekday.of(day).next for day in earlier.also_on}
    evenings = later.weekdays | {Weekday.of(day) for day in later.also_on}
    if not mornings & evenings:
        return False
    start = datetime.combine(date.min, earlier.opens)
    return start + earlier.length > datetime.combine(date.min, later.opens) + _DAY


def _called(window: Window) -> str:
    return f"window {window.name!r}" if window.name else f"the window that opens at {window.opens:%H:%M}"
