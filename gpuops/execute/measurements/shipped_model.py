"""The model that comes with gpuops: made of made-up cases alone, by `make model`."""

from __future__ import annotations

import gzip
import json
from functools import lru_cache
from importlib.resources import files
from typing import Final

from gpuops.advise.diagnosis.model import Forest, read

NAME: Final = "shipped_model.json.gz"


@lru_cache(maxsize=1)
def shipped_model() -> Forest:
    """The model, as it was built into this version of gpuops."""
    packed = files(__package__).joinpath(NAME).read_bytes()
    return read(json.loads(gzip.decompress(packed)))
