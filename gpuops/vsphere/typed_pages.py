"""TypedPages: the pages of one bulk read by pyVmomi, for the few reads that need its values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuops.errors import ProtocolError

if TYPE_CHECKING:
    from gpuops.vsphere.session import Session


def objects(session: Session, spec: Any, most: int, *, subject: str = "") -> list[Any]:
    """The ObjectContents of all pages. Raises NotConnected in its kinds, ProtocolError for more than `most` of them."""
    from pyVmomi import vmodl

    collector = session.content.propertyCollector
    page = session.read(
        collector.RetrievePropertiesEx, [spec], vmodl.query.PropertyCollector.RetrieveOptions(), subject=subject
    )
    found: list[Any] = []
    while page is not None:
        found += page.objects
        if len(found) > most or (page.token and not page.objects):
            raise ProtocolError(
                f"{session.target.address} does not end a read of {most} objects",
                hint="check the address; nothing of it was used",
            )
        page = session.read(collector.ContinueRetrievePropertiesEx, page.token) if page.token else None
    return found
