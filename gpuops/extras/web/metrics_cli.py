"""`gpuops metrics`: metrics of GPUs, VMs and nights for Prometheus, in a file or over HTTP."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuops.console import output
from gpuops.console.options import CommonOptions
from gpuops.console.signals import collect_garbage_often
from gpuops.console.spread import reads_sites, serves_sites, spread
from gpuops.errors import GpuopsError, LoginRefused, NotConnected, UsageError

if TYPE_CHECKING:
    from gpuops.extras.fleet.sites.site_services import SiteTalk
    from gpuops.extras.web.metrics_source import MetricSource
    from gpuops.extras.web.metrics_view import MetricValues


@spread
@serves_sites
@reads_sites
def metrics(
    common: CommonOptions,
    textfile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the metrics once, for node_exporter's textfile collector (FILE ends in .prom)."
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT", help="Answer GET /metrics at this address until stopped; without HOST: loopback."
        ),
    ] = None,
    every: Annotated[
        int,
        typer.Option(
            "--every",
            min=1,
            max=3600,
            metavar="SECONDS",
            help="With --listen: answer from the last read for at least this time.",
        ),
    ] = 30,
) -> None:
    """Give Prometheus metrics of vGPU slots, GPUs, the VMs on them, their use, and nights. Changes nothing.

    gpuops template list shows alert rules, a Grafana dashboard and a systemd unit.

    \b
    Examples:
      gpuops metrics --textfile gpuops.prom --vcenter sim:lab
      gpuops metrics --listen 9188 --vcenter prod
      gpuops metrics --listen 9188 --site all
    """
    if (textfile is None) is (listen is None):
        message = "--textfile and --listen exclude each other" if listen else "neither --textfile nor --listen is set"
        raise UsageError(message, hint="--textfile FILE writes the metrics once, --listen PORT serves them")
    if textfile is not None:
        _write_textfile(common, textfile)
    elif listen is not None and common.site is not None:
        _serve_sites(common, listen, every)
    elif listen is not None:
        _serve(common, listen, every)


def _write_textfile(common: CommonOptions, path: Path) -> None:
    """Replace the file. After an error it gets metrics that report the failure, and the error is raised again.

    node_exporter itself checks only the age of the file.
    """
    from gpuops.console.opening import label_of, open_site
    from gpuops.extras.web.metrics_source import MetricSource
    from gpuops.extras.web.metrics_view import MetricsDocument, MetricsWriter, written_text
    from gpuops.files.private_file import write_readable

    vcenter = ""  # not the option as typed: if it cannot be parsed, it may be an address with a password
    try:
        vcenter = label_of(common)
        with open_site(common) as site:
            source = MetricSource(site)
            text = MetricsWriter(vcenter).text(source.values())
    except GpuopsError:
        write_readable(path, MetricsWriter(vcenter).text(None).decode())
        raise
    write_readable(path, text.decode())
    for damaged in source.damaged:  # after the write: the other metrics are valid; the exit code reports the first
        raise damaged
    output.show(written_text(str(path), text), MetricsDocument.of_file(str(path), text))


def _serve(common: CommonOptions, listen: str, every_s: int) -> None:
    """Answer until a signal. Raises LoginRefused, because repeated logins could lock the account."""
    from gpuops.console.opening import label_of
    from gpuops.execute.state.http_listener import listening
    from gpuops.extras.web.metrics_source import OPTION, RequestedPage, handler, page_lifetime_s
    from gpuops.extras.web.metrics_view import MetricsWriter

    address, vcenter = OPTION.address(listen), label_of(common)
    page, writer = RequestedPage(), MetricsWriter(vcenter)
    collect_garbage_often()
    with ExitStack() as stack:
        reader = _MetricsReader(common, stack)

        def publish_metrics() -> None:
            values = reader.values()
            page.publish(writer.text(values), page_lifetime_s(float(every_s), reader.took_s))

        publish_metrics()  # before the port opens: a wrong option or login is reported at the start
        port = stack.enter_context(listening(OPTION, address, handler(page, writer.text(None))))
        output.progress(f"metrics of {vcenter} are at port {port} of {address[0]}, path /metrics")
        while True:
            page.wait_until_asked()
            publish_metrics()


def _serve_sites(common: CommonOptions, listen: str, every_s: int) -> None:
    """Answer for several vCenters, each read by its own process, until a signal or until no process runs."""
    from gpuops.execute.state.http_listener import listening
    from gpuops.extras.fleet.sites import TIMEOUT_S, services_of
    from gpuops.extras.fleet.sites.site_services import SiteProcess, keep_running, wait_for_the_end
    from gpuops.extras.web.metrics_source import OPTION, SitePages, handler
    from gpuops.report.text import count

    address = OPTION.address(listen)
    collect_garbage_often()
    processes = [
        # `lambda _: None` ignores news: these processes only answer questions
        SiteProcess(site.name, metrics_of_site, (site_common,), lambda _: None, first=number == 0)
        for number, (site, site_common) in enumerate(services_of(common))
    ]
    with keep_running(processes, [__name__, "gpuops.extras.web.metrics_source"]):
        pages = SitePages(processes, float(every_s), float(common.site_timeout or TIMEOUT_S))
        with listening(OPTION, address, handler(pages, b"")) as port:
            subject = f"metrics of {count(len(processes), 'vCenter')}"
            output.progress(f"{subject} are at port {port} of {address[0]}, path /metrics")
            output.leave(wait_for_the_end(processes))


def metrics_of_site(talk: SiteTalk, common: CommonOptions) -> None:
    """Answer each question in the process of one site with the text of its metrics and the seconds that the read took.

    The text is None if vCenter does not answer.
    """
    from gpuops.console.opening import label_of
    from gpuops.extras.web.metrics_view import MetricsWriter

    writer = MetricsWriter(label_of(common))
    with ExitStack() as stack:
        reader = _MetricsReader(common, stack)
        for number, _ in talk.questions():
            values = reader.values()
            talk.answer(number, (None if values is None else writer.text(values), reader.took_s))


class _MetricsReader:
    """Reads vCenter for each answer. If vCenter does not answer, that answer has no values."""

    def __init__(self, common: CommonOptions, stack: ExitStack) -> None:
        self._common, self._stack = common, stack
        self._source: MetricSource | None = None
        self._reported: set[str] = set()
        """Messages of the errors at the last call."""
        self.took_s = 0.0
        """How long the last read took, logging in left out; 0 = it failed."""

    def values(self) -> MetricValues | None:
        """Return the current values; None if vCenter does not answer.

        Raises LoginRefused, and before the first connection all errors of `open_site` except NotConnected.
        """
        from gpuops import clock

        errors: list[GpuopsError] = []
        values, self.took_s = None, 0.0
        try:
            if self._source is None:
                self._source = self._open_source()
            began_s = clock.passed_s()
            values = self._source.values(follow=True)
            self.took_s = clock.passed_s() - began_s
            errors += self._source.damaged
        except LoginRefused:
            raise  # repeated logins could lock the account
        except GpuopsError as error:
            # The first connection is tried again only if vCenter did not answer, and the password is still known:
            # it is not after it came from stdin, which can be read only once.
            if self._source is None and (not isinstance(error, NotConnected) or self._common.password_stdin):
                raise
            errors.append(error)
        self._report_new(errors)
        return values

    def _open_source(self) -> MetricSource:
        from gpuops.console.opening import open_site
        from gpuops.extras.web.metrics_source import MetricSource

        return MetricSource(self._stack.enter_context(open_site(self._common)))

    def _report_new(self, errors: list[GpuopsError]) -> None:
        """Print each error that the last call did not have: Prometheus asks every few seconds."""
        from gpuops.report.layout import Text

        lines = {error.message: error.line for error in errors}
        for message in lines.keys() - self._reported:
            output.note(Text(f"warning: {lines[message]}", "bold red"))
        self._reported = set(lines)
