"""pydantic does not repeat what a file holds when it is wrong: it may be a password in the wrong place.

What our own words quote (a zone that is none, a time) is a value of a key that never holds one.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages
from typing import Final

import pytest
from pydantic import BaseModel, ValidationError

import gpuops.config

MISPLACED: Final = "Cn4ry-in-the-wrong-place"


def models() -> Iterator[type[BaseModel]]:
    """Every model of the files and options that people write."""
    for found in walk_packages(gpuops.config.__path__, "gpuops.config."):
        for value in vars(import_module(found.name)).values():
            if isinstance(value, type) and issubclass(value, BaseModel) and value.__module__ == found.name:
                yield value


FOUND: Final = sorted(set(models()), key=lambda model: f"{model.__module__}.{model.__name__}")


@pytest.mark.parametrize("model", FOUND, ids=lambda model: model.__name__)
def test_no_model_shows_its_input(model: type[BaseModel]) -> None:
    with pytest.raises(ValidationError) as raised:
        model.model_validate({**dict.fromkeys(model.model_fields, MISPLACED), "beyond": MISPLACED})
    assert "input_value" not in str(raised.value)


def test_there_are_models() -> None:
    assert len(FOUND) > 10
