"""The files of `govc object.save`, opened as documents in which a property can be read, put and dropped.

One file holds one managed object: `<ObjectContent>` with a `<propSet>` per property. Paths here are dotted and start
with the property: `config.hardware.device`. vcsim reads elements by name, so their order does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from lxml import etree

XSI_TYPE = "{http://www.w3.org/2001/XMLSchema-instance}type"

# What an element may hold: text, children by name, or several elements of that name. In a mapping "@xsi" is the
# vSphere type of a polymorphic field, "@type" the type of a managed object reference and "#" the text.
Scalar: TypeAlias = str | int | bool
Content: TypeAlias = "Scalar | Mapping[str, Content | Sequence[Content]]"


def reference(kind: str, moid: str) -> Content:
    """A managed object reference as element content."""
    return {"@type": kind, "#": moid}


def element(tag: str, content: Content) -> etree._Element:
    """The XML element `tag` holding `content`."""
    node = etree.Element(tag)
    if not isinstance(content, Mapping):
        node.text = _text(content)
        return node
    for name, value in content.items():
        match name:
            case "@xsi":
                node.set(XSI_TYPE, str(value))
            case "@type":
                node.set("type", str(value))
            case "#":
                node.text = str(value)
            case _:
                node.extend(element(name, item) for item in _items(value))
    return node


def _items(value: Content | Sequence[Content]) -> Sequence[Content]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def _text(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class SavedObject:
    """One saved managed object; nothing reaches the disk before `save()`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._root = etree.parse(path, etree.XMLParser(remove_blank_text=True)).getroot()
        # A saved method answer (QueryConfigTarget.xml) has one <returnval>; an object has one <val> per property.
        answer = self._root.find("returnval")
        self._values = {} if answer is None else {"returnval": answer}
        for prop in self._root.iter("propSet"):
            name, value = prop.findtext("name"), prop.find("val")
            if name is not None and value is not None:
                self._values[name] = value

    @property
    def moid(self) -> str:
        """The managed object id: `host-24`."""
        return self._root.findtext("obj") or ""

    def text(self, path: str) -> str:
        """Return the text at `path`; empty without one."""
        element = self._find(path)
        return "" if element is None else element.text or ""

    def put(self, path: str, content: Content | Sequence[Content]) -> None:
        """Replace every element at `path` by `content`; a sequence gives one element per item."""
        parent, tag = self._parent(path)
        for old in parent.findall(tag):
            parent.remove(old)
        self.add(path, content)

    def add(self, path: str, content: Content | Sequence[Content]) -> None:
        """Append elements at `path`, beside those that are there."""
        parent, tag = self._parent(path)
        parent.extend(element(tag, item) for item in _items(content))

    def put_text(self, path: str, value: Scalar) -> None:
        """Replace the text at `path`, a whole property or a leaf that exists."""
        element = self._find(path)
        if element is None:
            raise LookupError(f"{self.path.name} has no {path}")
        element.text = _text(value)

    def put_references(self, name: str, kind: str, moids: Sequence[str]) -> None:
        """Replace a property that is an array of managed object references."""
        array = self._values[name]
        for old in list(array):
            array.remove(old)
        array.extend(element("ManagedObjectReference", reference(kind, moid)) for moid in moids)

    def children(self, path: str, tag: str) -> list[etree._Element]:
        """The elements `tag` under `path`."""
        element = self._find(path)
        return [] if element is None else element.findall(tag)

    def save(self) -> None:
        """Write the document back to its file."""
        etree.ElementTree(self._root).write(self.path, pretty_print=True)

    def _parent(self, path: str) -> tuple[etree._Element, str]:
        above, _, tag = path.rpartition(".")
        parent = self._find(above)
        if parent is None:
            raise LookupError(f"{self.path.name} has no {above}")
        return parent, tag

    def _find(self, path: str) -> etree._Element | None:
        name, _, path_below = path.partition(".")
        value = self._values.get(name)
        if value is None or not path_below:
            return value
        return value.find(path_below.replace(".", "/"))


def saved_objects(directory: Path, kind: str) -> Iterator[SavedObject]:
    """Every saved object of one managed object type, in the order vcsim created them."""
    for path in sorted(directory.glob(f"[0-9]*-{kind}-*.xml")):
        yield SavedObject(path)
