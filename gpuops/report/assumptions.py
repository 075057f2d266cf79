"""What `gpuops doctor --assumptions` prints: the rules gpuops goes by, how sure each is, and what the journal says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Self

from gpuops.model.assumption import Confidence, JudgedAssumption, Observation, Standing
from gpuops.model.prediction import PastPredictions, Predicted
from gpuops.report.document import DocumentRecord, PrintedDocument, printed
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.text import count, visible


def evidence_text(evidence: Observation, names: Mapping[str, str] | None = None) -> str:
    """The evidence in words. `names`: of VMs, hosts and clusters by their managed object ids."""
    return visible(
        evidence.sentence.format_map({key: (names or {}).get(str(fact), fact) for key, fact in evidence.facts.items()})
    )


def assumptions_text(rows: Iterable[JudgedAssumption], past: PastPredictions) -> Shown:
    """A table of all rows, and how many predicted steps it rests on."""
    table = TextTable("assumption", "confidence", "here", "rule")
    for judged in rows:
        table.add_row(judged.row.id, judged.row.confidence, _here(judged, past), judged.row.statement)
    steps = f"{count(past.right, 'step')} of this journal went as predicted, {past.wrong_steps} did not"
    return (table, Text(steps, "bold"), Text("next: gpuops help assumptions says how to test a rule", "dim"))


class AssumptionRecord(DocumentRecord, frozen=True):
    """A rule by which gpuops plans."""

    id: Annotated[str, "with `gpuops sim serve --deviate` of the simulated vCenter"]
    statement: str
    source: Annotated[str, "`none` where there is none"]
    confidence: Confidence
    deviation: Annotated[str | None, "what the simulated vCenter can do instead"]
    prediction: Annotated[Predicted | None, "what gpuops predicts of steps by it"]
    contradicted: Annotated[
        int | None, "mispredictions in the journal that contradict it; null = nothing is predicted by it"
    ]
    standing: Annotated[Standing, "by the journal"]
    evidence: Annotated[str | None, "the first observation that contradicts or confirms it"]

    @classmethod
    def made_of(cls, judged: JudgedAssumption) -> Self:
        row = judged.row
        return cls.from_attributes(
            judged,
            row,
            deviation=row.deviation or None,
            contradicted=judged.contradictions if row.prediction is not None else None,
            evidence=None if judged.evidence is None else evidence_text(judged.evidence),
        )


@printed("assumptions", by="gpuops doctor --assumptions")
class AssumptionsDocument(PrintedDocument, frozen=True):
    """The rules of vSphere and NVIDIA that gpuops goes by, and how sure each is."""

    journal: Annotated[str, "the file, or the database without its password"]
    predicted_steps: Annotated[int, "steps of the journal that were compared with a prediction"]
    assumptions: list[AssumptionRecord]


def assumptions_document(rows: Iterable[JudgedAssumption], past: PastPredictions) -> AssumptionsDocument:
    """The same for programs."""
    steps = past.right + past.wrong_steps
    return AssumptionsDocument.from_attributes(past, predicted_steps=steps, assumptions=list(rows))


def _here(judged: JudgedAssumption, past: PastPredictions) -> str:
    if judged.contradictions:
        return f"contradicted {judged.contradictions} x"
    if judged.row.prediction is None:
        return "not seen by gpuops"
    return "never contradicted" if past.right or past.wrong else "not tried"
