"""Predictions, and what comparing them came to, as plain JSON: keys of the records of an effect.

`predicted` stands in the record of the intent, `compared` in that of its outcome. Older records have neither, and an
older gpuops reads on over both.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gpuops.errors import StateDamaged
from gpuops.model.prediction import Compared, Prediction

PREDICTED = "predicted"
COMPARED = "compared"


@cache
def _adapters() -> Mapping[type, TypeAdapter[Any]]:
    return {Prediction: TypeAdapter(Prediction), Compared: TypeAdapter(Compared)}


def dump(written: Prediction | Compared) -> dict[str, Any]:
    """Return what differs from the defaults: nothing for a prediction that was right."""
    dumped: dict[str, Any] = _adapters()[type(written)].dump_python(written, mode="json", exclude_defaults=True)
    return dumped


def load_compared(body: Mapping[str, Any]) -> Compared | None:
    """The comparison in the body of an outcome; None = there was none. Raises StateDamaged."""
    if (found := body.get(COMPARED)) is None:
        return None
    try:
        compared: Compared = _adapters()[Compared].validate_python(found)
    except ValidationError as error:
        raise StateDamaged(
            f"the journal holds a prediction that this version cannot read: {str(found)[:80]}"
        ) from error
    return compared
