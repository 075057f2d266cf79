"""Replies that no vCenter sends: bombs, floods, nonsense. X1 to X8 and M1 to M6 are the ones this transport is for.

Each is what stands in the HTTP answer to one call; `%s` in a body is where the call's own answer would begin.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

MIB = 1024 * 1024
XML = '<?xml version="1.0" encoding="UTF-8"?>'
OPEN = (
    '<soapenv:Envelope xmlns:soapenv="http://schemas.xmlsoap.org/soap/envelope/"'
    ' xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xmlns:xsd="http://www.w3.org/2001/XMLSchema"><soapenv:Body>'
)
CLOSE = "</soapenv:Body></soapenv:Envelope>"


@dataclass(frozen=True, slots=True)
class Hostile:
    """A whole reply; `drip_s` lies between two bytes, `flood` is repeated for ever after the head."""

    body: bytes = b""
    status: str = "200 OK"
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None
    """What Content-Length claims; None = the truth."""
    drip_s: float = 0.0
    flood: bytes = b""
    silent: bool = False


def _envelope(inside: str, doctype: str = "") -> bytes:
    return f"{XML}{doctype}{OPEN}{inside}{CLOSE}".encode()


def _time_reply(text: str, doctype: str = "") -> bytes:
    """The answer of CurrentTime, and of any other call as far as SOAP goes."""
    return _envelope(
        f'<CurrentTimeResponse xmlns="urn:vim25"><returnval>{text}</returnval></CurrentTimeResponse>', doctype
    )


def _objects(inside: str) -> bytes:
    """The answer of a bulk read, with these objects."""
    return _envelope(
        '<RetrievePropertiesExResponse xmlns="urn:vim25"><returnval>'
        f"{inside}</returnval></RetrievePropertiesExResponse>"
    )


def _vm(properties: str, ref: str = "vm-1") -> bytes:
    return _objects(f'<objects><obj type="VirtualMachine">{ref}</obj>{properties}</objects>')


def _laughs() -> str:
    levels = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
    return f'<!DOCTYPE x [<!ENTITY l0 "ha">{levels}]>'


def _chain(length: int) -> str:
    links = "".join(f'<!ENTITY e{n} "&e{n - 1};">' for n in range(1, length))
    return f'<!DOCTYPE x [<!ENTITY e0 "ha">{links}]>'


def _pack(mebibytes: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    parts = [packer.compress(bytes(MIB)) for _ in range(mebibytes)]
    return b"".join(parts) + packer.flush()


def _chunk(body: bytes, size: int) -> bytes:
    pieces = (body[start : start + size] for start in range(0, len(body), size))
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def _wide(doctype_and_more: bytes) -> bytes:
    return doctype_and_more.decode().replace('"UTF-8"', '"UTF-16"').encode("utf-16")


def small() -> dict[str, Hostile]:
    """Those that cost nothing to make and nothing to refuse."""
    return {
        "X1 billion laughs": Hostile(_time_reply("&l9;", _laughs())),
        "X6 external entity": Hostile(_time_reply("&x;", '<!DOCTYPE x [<!ENTITY x SYSTEM "file:///etc/hostname">]>')),
        "X6 external document type": Hostile(_time_reply("", '<!DOCTYPE x SYSTEM "file:///etc/hostname">')),
        "X6 parameter entity": Hostile(_time_reply("", '<!DOCTYPE x [<!ENTITY % p SYSTEM "file:///etc/passwd">%p;]>')),
        "entities in another encoding": Hostile(_wide(_time_reply("&l9;", _laughs()))),
        "X7 nested elements": Hostile(_time_reply("<a>" * 10_000 + "</a>" * 10_000)),
        "X9 redirect": Hostile(status="301 Moved", headers={"Location": "https://elsewhere.example.com/sdk"}),
        "X17 nothing": Hostile(),
        "X17 HTML": Hostile(b"<html><body>Log in to the network<br></body></html>"),
        "X17 well-formed HTML": Hostile(b"<html><body>Log in to the network</body></html>"),
        "X17 JSON": Hostile(b'{"error": "no"}'),
        "X17 cut in the middle": Hostile(_time_reply("2026-11-21T12:00:00Z")[:-60]),
        "M5 no envelope": Hostile(b"<a/>"),
        "M6 id with elements": Hostile(_vm("", "vm-1&quot;&gt;&lt;_this&gt;")),
    }


def nonsense() -> dict[str, Hostile]:
    """SOAP as it should be, with values that no vCenter has: a typed parser must refuse it, a tolerant one may not."""
    name = '<propSet><name>name</name><val xsi:type="{}">{}</val></propSet>'
    return {
        "M5 unknown type": Hostile(_vm(name.format("NoSuchType", "x"))),
        "M5 type of an endless name": Hostile(_vm(name.format("ArrayOf" * 100_000, "x"))),
        "M5 unknown field": Hostile(_vm("<nothing>x</nothing>")),
        "M5 bad date": Hostile(_vm(name.format("xsd:dateTime", "when?"))),
        "M5 endless number": Hostile(_vm(name.format("xsd:int", "9" * 1_000_000))),
        "M5 element in a text": Hostile(_vm(name.format("xsd:string", "<a/>"))),
        "M5 object without id": Hostile(_vm("", "")),
    }


def large() -> dict[str, Callable[[], Hostile]]:
    """Those that would take seconds, memory, or the process; made only when called for, for one packs a gigabyte."""
    return {
        "X2 quadratic blow-up": lambda: Hostile(
            _time_reply("&a;" * 1000, f'<!DOCTYPE x [<!ENTITY a "{"a" * 100_000}">]>')
        ),
        "X3 text of 16 MB": lambda: Hostile(_time_reply("a" * 16 * MIB)),
        "X4 chained entities": lambda: Hostile(_time_reply("&e99999;", _chain(100_000))),
        "X5 packed": lambda: Hostile(_pack(1024), headers={"Content-Encoding": "gzip"}),
        "X7 half a million nested": lambda: Hostile(_time_reply("<a>" * 500_000 + "</a>" * 500_000)),
        "X8 silence": lambda: Hostile(silent=True),
        "X8 drip": lambda: Hostile(_time_reply("x"), drip_s=0.1),
        "M1 blow-up under the limit": lambda: Hostile(
            _time_reply("&a;" * 90, f'<!DOCTYPE x [<!ENTITY a "{"a" * 1_000_000}">]>')
        ),
        "M3 text of 100 MB": lambda: Hostile(_time_reply("a" * 100_000_000)),
        "a flood of elements": lambda: Hostile(_time_reply("<a/>" * (15 * MIB))),
        "a flood of objects": lambda: Hostile(_objects("<objects/>" * 6 * MIB)),
        "a flood of attributes": lambda: Hostile(
            _time_reply("<a " + " ".join(f'b{n}=""' for n in range(2_000_000)) + "/>")
        ),
        "attributes as far as allowed": lambda: Hostile(
            _time_reply("<a " + " ".join(f'b{n}=""' for n in range(700_000)) + "/>")
        ),
        "namespaces": lambda: Hostile(
            _time_reply("<a " + " ".join(f'xmlns:b{n}="u{n}"' for n in range(700_000)) + "/>")
        ),
        "a namespace an element": lambda: Hostile(_vm("".join(f'<a xmlns:b{n}="u{n}"/>' for n in range(450_000)))),
        "1.4 million attributes": lambda: Hostile(
            _time_reply("<a " + " ".join(f'b{n}=""' for n in range(1_400_000)) + "/>")
        ),
        "honest values without end": lambda: Hostile(
            _vm('<propSet><name>name</name><val xsi:type="xsd:string">x</val></propSet>' * 200_000)
        ),
        "much beside the objects": lambda: Hostile(
            _objects("<x/>" * 300_000 + f"<objects>{'x' * 4000}</objects>" * 10_000)
        ),
        "elements as far as allowed": lambda: Hostile(_objects("<objects></objects>" * 700_000)),
        "a claim of a terabyte": lambda: Hostile(b"<a/>", length=10**12),
        "a chunk of a terabyte": lambda: Hostile(
            b"e8d4a51000\r\n<a/>", headers={"Transfer-Encoding": "chunked"}, length=-1
        ),
        "crumbs": lambda: Hostile(_chunk(bytes(4 * MIB), 1), headers={"Transfer-Encoding": "chunked"}, length=-1),
        "headers without end": lambda: Hostile(flood=b"X-More: more\r\n"),
        "continue without end": lambda: Hostile(flood=b"\r\nHTTP/1.1 100 Continue\r\n", status="100 Continue"),
    }
