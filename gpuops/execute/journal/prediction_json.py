"""Predictions, and what comparing them came to, as plain JSON and back: keys of the records of an effect.

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
def _prediction() -> TypeAdapter[Prediction]:
    return TypeAdapter(Prediction)


@cache
def _compared() -> TypeAdapter[Compared]:
    return TypeAdapter(Compared)


def dump_prediction(prediction: Prediction) -> dict[str, Any]:
    """What is said of it; what is not predicted is left out."""
    dumped: dict[str, Any] = _prediction().dump_python(prediction, mode="json", exclude_defaults=True)
    return dumped


def dump_compared(compared: Compared) -> dict[str, Any]:
    """Empty for a prediction that was right."""
    dumped: dict[str, Any] = _compared().dump_python(compared, mode="json", exclude_defaults=True)
    return dumped


def load_prediction(body: Mapping[str, Any]) -> Prediction | None:
    """The prediction in the body of an intent; None = none was made. Raises StateDamaged."""
    found: Prediction | None = _loaded(_prediction(), body.get(PREDICTED))
    return found


def load_compared(body: Mapping[str, Any]) -> Compared | None:
    """The comparison in the body of an outcome; None = there was none. Raises StateDamaged."""
    found: Compared | None = _loaded(_compared(), body.get(COMPARED))
    return found


def _loaded(adapter: TypeAdapter[Any], found: object) -> Any:
    if found is None:
        return None
    try:
        return adapter.validate_python(found)
    except ValidationError as error:
        raise StateDamaged(
            f"the journal holds a prediction that this version cannot read: {str(found)[:80]}"
        ) from error
