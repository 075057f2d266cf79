"""Documents as text mean what json says they mean, whatever is in them, and are ASCII."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.report.json_and_csv import document_text, pieces


class Power(StrEnum):
    ON = "poweredOn"


class Owned(str):
    """A text of a library's own class."""


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),  # lone surrogates among them
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(st.characters()), VALUES, min_size=1, max_size=5))
def test_any_document_is_read_as_it_was(document: dict[str, Any]) -> None:
    text = document_text(document)
    assert all(character == "\n" or " " <= character <= "~" for character in text)
    assert json.loads(text) == document


NAME = "山\x9b\x7f\u202e\udc80"
DOCUMENT = {"power": Power.ON, "of": Owned("x"), "empty": [], "none": {}, "name": NAME, "two": (1, None)}


def test_the_text_is_laid_out_as_it_always_was() -> None:
    assert document_text({**DOCUMENT, "hosts": [{"a": [1, {"b": "é\n"}]}, {}]}) == (
        json.dumps({**DOCUMENT, "hosts": [{"a": [1, {"b": "é\n"}]}, {}]}, indent=2) + "\n"
    )


def test_records_are_made_when_they_are_written() -> None:
    numbers_made: list[int] = []

    def records() -> Any:
        for number in range(3):
            numbers_made.append(number)
            yield {"number": number}

    written = pieces({"kind": "x", "records": records(), "total": 3})
    numbered_pieces = []
    for piece in written:
        numbered_pieces.append((piece.strip(), len(numbers_made)))
    assert [number for piece, number in numbered_pieces if '"number"' in piece] == [1, 2, 3]
    assert json.loads(document_text({"records": iter(())})) == {"records": []}


def test_what_is_no_value_of_a_document_is_told() -> None:
    with pytest.raises(TypeError, match="object is no value of a document"):
        document_text({"x": object()})
