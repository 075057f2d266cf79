"""pyvmomi's own deserialiser: the same properties, paged, each page dropped once it is objects.

python -m tests.bench.readers.pyvmomi QUESTION-FILE
"""

from __future__ import annotations

import ssl
from urllib.parse import urlsplit

from pyVim.connect import SmartConnect
from pyVmomi import vim, vmodl

from tests.bench.readers.account import Account
from tests.bench.readers.question import asked


def main() -> None:
    """Read what is asked with RetrievePropertiesEx, and count."""
    account, question = Account(), asked()
    at = urlsplit(question.url)
    service = SmartConnect(
        host=at.hostname,
        port=at.port,
        user=question.username,
        pwd=question.password,
        sslContext=ssl.create_default_context(cafile=question.ca_file),
    )
    content = service.RetrieveContent()
    account.begin()
    query = vmodl.query.PropertyCollector
    for kind, paths in question.paths.items():
        managed = getattr(vim, kind)
        view = content.viewManager.CreateContainerView(content.rootFolder, [managed], True)
        traversal = query.TraversalSpec(name="view", path="view", skip=False, type=vim.view.ContainerView)
        spec = query.FilterSpec(
            objectSet=[query.ObjectSpec(obj=view, skip=True, selectSet=[traversal])],
            propSet=[query.PropertySpec(type=managed, pathSet=paths, all=False)],
        )
        options = query.RetrieveOptions(maxObjects=question.page)
        page = content.propertyCollector.RetrievePropertiesEx([spec], options)
        account.objects += len(page.objects)
        while page.token:
            page = content.propertyCollector.ContinueRetrievePropertiesEx(page.token)
            account.objects += len(page.objects)
    account.print()


if __name__ == "__main__":
    main()
