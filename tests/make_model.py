"""Makes the model that comes with gpuops: `python -m tests.make_model`, which `make model` calls. A minute of CPU.

It learns from made-up cases alone, by the settings that every training begins with. The same cases and the same version
of scikit-learn give the same model.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Final

from gpuops.extras.diagnosis.answer import scores
from gpuops.extras.diagnosis.case import FAULTS
from gpuops.extras.diagnosis.diagnoses import SHIPPED_MODEL
from gpuops.extras.diagnosis.learning import (
    EACH_FAULT,
    EXAM_EACH,
    EXAM_SEED,
    START,
    as_stored,
    components_right,
    examples,
    fit_forest,
    with_hidden,
)
from gpuops.extras.diagnosis.made_cases import made_cases
from gpuops.extras.diagnosis.model import Forest, to_document

SEED: Final = 1
PATH: Final = Path(str(files("gpuops.extras.diagnosis"))) / SHIPPED_MODEL


def make_model(each_fault: int = EACH_FAULT) -> Forest:
    model = fit_forest(examples(with_hidden(as_stored(made_cases(SEED, each_fault)))), START, SEED)
    exam = as_stored(made_cases(EXAM_SEED, EXAM_EACH))
    right = components_right(scores([case.case for case in exam], model), [case.at_fault for case in exam])
    return replace(model, cases=each_fault * 2 * len(FAULTS), right=right)


def pack(model: Forest) -> bytes:
    text = json.dumps(to_document(model), separators=(",", ":"))
    return gzip.compress(text.encode(), compresslevel=9, mtime=0)


if __name__ == "__main__":
    PATH.write_bytes(pack(make_model()))
