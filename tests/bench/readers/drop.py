"""Read and drop: the floor of every client. TLS, HTTP and the bytes, and nothing is understood.

python -m tests.bench.readers.drop QUESTION-FILE
"""

from __future__ import annotations

import http.client
import re
import ssl
from urllib.parse import urlsplit
from xml.sax.saxutils import escape

from tests.bench.readers.account import Account
from tests.bench.readers.question import Question, read_question

ENVELOPE = (
    '<?xml version="1.0"?><soapenv:Envelope xmlns:soapenv="http://schemas.xmlsoap.org/soap/envelope/" '
    'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"><soapenv:Body>{}</soapenv:Body></soapenv:Envelope>'
)
TOKEN = re.compile(rb"<token>([^<]*)</token>")
OBJECT = b"<objects>"
VALUE = re.compile(rb"<returnval[^>]*>([^<]*)</returnval>")


class Wire:
    """One connection and one session, raw."""

    def __init__(self, question: Question) -> None:
        at = urlsplit(question.url)
        context = ssl.create_default_context(cafile=question.ca_file)
        self._connection = http.client.HTTPSConnection(at.hostname or "", at.port, context=context)
        self._cookie = ""
        user, password = escape(question.username), escape(question.password)
        self.call(
            '<Login xmlns="urn:vim25"><_this type="SessionManager">SessionManager</_this>'
            f"<userName>{user}</userName><password>{password}</password></Login>"
        )

    def call(self, body: str) -> bytes:
        headers = {"Content-Type": "text/xml; charset=utf-8", "SOAPAction": '"urn:vim25/8.0.3.0"'}
        if self._cookie:
            headers["Cookie"] = self._cookie
        self._connection.request("POST", "/sdk", ENVELOPE.format(body).encode(), headers)
        response = self._connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise RuntimeError(answer[-2000:].decode(errors="replace"))
        self._cookie = (response.headers.get("Set-Cookie") or self._cookie).split(";")[0]
        return answer


def read(wire: Wire, kind: str, paths: list[str], page: int, account: Account) -> None:
    view = VALUE.search(
        wire.call(
            '<CreateContainerView xmlns="urn:vim25"><_this type="ViewManager">ViewManager</_this>'
            f'<container type="Folder">group-d1</container><type>{kind}</type><recursive>true</recursive>'
            "</CreateContainerView>"
        )
    )
    assert view is not None
    path_set = "".join(f"<pathSet>{path}</pathSet>" for path in paths)
    answer = wire.call(
        '<RetrievePropertiesEx xmlns="urn:vim25"><_this type="PropertyCollector">propertyCollector</_this>'
        f"<specSet><propSet><type>{kind}</type>{path_set}</propSet><objectSet>"
        f'<obj type="ContainerView">{view[1].decode()}</obj><skip>true</skip>'
        '<selectSet xsi:type="TraversalSpec"><type>ContainerView</type><path>view</path></selectSet>'
        f"</objectSet></specSet><options><maxObjects>{page}</maxObjects></options></RetrievePropertiesEx>"
    )
    account.objects += answer.count(OBJECT)
    while token := TOKEN.search(answer):
        answer = wire.call(
            '<ContinueRetrievePropertiesEx xmlns="urn:vim25">'
            f'<_this type="PropertyCollector">propertyCollector</_this><token>{token[1].decode()}</token>'
            "</ContinueRetrievePropertiesEx>"
        )
        account.objects += answer.count(OBJECT)


if __name__ == "__main__":
    counted = Account()
    question = read_question()
    connection = Wire(question)
    counted.begin()
    for kind, paths in question.paths.items():
        read(connection, kind, paths, question.page, counted)
    counted.print()
