"""Secret: a text that only whoever asks for it by name gets; no message, log, traceback or dump shows it."""

from __future__ import annotations

import hmac
from typing import Any, Final, NoReturn, Self

_SHOWN: Final = "Secret(…)"


class Secret:
    """A password from where it is read to where it is sent.

    `repr`, `str` and `format` say that there is one, without its length. Pickling and JSON are refused: what writes a
    value down without being asked would write this one too. Copies are the same object.
    """

    __slots__ = ("__text",)

    def __init__(self, text: str) -> None:
        self.__text = text

    def reveal(self) -> str:
        """The text itself; called where it is put on the wire, and nowhere else."""
        return self.__text

    def __repr__(self) -> str:
        return _SHOWN

    def __format__(self, spec: str) -> str:
        return _SHOWN

    def __bool__(self) -> bool:
        return bool(self.__text)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        ours, theirs = (text.encode("utf-8", "surrogatepass") for text in (self.__text, other.__text))
        return hmac.compare_digest(ours, theirs)

    __hash__ = None  # type: ignore[assignment]  # a key of a mapping is sorted, printed and kept

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a secret is not written down")
