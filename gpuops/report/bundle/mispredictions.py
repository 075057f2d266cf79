"""Where gpuops was wrong: what it predicted of a step, and what vCenter then did, without a name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpuops.model.prediction import PastMisprediction, PastPredictions, Predicted
from gpuops.report.bundle.harmless import is_told
from gpuops.report.bundle.pseudonyms import NameKind, Pseudonyms
from gpuops.report.bundle.words import COMMANDS, STEPS
from gpuops.report.bundle.world_vms import moment

_FACT: Final = re.compile(r"profiles|assignment policy|pin of vGPU [0-9]{1,2}|(mode of )?GPU [0-9a-f:.]{7,15}")
"""Facts that are words of the vSphere API, addresses and profiles. Versions stand in `versions.json`."""


def mispredictions_document(found: PastPredictions, vcenter: str, names: Pseudonyms) -> dict[str, Any]:
    """Those of one vCenter, oldest first, and how often a prediction was right or could not be judged anywhere."""
    return {
        "mispredictions": [_misprediction(each, names) for each in found.wrong if each.vcenter == vcenter],
        "right": found.right,
        "cannot_say": [
            {"reason": names.of(NameKind.REASON, reason), "steps": steps} for reason, steps in found.cannot_say.items()
        ],
    }


def _misprediction(each: PastMisprediction, names: Pseudonyms) -> dict[str, Any]:
    what = each.found.what
    about = NameKind.HOST if each.ref == each.host else NameKind.VM
    return {
        "at": moment(each.at),
        "run": names.of(NameKind.RUN, each.run),
        "run_kind": each.run_kind if each.run_kind in COMMANDS else names.of(NameKind.TEXT, each.run_kind),
        "step": each.step if each.step in STEPS else names.of(NameKind.TEXT, each.step),
        "moid": names.ref(each.ref),
        "name": names.of(about, each.name),
        "host": None if each.host is None else names.ref(each.host),
        "what": what.value,
        "predicted": _said(each.found.predicted, what, names),
        "found": _said(each.found.found, what, names),
        "facts": list(_facts(each.found.facts, names)),
    }


def _said(text: str, what: Predicted, names: Pseudonyms) -> str:
    """The text itself where it can only be of GPUs, numbers and profiles; a refusal says in words of its own why."""
    if what not in (Predicted.ADMISSION, Predicted.EFFECT) and is_told(text):
        return text
    verdict = next((word for word in ("admitted", "refused") if text == word), None)
    return verdict or names.of(NameKind.REASON, text)


def _facts(facts: Mapping[str, str], names: Pseudonyms) -> Iterator[dict[str, str]]:
    for fact, value in facts.items():
        if _FACT.fullmatch(fact) and is_told(fact):
            yield {"fact": fact, "value": value if is_told(value) else names.of(NameKind.REASON, value)}
