"""What `gpuops doctor --assumptions` prints: the rules gpuops goes by, how sure each is, and what the journal says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuops.model.assumption import JudgedAssumption, Observation
from gpuops.model.prediction import PastPredictions
from gpuops.report.document import SCHEMA_VERSION, Document
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


def assumptions_document(rows: Iterable[JudgedAssumption], past: PastPredictions) -> Document:
    """The same for programs."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "assumptions",
        "journal": past.journal,
        "predicted_steps": past.right + past.wrong_steps,
        "assumptions": [
            {
                "id": judged.row.id,
                "statement": judged.row.statement,
                "source": judged.row.source,
                "confidence": judged.row.confidence.value,
                "deviation": judged.row.deviation or None,
                "prediction": judged.row.prediction.value if judged.row.prediction is not None else None,
                "contradicted": judged.contradictions if judged.row.prediction is not None else None,
                "standing": judged.standing.value,
                "evidence": None if judged.evidence is None else evidence_text(judged.evidence),
            }
            for judged in rows
        ],
    }


def _here(judged: JudgedAssumption, past: PastPredictions) -> str:
    if judged.contradictions:
        return f"contradicted {judged.contradictions} x"
    if judged.row.prediction is None:
        return "not seen by gpuops"
    return "never contradicted" if past.right or past.wrong else "not tried"
