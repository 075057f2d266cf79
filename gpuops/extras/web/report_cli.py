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
        typer.Option(metavar="SINCE", help="Only nights that began since then: 30d, 12w or a date in UTC."),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Also report which desktops of this rotation policy are idle, and what a night frees."
        ),
    ] = None,
    by: Annotated[
        str,
        typer.Option(
            metavar="folder|tag:CATEGORY|attribute:NAME",
            help="Where the owner of an ML VM is read: its folder, a tag, a custom attribute.",
        ),
    ] = "folder",
) -> None:
    """Report the fleet, past nights, idle desktops, free GPUs, findings, and GPU-hours by owner. Changes nothing.

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
    rotation_policy = load_policy(policy) if policy is not None else None
    since_moment = parse_since("--since", since, clock.wall_clock()) if since is not None else None
    with open_site(common) as site:
        host_shell.give_to(site)
        fleet_state = fleet_report(site, since=since_moment, policy=rotation_policy, owners=owners)
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
    """Replace the file and keep its mode. A new file is readable only by this user, because it names VMs and owners."""
    from gpuops.files.private_file import write_private

    write_private(path, text, like=path if path.is_file() else None)
    output.progress(f"wrote {path}")


@spread
@serves_sites
@reads_sites
def serve(
    common: CommonOptions,
    listen: Annotated[
        str, typer.Option(metavar="[HOST:]PORT", help="The address of the page; without HOST: loopback.")
    ] = "9189",
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also show which desktops of this rotation policy are idle.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="SINCE", help="Only nights that began since then: 30d, 12w or a date in UTC.")
    ] = None,
    by: Annotated[
        str,
        typer.Option(
            metavar="folder|tag:CATEGORY|attribute:NAME",
            help="Where the owner of an ML VM is read: its folder, a tag, a custom attribute.",
        ),
    ] = "folder",
    web_name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A host name by which browsers may reach the page, in addition to the address."
        ),
    ] = None,
    login_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Who may see the page: NAME:PASSWORD on each line.")
    ] = None,
    proxy_header: Annotated[
        str | None,
        typer.Option(metavar="HEADER", help="The header in which a reverse proxy sends the name of the user."),
    ] = None,
    proxy_from: Annotated[
        list[str] | None, typer.Option(metavar="ADDRESS", help="The address or network of that proxy.")
    ] = None,
    proxy_secret_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The secret that the proxy sends in X-Gpuops-Proxy-Secret.")
    ] = None,
) -> None:
    """Serve the page of gpuops report, kept current, with its documents and metrics. Changes nothing.

    An address other than loopback needs a login: --login-file, or a reverse proxy's (gpuops help report).
    With --site it serves a table of these vCenters, and the page of each.

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
    from gpuops.extras.web.http.current import FleetFollower
    from gpuops.extras.web.http.web_server import serving
    from gpuops.extras.web.serve_reads import ServedFleet, ServedMetrics
    from gpuops.model.vcenter.owner import OwnerKey

    option = ListenOption("--listen", 9189)
    address = option.address(listen)
    access = _access(web_name or [], login_file, _proxy(proxy_header, proxy_from or [], proxy_secret_file))
    _refuse_open(address[0], access)
    owners = OwnerKey.parse("--by", by)
    rotation_policy = load_policy(policy) if policy is not None else None
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
            return metrics.use_reads_of(ServedFleet(only_read(site), since, rotation_policy, owners))

        server = stack.enter_context(serving(listener, access, metrics.text, _warn))
        port = listener.getsockname()[1]
        output.progress(f"the page of {vcenter} is at http://{_url_host(address[0])}:{port}/")
        if common.password_stdin:  # stdin is read once: a second connection would have no password
            fleet = open_fleet()
            FleetFollower(lambda: fleet, server.tell, _warn).run()
        FleetFollower(open_fleet, server.tell, _warn).run()


def _serve_sites(
    common: CommonOptions,
    option: ListenOption,
    address: tuple[str, int],
    access: Access,
    page_options: tuple[str | None, Path | None, str],
) -> int:
    """Serve several vCenters; return the exit code once none of them can be followed.

    `page_options`: --since, --policy and --by as typed; the process of each site parses them.
    """
    from gpuops.extras.fleet.sites import TIMEOUT_S, services_of
    from gpuops.extras.web.serve_sites import PageOptions, serve_sites
    from gpuops.report.text import count

    services = services_of(common)
    with _listening(option, address) as listener:

        def print_address() -> None:
            address_text = f"http://{_url_host(address[0])}:{listener.getsockname()[1]}/"
            output.progress(f"the page of {count(len(services), 'vCenter')} is at {address_text}")

        timeout_s = float(common.site_timeout or TIMEOUT_S)
        return serve_sites(services, PageOptions(*page_options), listener, access, timeout_s, _warn, print_address)


def _require_web() -> None:
    """Raise UsageError if the extra is not installed."""
    from importlib.util import find_spec

    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        from gpuops.distribution import install_extra

        message = "gpuops serve needs starlette and uvicorn, and they are not installed"
        raise UsageError(message, hint=install_extra("web"))


def _access(web_names: list[str], login_file: Path | None, proxy: ProxyLogin | None) -> Access:
    """Return who may see the page, and by which host names. Raises UsageError for an invalid file or host name."""
    from gpuops.config.vcenter.login_settings import read_password_file
    from gpuops.extras.web.http.access import Access, PasswordLogin

    passwords = None
    if login_file is not None:
        login_text = read_password_file(login_file, private=True, content_name="login", several_lines=True)
        passwords = PasswordLogin.parse(login_text, str(login_file))
    for name in web_names:
        if not name or not name.isascii() or set(name) & set(":/@ "):
            message = f"--web-name {name!r} is not a host name"
            raise UsageError(message, hint="set a name without scheme and port: --web-name gpus.example.com")
    return Access(passwords, proxy, tuple(name.lower().rstrip(".") for name in web_names))


def _proxy(header: str | None, addresses: list[str], secret_file: Path | None) -> ProxyLogin | None:
    """Return the login of a proxy. Raises UsageError unless all three options are set, or none."""
    options = {"--proxy-header": header, "--proxy-from": addresses, "--proxy-secret-file": secret_file}
    missing = [name for name, setting in options.items() if not setting]
    if len(missing) == len(options):
        return None
    if header is None or secret_file is None or missing:
        raise UsageError(
            f"the login by a proxy needs {' and '.join(missing)} too",
            hint="set all three options: any client could send the header, so it is accepted only with the others",
        )
    from gpuops.config.vcenter.login_settings import read_password_file
    from gpuops.extras.web.http.access import ProxyLogin

    secret = read_password_file(secret_file, private=True, content_name="secret")
    return ProxyLogin.parse(header, addresses, secret)


def _refuse_open(host: str, access: Access) -> None:
    """Raise UsageError if other machines reach the address and no login is set. Warn of passwords without TLS."""
    from gpuops.extras.web.http.access import is_loopback

    if is_loopback(host):
        return
    if access.open:
        raise UsageError(
            f"--listen {host} is refused: others reach that address, and no login is set",
            hint="set --login-file FILE or the three --proxy options, or listen on 127.0.0.1",
        )
    if access.passwords is not None:
        output.note(
            "warning: names and passwords are sent without encryption: serve on 127.0.0.1 behind a proxy with TLS"
        )


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


def _url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _warn(line: str) -> None:
    from gpuops.report.layout import Text

    output.note(Text(f"warning: {line}", "bold red"))
