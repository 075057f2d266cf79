"""Names as vCenter writes them, and as people see them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.model.vcenter.inventory import decode_name, encode_name


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("train%2fbert", "train/bert"),
        ("train%2Fbert", "train/bert"),
        ("a%5cb%5Cc", "a\\b\\c"),
        ("100%25", "100%"),
        ("100%252f", "100%2f"),
        ("50% of %20", "50% of %20"),  # other characters are not escaped
        ("vdi-01", "vdi-01"),
    ],
)
def test_a_name_is_decoded_once(written: str, name: str) -> None:
    assert decode_name(written) == name


@given(st.text(alphabet="%/\\25fc aé"))
def test_an_encoded_name_is_decoded_to_itself(name: str) -> None:
    assert decode_name(encode_name(name)) == name
    assert not {"/", "\\"} & set(encode_name(name))
