"""Whatever a text holds, a request has the same elements, and the other end reads the same text; or nothing is sent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from lxml import etree
from pyVmomi import vim

from gpuops.errors import ProtocolError, UsageError
from gpuops.model.vcenter.target import Secret, Target
from gpuops.vsphere.transport.messages import escape_text
from gpuops.vsphere.transport.stub import Stub
from gpuops.vsphere.transport.wire import envelope

STUB = Stub(Target("vc", "me", Secret("pw")), "8.0.3.0", "")
SESSION_MANAGER = ("SessionManager", "SessionManager")
RAW = st.text(st.characters(codec=None, exclude_categories=()), max_size=40)
"""Any code points, controls and halves of characters among them."""
HOSTILE = '"></_this><privilege>Admin</privilege><x y="'
UNSENDABLE = "\0\x1b\x0b\ud800\ufffe"


def shape(request: bytes) -> list[tuple[str, dict[str, str], str]]:
    """Every element in its order: name, attributes, text."""
    parser = etree.XMLParser(resolve_entities=False, remove_blank_text=False)
    return [
        (str(element.tag), {str(key): str(value) for key, value in element.attrib.items()}, element.text or "")
        for element in etree.fromstring(request, parser).iter()
    ]


def login(text: str) -> bytes:
    """The request as the session writes it."""
    return envelope("Login", SESSION_MANAGER, f"<userName>{escape_text(text)}</userName><password>pw</password>")


def reconfigure(text: str) -> bytes:
    """As pyVmomi writes it: a name, a note and a setting's key and value."""
    vm = vim.VirtualMachine("vm-1", STUB)
    option = vim.option.OptionValue(key=text, value=text)
    spec = vim.vm.ConfigSpec(name=text, annotation=text, extraConfig=[option])
    method = next(
        candidate for candidate in vim.VirtualMachine._methodInfo.values() if candidate.wsdlName == "ReconfigVM_Task"
    )
    return STUB.SerializeRequest(vm, method, [spec])


@pytest.mark.parametrize("write", [login, reconfigure])
@given(text=RAW)
@example(text="Cn4ry&<é\"'>")
@example(text="]]>")
@example(text="a\rb\r\nc\td\n")
@example(text=HOSTILE)
def test_a_text_stays_the_text_it_was(write: Any, text: str) -> None:
    try:
        request = write(text)
    except UsageError as error:
        assert "cannot contain" in error.message
        assert any(
            (character < " " and character not in "\t\n\r")
            or "\ud800" <= character <= "\udfff"
            or character in "\ufffe\uffff"
            for character in text
        )
        return
    expected = [
        (tag, attributes, text if element_text == "X" else element_text)
        for tag, attributes, element_text in shape(write("X"))
    ]
    assert shape(request) == expected


@pytest.mark.parametrize("write", [login, reconfigure])
@pytest.mark.parametrize("character", UNSENDABLE)
def test_what_xml_cannot_carry_is_not_sent_nor_repeated(write: Any, character: str) -> None:
    with pytest.raises(UsageError, match="cannot contain") as caught:
        write(f"Cn4ry{character}")
    assert "Cn4ry" not in str(caught.value)
    assert caught.value.__cause__ is None


def by_hand(ref: str) -> bytes:
    return envelope("Login", ("SessionManager", ref))


def of_a_type(ref: str) -> bytes:
    return envelope("Login", (ref, "SessionManager"))


def by_pyvmomi(ref: str) -> bytes:
    method = next(
        candidate for candidate in vim.VirtualMachine._methodInfo.values() if candidate.wsdlName == "PowerOnVM_Task"
    )
    return STUB.SerializeRequest(vim.VirtualMachine(ref, STUB), method, [None])


@pytest.mark.parametrize("write", [by_hand, of_a_type, by_pyvmomi])
@given(ref=RAW)
@example(ref="vm-1" + HOSTILE)
@example(ref="vm-1\n")
@example(ref="")
def test_an_id_is_an_id_or_nothing_is_sent(write: Any, ref: str) -> None:
    try:
        request = write(ref)
    except ProtocolError as error:
        assert "is not the id of an object" in error.message
        return
    plain = "Z" if write is of_a_type else "vm-9"
    assert [element[0] for element in shape(request)] == [element[0] for element in shape(write(plain))]
    assert ref in {text for _, attributes, text in shape(request)} | {
        value for _, attributes, _ in shape(request) for value in attributes.values()
    }
