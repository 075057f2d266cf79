"""Files that a command writes for several sites: each site writes a temporary file, and these are merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Final, Self, cast

from gpuops.console import output
from gpuops.extensions import load
from gpuops.report.layout import Shown
from gpuops.report.sites import SiteAnswer

_METRICS: Final = "textfile"
_HOURS: Final = "csv"
_PAGE: Final = "html"
_SITE_COLUMN: Final = "x_Site"
"""FOCUS reserves this prefix for additional columns."""
_LARGEST: Final = 1024**3


class SiteFiles:
    """The files that the arguments of a command name; use it in a `with`."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._wanted = {
            name: arguments[name] for name in (_METRICS, _HOURS, _PAGE) if isinstance(arguments.get(name), Path)
        }
        self._folder: TemporaryDirectory[str] | None = None
        self._of: dict[str, dict[str, Path]] = {}

    @property
    def need_document(self) -> bool:
        """Return whether a file is made from the sites' documents."""
        return _PAGE in self._wanted

    def of(self, site: str) -> dict[str, Path | None]:
        """Return the arguments of the site in place of the original ones."""
        place = Path(self._folder.name if self._folder else "", str(len(self._of)))
        self._of[site] = {name: place.with_suffix(f".{_SUFFIXES[name]}") for name in self._wanted if name != _PAGE}
        return {**self._of[site], **({_PAGE: None} if _PAGE in self._wanted else {})}

    def write_all(self, answers: list[SiteAnswer]) -> tuple[Shown | None, list[SiteAnswer]]:
        """Write the merged files; return the text to print instead of the sites' texts, or None, and the answers.

        The answers name the merged file. Raises GpuopsError for a file that cannot be written.
        """
        if (page := self._wanted.get(_PAGE)) is not None:
            _write_private(page, _page(answers))
        if (hours := self._wanted.get(_HOURS)) is not None:
            _write_private(hours, self._hours())
        if (metrics := self._wanted.get(_METRICS)) is not None:
            return self._metrics(metrics, answers)
        return None, answers

    def _hours(self) -> str:
        from gpuops.report.json_and_csv import csv_text
        from gpuops.report.sites import merged_csv

        return merged_csv(self._texts(_HOURS), _SITE_COLUMN) or csv_text(
            (_SITE_COLUMN, *load("gpuops.extras.web.page.fleet_report_text.FOCUS_COLUMNS")), ()
        )

    def _metrics(self, path: Path, answers: list[SiteAnswer]) -> tuple[Shown, list[SiteAnswer]]:
        """Write the merged metrics to `path`; return the text to print, and the answers with this file.

        A site whose process was stopped has the metrics of an unreachable vCenter.
        """
        from dataclasses import replace

        from gpuops.files.private_file import write_readable
        from gpuops.report.json_and_csv import document_text

        texts, writer = self._texts(_METRICS), load("gpuops.extras.web.metrics_view.MetricsWriter")
        site_texts = [texts.get(answer.site) or writer(answer.site).text(None).decode() for answer in answers]
        merged = load("gpuops.extras.web.metrics_view.merged_families")(site_texts)
        write_readable(path, merged)
        answers_with_file = [
            replace(answer, json=document_text({**answer.document, "file": str(path)}))
            if answer.kind is not None
            else answer
            for answer in answers
        ]
        text: Shown = load("gpuops.extras.web.metrics_view.written_text")(str(path), merged.encode())
        return text, answers_with_file

    def _texts(self, name: str) -> dict[str, str]:
        from gpuops.files.file import read_text

        paths = {site: files[name] for site, files in self._of.items()}
        return {site: read_text(path, largest=_LARGEST) for site, path in paths.items() if path.is_file()}

    def __enter__(self) -> Self:
        if self._wanted:
            self._folder = TemporaryDirectory(prefix="gpuops-sites-")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._folder is not None:
            self._folder.cleanup()


_SUFFIXES: Final = {_METRICS: "prom", _HOURS: "csv"}


def _page(answers: Sequence[SiteAnswer]) -> str:
    return cast(str, load("gpuops.extras.web.page.html.sites_page")(answers))


def _write_private(path: Path, text: str) -> None:
    from gpuops.files.private_file import write_private

    write_private(path, text, like=path if path.is_file() else None)
    output.progress(f"wrote {path}")
