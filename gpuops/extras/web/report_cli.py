"""`gpuops report` and `gpuops serve`: the fleet, its nights and what needs attention as one page, written or served."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuops.console import output
from gpuops.console.options import CommonOptions, HostShellOptions
from gpuops.console.signals import collect_garbage_often
from gpuops.console.spread import reads_sites, serves_sites, spread
from gpuops.errors import UsageError

if TYPE_CHECKING:
    from gpuops.execute.state.http_listener import ListenOption
    from gpuops.extras.web.http.access import Access, ProxyLogin


@spread
@reads_sites
def report(
    common: CommonOptions,
    host_shell: HostShellOptions,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one page that opens from disk and loads nothing.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write GPU-hours by owner, in the columns of FinOps FOCUS.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="SINCE", help="Nights that began since then: 30d, 12w or a date in UTC."),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Also which desktops of this rotation policy are idle, and what a night frees."
        ),
    ] = None,
    by: Annotated[
        str, typer.Option(metavar="folder|tag:CATEGORY|attribute:NAME", help="What of an ML VM tells its owner.")
    ] = "folder",
) -> None:
    """Report the fleet, past nights, what is idle, free or in the way, and whose GPU-hours. Changes nothing.

    \b
    Examples:
      gpuops report --vcenter sim:lab
      gpuops report --html fleet.html --policy templates/policy.yaml --vcenter sim:vdi
      gpuops report --csv gpu-hours.csv --since 12w --by attribute:owner
    """
    from gpuops import clock
    from gpuops.config.date_text import parse_since
    from gpuops.config.policy import load_policy
    from gpuops.console.opening import open_site, remember
    from gpuops.extras.web.page.fleet_report import fleet_report_document
    from gpuops.extras.web.page.fleet_report_text import fleet_report_text
    from gpuops.extras.web.reporting import fleet_report
    from gpuops.model.vcenter.owner import OwnerKey

    owners = OwnerKey.parse("--by", by)
    night = load_policy(policy) if policy is not None else None
    began = parse_since("--since", since, clock.wall_clock()) if since is not None else None
    with open_site(common) as site:
        host_shell.give_to(site)
        fleet_state = fleet_report(site, since=began, policy=night, owners=owners)
    remember(common, fleet_state.fleet.inventory)
    document = fleet_report_document(fleet_state)
    if html is not None:
        from gpuops.extras.web.page.html import page
        from gpuops.report.document import as_values

        _write(html, page(as_values(document)))
    if csv is not None:
        from gpuops.extras.web.page.fleet_report_text import focus_csv

        _write(csv, focus_csv(fleet_state.showback))
    output.show(fleet_report_text(fleet_state, document), document)


def _write(path: Path, text: str) -> None:
    """Replace the file and keep its mode; a new one is readable only by this user: it names VMs and owners."""
    from gpuops.files.private_file import write_private

    write_private(path, text, like=path if path.is_file() else None)
    output.progress(f"wrote {path}")


@spread
@serves_sites
@reads_sites
def serve(
    common: CommonOptions,
    listen: Annotated[
        str, typer.Option(metavar="[HOST:]PORT", help="Where it answers; without HOST on loopback.")
    ] = "9189",
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also which desktops of this rotation policy are idle.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="SINCE", help="Nights that began since then: 30d, 12w or a date in UTC.")
    ] = None,
    by: Annotated[
        str, typer.Option(metavar="folder|tag:CATEGORY|attribute:NAME", help="What of an ML VM tells its owner.")
    ] = "folder",
    web_name: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A name that browsers ask for, beside the address.")
    ] = None,
    login_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Who may see it: NAME:PASSWORD on each line.")
    ] = None,
    proxy_header: Annotated[
        str | None, typer.Option(metavar="HEADER", help="The header by which a reverse proxy says who logged in.")
    ] = None,
    proxy_from: Annotated[
        list[str] | None, typer.Option(metavar="ADDRESS", help="Where that proxy asks from: address or network.")
    ] = None,
    proxy_secret_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The secret that it adds in X-Gpuops-Proxy-Secret.")
    ] = None,
) -> None:
    """Serve the page of gpuops report, kept current, with its documents and metrics. Changes nothing.

    Anything but loopback needs a login: --login-file, or a reverse proxy's. gpuops help report.
    With --site it has a table of these vCenters, and the page of each.

    \b
    Examples:
      gpuops serve --vcenter sim:lab
      gpuops serve --site all
      gpuops serve --listen 10.0.0.5:9189 --login-file serve.login --policy templates/policy.yaml
    """
    _require_web()
    from gpuops import clock
    from gpuops.api.connection import only_read
    from gpuops.config.date_text import parse_since
    from gpuops.config.policy import load_policy
    from gpuops.console.opening import label_of, open_site
    from gpuops.execute.state.http_listener import ListenOption
    from gpuops.extras.web.http.current import Following
    from gpuops.extras.web.http.web_server import serving
    from gpuops.extras.web.serve_reads import ServedFleet, ServedMetrics
    from gpuops.model.vcenter.owner import OwnerKey

    option = ListenOption("--listen", 9189)
    address = option.address(listen)
    access = _access(web_name or [], login_file, _proxy(proxy_header, proxy_from or [], proxy_secret_file))
    _refuse_open(address[0], access)
    owners = OwnerKey.parse("--by", by)
    night = load_policy(policy) if policy is not None else None
    if since is not None:  # only checked here: each read counts `30d` from its own time
        parse_since("--since", since, clock.wall_clock())
    collect_garbage_often()
    if common.site is not None:
        raise typer.Exit(_serve_sites(common, option, address, access, (since, policy, by)))
    vcenter = label_of(common)
    with ExitStack() as stack:
        listener = stack.enter_context(_listening(option, address))
        metrics = ServedMetrics(vcenter)

        def open_fleet() -> ServedFleet:
            site = stack.enter_context(open_site(common))
            return metrics.fleet(ServedFleet(only_read(site), since, night, owners))

        server = stack.enter_context(serving(listener, access, metrics.text, _say))
        port = listener.getsockname()[1]
        output.progress(f"the page of {vcenter} is at http://{_in_url(address[0])}:{port}/")
        if common.password_stdin:  # stdin is read once: a second connection would have no password
            fleet = open_fleet()
            Following(lambda: fleet, server.tell, _say).run()
        Following(open_fleet, server.tell, _say).run()


def _serve_sites(
    common: CommonOptions,
    option: ListenOption,
    address: tuple[str, int],
    access: Access,
    words: tuple[str | None, Path | None, str],
) -> int:
    """Serve several vCenters; return the exit code once none of them can be followed.

    `words`: --since, --policy and --by, as each process of a site parses them.
    """
    from gpuops.extras.fleet.sites import TIMEOUT_S, services_of
    from gpuops.extras.web.serve_sites import ServedWords, serve_sites
    from gpuops.report.text import count

    services = services_of(common)
    with _listening(option, address) as listener:

        def began() -> None:
            at = f"http://{_in_url(address[0])}:{listener.getsockname()[1]}/"
            output.progress(f"the page of {count(len(services), 'vCenter')} is at {at}")

        timeout_s = float(common.site_timeout or TIMEOUT_S)
        return serve_sites(services, ServedWords(*words), listener, access, timeout_s, _say, began)


def _require_web() -> None:
    """Raise UsageError if the extra is not installed."""
    from importlib.util import find_spec

    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        from gpuops.distribution import install_extra

        message = "gpuops serve needs starlette and uvicorn, and they are not installed"
        raise UsageError(message, hint=install_extra("web"))


def _access(hosts: list[str], login_file: Path | None, proxy: ProxyLogin | None) -> Access:
    """Return the logins and host names. Raises UsageError for a file without valid logins, or an invalid name."""
    from gpuops.config.vcenter.login_settings import read_password_file
    from gpuops.extras.web.http.access import Access, PasswordLogin

    passwords = None
    if login_file is not None:
        login_text = read_password_file(login_file, private=True, content_name="login", several_lines=True)
        passwords = PasswordLogin.parse(login_text, str(login_file))
    for name in hosts:
        if not name or not name.isascii() or set(name) & set(":/@ "):
            message = f"--web-name {name!r} is not a host name"
            raise UsageError(message, hint="set the name without scheme and port: --web-name gpus.example.com")
    return Access(passwords, proxy, tuple(name.lower().rstrip(".") for name in hosts))


def _proxy(header: str | None, addresses: list[str], secret_file: Path | None) -> ProxyLogin | None:
    """Return the login of a proxy. Raises UsageError unless all three options are set, or none."""
    options = {"--proxy-header": header, "--proxy-from": addresses, "--proxy-secret-file": secret_file}
    missing = [name for name, setting in options.items() if not setting]
    if len(missing) == len(options):
        return None
    if header is None or secret_file is None or missing:
        raise UsageError(
            f"a proxy's login lacks {' and '.join(missing)}",
            hint="set all three options: the header alone proves nothing, because any client could send it",
        )
    from gpuops.config.vcenter.login_settings import read_password_file
    from gpuops.extras.web.http.access import ProxyLogin

    secret = read_password_file(secret_file, private=True, content_name="secret")
    return ProxyLogin.parse(header, addresses, secret)


def _refuse_open(host: str, access: Access) -> None:
    """Raise UsageError if other machines reach the address and it needs no login. Warn of passwords without TLS."""
    from gpuops.extras.web.http.access import is_loopback

    if is_loopback(host):
        return
    if access.open:
        raise UsageError(
            f"--listen {host}: others reach that address, and it would need no login",
            hint="set --login-file FILE or the three --proxy options, or listen on 127.0.0.1",
        )
    if access.passwords is not None:
        output.note("warning: names and passwords cross the network in the clear: let a proxy with TLS ask for them")


@contextmanager
def _listening(option: ListenOption, address: tuple[str, int]) -> Iterator[socket.socket]:
    """Yield a socket that listens at the address. Raises UsageError if it cannot be used."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen()
        except OSError as error:
            message = f"{option.name} {address[0]}:{address[1]} cannot be used: {error.strerror}"
            raise UsageError(message, hint=option.hint) from error
        yield listener


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _say(line: str) -> None:
    from gpuops.report.layout import Text

    output.note(Text(f"warning: {line}", "bold red"))
