"""`doctor` reports an XML parser with known weaknesses, and no other."""

from __future__ import annotations

from gpuops.plan.doctor.examination import of_parser
from gpuops.plan.doctor.finding import Severity


def test_an_old_one_is_a_note() -> None:
    [note] = of_parser((2, 5, 0))
    assert (note.severity, note.subject) == (Severity.NOTE, "libexpat 2.5.0")
    assert "before 2.7.2" in note.reason


def test_a_sound_one_is_none() -> None:
    assert list(of_parser((2, 7, 2))) == list(of_parser((3, 0, 0))) == []
