"""Keeps diagnoses, what people found instead, and the model, as files in the state directory. No name of a VM is kept.

`diagnosis/model.json` is the model; `diagnosis/cases/ID.json` a case with what was said of it, of which VM (id) and
when, and, once somebody has confirmed or corrected it, what was at fault.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import msgspec

from gpuops.advise.diagnosis.answer import StoredDiagnosis, Suspect
from gpuops.advise.diagnosis.corrections import SettledDiagnosis
from gpuops.advise.diagnosis.model import Forest, from_document, to_document
from gpuops.config.case_file import parse_case
from gpuops.errors import StateDamaged, UsageError
from gpuops.execute.state.state_dir import prepare_state_dir
from gpuops.files.private_file import write_private
from gpuops.model.measurements.case import DiagnosisCase, LabelledCase, plain
from gpuops.model.measurements.component import Component

MOST_OPEN: Final = 500
"""How many diagnoses that were neither confirmed nor corrected are kept, the newest first."""
SHIPPED_MODEL: Final = "shipped_model.json.gz"
_ID: Final = re.compile(r"d-[0-9a-f]{10}")
_TRAIN: Final = "the one that comes with gpuops answers then, and gpuops diagnose train makes a new one"


@lru_cache(maxsize=1)
def shipped_model() -> Forest:
    """Return the model that comes with gpuops; `make model` makes it, of made-up cases alone."""
    packed = files(__package__).joinpath(SHIPPED_MODEL).read_bytes()
    return from_document(json.loads(gzip.decompress(packed)))


class _Suspected(
    msgspec.Struct,
    frozen=True,
    rename={"component": "component", "probability": "probability", "evidence": "evidence", "by_rule": "by_rule"},
):
    """A suspect as it is stored; `rename` has the stored name of each field, here and below."""

    component: Component
    probability: float
    evidence: list[str]
    by_rule: bool


class _Said(msgspec.Struct, frozen=True, rename={"vcenter": "vcenter", "vm": "vm", "at": "at", "suspects": "suspects"}):
    """The VM, the time and the suspects of a stored diagnosis."""

    vcenter: str
    vm: str
    at: datetime
    suspects: list[_Suspected]


class _Kept(msgspec.Struct, frozen=True, rename={"found": "found", "of": "of", "named": "named"}):
    """A file of `diagnosis/cases` without its case, which is long."""

    found: list[Component] | None
    named: Component | None = None
    """The first suspect when a person settled it; None = there was none, or an older gpuops did not store it."""
    of: _Said | None = None
    """None = an older gpuops made it, which did not store that."""


class Diagnoses:
    """The diagnoses of one state directory. Methods raise StateDamaged for files that cannot be read or written."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._folder = state_dir / "diagnosis"
        self._model = self._folder / "model.json"

    def model(self) -> Forest:
        """Return the model that was trained on this machine, or the one that comes with gpuops."""
        if not self._model.exists():
            return shipped_model()
        try:
            return from_document(json.loads(self._model.read_text(encoding="utf-8")))
        except (OSError, ValueError, RecursionError) as error:
            raise StateDamaged(
                f"the model {self._model} cannot be read: {error}", hint=f"move it aside: {_TRAIN}"
            ) from error

    def set_model(self, model: Forest) -> None:
        self._prepare()
        write_private(self._model, json.dumps(to_document(model), separators=(",", ":")))

    def note(self, vcenter: str, vm: str, case: DiagnosisCase, suspects: Sequence[Suspect], at: datetime) -> str:
        """Store the suspects of a VM (id) at that time, and return the id for `confirm` and `correct`."""
        told = json.dumps(plain(LabelledCase(vm, case, frozenset())), sort_keys=True)
        name = f"d-{hashlib.sha256(f'{vcenter} {told}'.encode()).hexdigest()[:10]}"
        path = self._path(name)
        before = self._read(path) if path.exists() else {}
        self._prepare()
        suspected = [
            _Suspected(suspect.component, suspect.probability, list(suspect.evidence), suspect.by_rule)
            for suspect in suspects
        ]
        said = _Said(vcenter, vm, at, suspected)
        text = {
            "said": [
                each.component for each in suspects
            ],  # by the model of now: what is confirmed is what was read last
            "found": before.get("found"),
            "named": before.get("named"),
            "of": msgspec.to_builtins(said),
            "case": plain(LabelledCase(name, case, frozenset())),
        }
        self._write(path, text)
        self._forget()
        return name

    def newest(self, vcenter: str) -> dict[str, StoredDiagnosis]:
        """Return the last diagnosis of each VM of that vCenter, by its managed object id."""
        found: dict[str, StoredDiagnosis] = {}
        for path, kept, said in self._of_vcenter(vcenter):
            before = found.get(said.vm)
            if before is None or before.at < said.at:
                suspects = tuple(
                    Suspect(each.component, each.probability, tuple(each.evidence), each.by_rule)
                    for each in said.suspects
                )
                settled = None if kept.found is None else tuple(kept.found)
                found[said.vm] = StoredDiagnosis(path.stem, said.vm, said.at, suspects, settled)
        return found

    def settled(self, vcenter: str) -> tuple[SettledDiagnosis, ...]:
        """Return the diagnoses of VMs of that vCenter that people confirmed or corrected."""
        return tuple(
            SettledDiagnosis(said.vm, kept.named, kept.found[0])
            for _, kept, said in self._of_vcenter(vcenter)
            if kept.found and kept.named is not None
        )

    def _of_vcenter(self, vcenter: str) -> Iterator[tuple[Path, _Kept, _Said]]:
        for path in self._paths():
            try:
                kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
            except FileNotFoundError:
                continue  # another run dropped it for newer ones
            except (OSError, msgspec.MsgspecError) as error:
                raise _damaged(path, error) from error
            if kept.of is not None and kept.of.vcenter == vcenter:
                yield path, kept, kept.of

    def settle(self, name: str, found: Component | None) -> tuple[Component, ...]:
        """Store what was at fault; None = the first suspect. Raises UsageError for an unknown id, and for a diagnosis
        without a suspect that could be confirmed."""
        path = self._path(name)
        if not _ID.fullmatch(name) or not path.exists():
            raise UsageError(f"there is no diagnosis {name}", hint="gpuops diagnose shows the id of each")
        told = self._read(path)
        components = tuple(Component(each) for each in told["said"][:1]) if found is None else (found,)
        if not components:
            raise UsageError(
                f"{name} said nothing that could be confirmed", hint=f"gpuops diagnose correct {name} COMPONENT"
            )
        named = told["named"] or next(iter(told["said"]), None)
        self._write(path, {**told, "found": list(components), "named": named})
        return components

    def confirmed(self) -> tuple[LabelledCase, ...]:
        """Return all cases that were confirmed or corrected, oldest id first."""
        found = []
        for path in self._paths():
            told = self._read(path)
            if told["found"] is not None:
                try:
                    case = parse_case(json.dumps(told["case"]), str(path))
                    at_fault = frozenset(map(Component, told["found"])) - {Component.NONE}
                except (UsageError, ValueError, TypeError) as error:
                    raise StateDamaged(f"the diagnosis {path} cannot be read: {error}", hint="move it aside") from error
                found.append(replace(case, at_fault=at_fault))
        return tuple(found)

    def _forget(self) -> None:
        """Remove the oldest of the unsettled diagnoses where there are too many."""
        paths = sorted(self._paths(), key=lambda path: path.stat().st_mtime, reverse=True)
        if len(paths) <= MOST_OPEN:
            return
        for path in [each for each in paths if self._read(each)["found"] is None][MOST_OPEN:]:
            path.unlink(missing_ok=True)

    def _prepare(self) -> None:
        prepare_state_dir(self._state_dir)
        for folder in (self._folder, self._folder / "cases"):
            folder.mkdir(mode=0o700, exist_ok=True)

    def _paths(self) -> Iterator[Path]:
        yield from sorted((self._folder / "cases").glob("d-*.json"))

    def _path(self, name: str) -> Path:
        return self._folder / "cases" / f"{name}.json"

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            optional = told.keys() & {"of", "named"}
            return {"of": None, "named": None} | {name: told[name] for name in ("said", "found", "case", *optional)}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _damaged(path, error) from error

    def _write(self, path: Path, told: dict[str, Any]) -> None:
        write_private(path, json.dumps(told))


def _damaged(path: Path, error: Exception) -> StateDamaged:
    return StateDamaged(f"the diagnosis {path} cannot be read: {error}", hint="move it aside")
