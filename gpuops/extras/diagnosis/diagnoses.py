"""Stores diagnoses, their corrections and the model as files in the state directory. They contain no names of VMs.

`diagnosis/model.json` is the model. `diagnosis/cases/ID.json` is a case with its diagnosis, the VM (id), the time and,
after an admin confirmed or corrected it, the component at fault.

They are not in the journal of a vCenter, because `diagnose confirm`, `correct` and `train` use the files of all
vCenters and connect to none.
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

from gpuops.errors import StateDamaged, UsageError
from gpuops.execute.state.state_dir import prepare_state_dir
from gpuops.extras.diagnosis.answer import StoredDiagnosis, Suspect
from gpuops.extras.diagnosis.case import Component, DiagnosisCase, LabelledCase, case_line
from gpuops.extras.diagnosis.case_file import parse_case
from gpuops.extras.diagnosis.corrections import SettledDiagnosis
from gpuops.extras.diagnosis.model import Forest, from_document, to_document
from gpuops.files.private_file import write_private

MOST_OPEN: Final = 500
"""The number of diagnoses that are kept without a confirmation or correction; the newest are kept."""
SHIPPED_MODEL: Final = "shipped_model.json.gz"
_ID: Final = re.compile(r"d-[0-9a-f]{10}")
_AFTER_MOVE: Final = "gpuops then uses the model that it comes with; gpuops diagnose train makes a new one"


@lru_cache(maxsize=1)
def shipped_model() -> Forest:
    """Return the model that comes with gpuops; `make model` trains it with generated cases only."""
    packed = files(__package__).joinpath(SHIPPED_MODEL).read_bytes()
    return from_document(json.loads(gzip.decompress(packed)))


class _SuspectRecord(
    msgspec.Struct,
    frozen=True,
    rename={"component": "component", "probability": "probability", "evidence": "evidence", "by_rule": "by_rule"},
):
    """A suspect as it is stored; `rename` has the stored name of each field, here and below."""

    component: Component
    probability: float
    evidence: list[str]
    by_rule: bool


class _DiagnosisRecord(
    msgspec.Struct, frozen=True, rename={"vcenter": "vcenter", "vm": "vm", "at": "at", "suspects": "suspects"}
):
    """The VM, the time and the suspects of a stored diagnosis."""

    vcenter: str
    vm: str
    at: datetime
    suspects: list[_SuspectRecord]


class _CaseFile(msgspec.Struct, frozen=True, rename={"found": "found", "of": "of", "named": "named"}):
    """A file of `diagnosis/cases` without its case, which is long."""

    found: list[Component] | None
    named: Component | None = None
    """The first suspect when an admin settled it; None if it had no suspect, or if an older gpuops wrote the file."""
    of: _DiagnosisRecord | None = None
    """None if an older gpuops wrote the file."""


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
                f"the model {self._model} cannot be read: {error}",
                hint=f"move the file to another directory: {_AFTER_MOVE}",
            ) from error

    def set_model(self, model: Forest) -> None:
        self._prepare()
        write_private(self._model, json.dumps(to_document(model), separators=(",", ":")))

    def note(self, vcenter: str, vm: str, case: DiagnosisCase, suspects: Sequence[Suspect], at: datetime) -> str:
        """Store the suspects of a VM (managed object id) at that time; return the id of the diagnosis."""
        case_text = json.dumps(case_line(LabelledCase(vm, case, frozenset())), sort_keys=True)
        name = f"d-{hashlib.sha256(f'{vcenter} {case_text}'.encode()).hexdigest()[:10]}"
        path = self._path(name)
        # if the same case was diagnosed before, what people found about it is kept
        old_record = self._read(path) if path.exists() else {}
        self._prepare()
        suspect_records = [
            _SuspectRecord(suspect.component, suspect.probability, list(suspect.evidence), suspect.by_rule)
            for suspect in suspects
        ]
        stored_diagnosis = _DiagnosisRecord(vcenter, vm, at, suspect_records)
        record = {
            # the newest answer about this case replaces an older one: `diagnose confirm` means the one shown last
            "said": [suspect.component for suspect in suspects],
            "found": old_record.get("found"),  # the components that people found at fault
            "named": old_record.get("named"),
            "of": msgspec.to_builtins(stored_diagnosis),
            "case": case_line(LabelledCase(name, case, frozenset())),
        }
        self._write(path, record)
        self._remove_oldest()
        return name

    def newest(self, vcenter: str) -> dict[str, StoredDiagnosis]:
        """Return the last diagnosis of each VM of that vCenter, by its managed object id."""
        newest_by_vm: dict[str, StoredDiagnosis] = {}
        for path, case_file, stored_diagnosis in self._read_vcenter(vcenter):
            known_newest = newest_by_vm.get(stored_diagnosis.vm)
            if known_newest is None or known_newest.at < stored_diagnosis.at:
                suspects = tuple(
                    Suspect(suspect.component, suspect.probability, tuple(suspect.evidence), suspect.by_rule)
                    for suspect in stored_diagnosis.suspects
                )
                at_fault = None if case_file.found is None else tuple(case_file.found)
                newest_by_vm[stored_diagnosis.vm] = StoredDiagnosis(
                    path.stem, stored_diagnosis.vm, stored_diagnosis.at, suspects, at_fault
                )
        return newest_by_vm

    def settled_diagnoses(self, vcenter: str) -> tuple[SettledDiagnosis, ...]:
        """Return the diagnoses of VMs of that vCenter that admins confirmed or corrected."""
        return tuple(
            SettledDiagnosis(stored_diagnosis.vm, case_file.named, case_file.found[0])
            for _, case_file, stored_diagnosis in self._read_vcenter(vcenter)
            if case_file.found and case_file.named is not None
        )

    def _read_vcenter(self, vcenter: str) -> Iterator[tuple[Path, _CaseFile, _DiagnosisRecord]]:
        """Yield the files with a diagnosis of a VM of that vCenter: path, content without the case, diagnosis."""
        for path in self._paths():
            try:
                case_file = msgspec.json.decode(path.read_bytes(), type=_CaseFile)
            except FileNotFoundError:
                continue  # another run removed it, because there were too many
            except (OSError, msgspec.MsgspecError) as error:
                raise _damage_error(path, error) from error
            if case_file.of is not None and case_file.of.vcenter == vcenter:
                yield path, case_file, case_file.of

    def settle(self, name: str, component: Component | None) -> tuple[Component, ...]:
        """Store the component at fault (None: the first suspect) and return it.

        Raises UsageError for an unknown id, and for a diagnosis without a suspect that could be confirmed.
        """
        path = self._path(name)
        if not _ID.fullmatch(name) or not path.exists():
            raise UsageError(f"there is no diagnosis {name}", hint="gpuops diagnose shows the id of each diagnosis")
        record = self._read(path)
        components = (component,) if component is not None else tuple(Component(name) for name in record["said"][:1])
        if not components:
            raise UsageError(
                f"diagnosis {name} has no suspect to confirm",
                hint=f"set the component that was at fault: gpuops diagnose correct {name} COMPONENT",
            )
        # the first suspect that the finding was about; it stays if the diagnosis is settled again
        named = record["named"] or next(iter(record["said"]), None)
        self._write(path, {**record, "found": list(components), "named": named})
        return components

    def confirmed_cases(self) -> tuple[LabelledCase, ...]:
        """Return all cases that were confirmed or corrected, oldest id first."""
        cases = []
        for path in self._paths():
            record = self._read(path)
            if record["found"] is not None:
                try:
                    case = parse_case(json.dumps(record["case"]), str(path))
                    at_fault = frozenset(map(Component, record["found"])) - {Component.NONE}
                except (UsageError, ValueError, TypeError) as error:
                    raise _damage_error(path, error) from error
                cases.append(replace(case, at_fault=at_fault))
        return tuple(cases)

    def _remove_oldest(self) -> None:
        """Remove the oldest unsettled diagnoses if there are too many."""
        paths = sorted(self._paths(), key=lambda path: path.stat().st_mtime, reverse=True)
        if len(paths) <= MOST_OPEN:
            return
        unsettled_paths = [path for path in paths if self._read(path)["found"] is None]
        for path in unsettled_paths[MOST_OPEN:]:
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
            record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            optional = record.keys() & {"of", "named"}
            return {"of": None, "named": None} | {name: record[name] for name in ("said", "found", "case", *optional)}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _damage_error(path, error) from error

    def _write(self, path: Path, record: dict[str, Any]) -> None:
        write_private(path, json.dumps(record))


def _damage_error(path: Path, error: Exception) -> StateDamaged:
    hint = f"move {path} to another directory; gpuops diagnose then works without this diagnosis"
    return StateDamaged(f"the diagnosis {path} cannot be read: {error}", hint=hint)
