"""How a policy writes days: weekdays and dates, ranges of them, and the public holidays of a country; and clock times
with the day on which they are meant.

Holidays are those of the library `holidays`, which is imported where a policy names a country.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, time, timedelta
from functools import lru_cache
from typing import Annotated, Any, Final

from msgspec import Meta

from gpuops.model.file_keys import Before, Mistaken, Reads
from gpuops.model.window import Weekday

_CLOCK: Final = "([01][0-9]|2[0-3]):[0-5][0-9]"
_DATE: Final = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME_OF_DAY: Final = re.compile(rf"((?P<on>{_DATE}|[A-Za-z]+) +)?(?P<clock>{_CLOCK}|24:00)")
_HOLIDAYS: Final = re.compile(r"holidays (?P<country>[A-Z]{2})(-(?P<part>[A-Z0-9]{1,4}))?")
_FULL_NAMES: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_NAME: Final = "|".join("".join(f"[{letter.upper()}{letter}]" for letter in name) for name in (*Weekday, *_FULL_NAMES))
"""A pattern of a weekday in any case, for JSON Schema, which has no such flag."""
_YEARS: Final = range(2020, 2061)
"""The years whose holidays are computed. Fixed, so that reading a policy does not depend on the current date."""
_LONGEST_RANGE: Final = timedelta(days=366)
_SAY_DAYS: Final = "write 2026-12-24, 2026-12-24..2027-01-01, or `holidays DE-BY` for the public holidays of a country"


def _weekday(text: str) -> Weekday:
    """A weekday by its short or full name, in any case."""
    name = text.strip().lower()
    if name in _FULL_NAMES:
        return list(Weekday)[_FULL_NAMES.index(name)]
    try:
        return Weekday(name)
    except ValueError:
        raise Mistaken(f"{text!r} is no weekday", "write mon, tue, wed, thu, fri, sat or sun, or mon-fri") from None


def _weekdays(value: Any) -> Any:
    """The weekdays of a name, of a range such as `mon-fri`, or of a list of both."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        return value  # what is wrong with it is said when it is decoded
    return list(dict.fromkeys(day for part in value for day in _weekdays_of(part)))


def _weekdays_of(part: str) -> Iterator[Weekday]:
    first, is_range, last = part.partition("-")
    day, end = _weekday(first), _weekday(last if is_range else first)
    yield day
    while day is not end:
        day = day.next
        yield day


# not `pattern=`: msgspec 0.22 frees a pattern twice that stands beside a list in a union
_WeekdayText = Annotated[str, Meta(extra_json_schema={"pattern": f"^({_NAME})(-({_NAME}))?$"})]
Weekdays = Annotated[
    tuple[Weekday, ...],
    Meta(min_length=1),
    Before(_weekdays, _WeekdayText | Annotated[tuple[_WeekdayText, ...], Meta(min_length=1)]),
]


def _date(text: str) -> date:
    try:
        if re.fullmatch(_DATE, text) is None:
            raise ValueError
        return date.fromisoformat(text)
    except ValueError:
        raise Mistaken(f"{text!r} is no date", "write it as 2026-12-24") from None


@lru_cache(maxsize=256)
def days_of(text: str) -> tuple[date, ...]:
    """The dates of an entry of `also_on` or `not_on`: one, a range of them, or the holidays of a country."""
    if text.startswith("holidays"):
        return _holidays(text)
    first, is_range, last = (part.strip() for part in text.partition(".."))
    begin = _date(first)
    end = _date(last) if is_range else begin
    if end < begin or end - begin > _LONGEST_RANGE:
        raise Mistaken(f"{text!r} is no range of at most a year", _SAY_DAYS)
    return tuple(begin + timedelta(days=number) for number in range((end - begin).days + 1))


def _holidays(text: str) -> tuple[date, ...]:
    match = _HOLIDAYS.fullmatch(text)
    if match is None:
        raise Mistaken(f"{text!r} names no country", _SAY_DAYS)
    from holidays import country_holidays

    try:
        holidays = country_holidays(match["country"], subdiv=match["part"], years=_YEARS)
    except NotImplementedError as unknown:
        raise Mistaken(f"{text!r}: {unknown}", "ISO 3166 has the codes: DE, DE-BY, US, US-CA") from None
    return tuple(sorted(holidays))


def _checked_days(text: str) -> str:
    days_of(text)
    return text


_DaysText = Annotated[
    str, Meta(extra_json_schema={"pattern": rf"^({_DATE}(\.\.{_DATE})?|holidays [A-Z]{{2}}(-[A-Z0-9]{{1,4}})?)$"})
]
Days = Annotated[
    tuple[Annotated[str, Reads(_checked_days, _DaysText)], ...],
    Meta(max_length=1000),
]


def read_time(text: str) -> tuple[Weekday | date | None, time]:
    """Return the day and the time of `20:00`, `mon 07:00` or `2026-12-24 16:00`; the day is None if none is given.

    24:00 is returned as 00:00 of the day after. Raises Mistaken for any other text.
    """
    match = _TIME_OF_DAY.fullmatch(text)
    if match is None:
        raise Mistaken(f"{text!r} is no time of day", 'write it as "20:00", or with its day as "mon 07:00"')
    on = match["on"]
    day = None if on is None else _date(on) if on[0].isdigit() else _weekday(on)
    if match["clock"] != "24:00":
        return day, time.fromisoformat(match["clock"])
    return (day.next if isinstance(day, Weekday) else day and day + timedelta(days=1)), time()


def _checked_time(text: str) -> str:
    read_time(text)
    return text


_TimeText = Annotated[str, Meta(extra_json_schema={"pattern": rf"^(({_DATE}|{_NAME}) +)?({_CLOCK}|24:00)$"})]
TimeOfDay = Annotated[str, Reads(_checked_time, _TimeText)]
