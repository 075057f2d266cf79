"""A bulk reply in pieces: every object once, all else in each, and no cut where a cut could lie."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.vsphere.reading.bulk import soap_pages as module
from gpuops.vsphere.reading.bulk.soap_pages import PIECE, split_reply
from gpuops.vsphere.transport.messages import child, children, text
from gpuops.vsphere.transport.wire import parse_reply

HEAD = (
    '<?xml version="1.0" encoding="UTF-8"?><soapenv:Envelope '
    'xmlns:soapenv="http://schemas.xmlsoap.org/soap/envelope/"><soapenv:Body>'
    '<RetrievePropertiesExResponse xmlns="urn:vim25"><returnval>'
)
TAIL = "</returnval></RetrievePropertiesExResponse></soapenv:Body></soapenv:Envelope>"


def reply(objects: list[str], token: str = "<token>7</token>") -> bytes:
    return f"{HEAD}{token}{''.join(objects)}{TAIL}".encode()


def vm(number: int, size: int = 10) -> str:
    return f'<objects><obj type="VirtualMachine">vm-{number}</obj><filler>{"x" * size}</filler></objects>'


def refs(reply_bytes: bytes) -> list[tuple[str | None, list[str | None]]]:
    """Of each piece, its token and the objects in it."""
    pages = [child(parse_reply(piece, "vc"), "returnval") for piece in split_reply(reply_bytes)]
    return [(text(page, "token"), [text(each, "obj") for each in children(page, "objects")]) for page in pages]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 200)


@given(sizes=st.lists(st.integers(0, 500), min_size=1, max_size=30), blanks=st.sampled_from(["", "\n", "  \n "]))
def test_every_object_is_in_one_piece_and_the_token_in_all(sizes: list[int], blanks: str) -> None:
    objects = [vm(number, size) + blanks for number, size in enumerate(sizes)]
    pieces = refs(reply(objects))
    assert [ref for _, part in pieces for ref in part] == [f"vm-{number}" for number in range(len(sizes))]
    assert {token for token, _ in pieces} == {"7"}


def test_a_large_page_is_really_cut() -> None:
    assert [len(part) for _, part in refs(reply([vm(n, 150) for n in range(4)]))] == [1, 1, 1, 1]


def test_a_token_behind_the_objects_is_kept_too() -> None:
    cut = reply([vm(n, 150) for n in range(3)], token="").replace(b"</returnval>", b"<token>9</token></returnval>")
    assert {token for token, _ in refs(cut)} == {"9"}


@pytest.mark.parametrize(
    "objects",
    [
        [],
        [f"<!-- </objects> -->{vm(1, 400)}", vm(2, 400)],
        [vm(1, 400).replace("xxx", "<![CDATA[</objects><objects>]]>", 1), vm(2, 400)],
    ],
    ids=["no objects", "comment", "CDATA"],
)
def test_where_a_cut_could_lie_the_reply_stays_whole(objects: list[str]) -> None:
    whole = reply(objects)
    assert list(split_reply(whole)) == [whole]
    assert [ref for _, part in refs(whole) for ref in part] == re.findall(r"vm-\d", "".join(objects))


def test_much_beside_the_objects_is_not_repeated_with_every_piece() -> None:
    reply = b"<a>" + b"<x/>" * 20_000 + (b"<objects>" + b"y" * PIECE + b"</objects>") * 5 + b"</a>"
    assert list(split_reply(reply)) == [reply]
