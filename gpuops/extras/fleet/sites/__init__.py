"""A command with `--site`: the same function is called once per vCenter, each in its own process, in parallel.

Every command that only reads can be run this way (`options.reads_sites`): it runs as with `--vcenter NAME`, and its
result is merged with the other results instead of being printed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gpuops.console import output
from gpuops.console.options import CommonOptions
from gpuops.errors import UsageError
from gpuops.report.sites import SiteAnswer

if TYPE_CHECKING:
    from gpuops.config.vcenter.sources import ConfiguredSite

JOBS: Final = 8
TIMEOUT_S: Final = 300
_OF_ONE: Final = {
    "inventory_file": "--inventory",
    "save": "--save",
    "follow": "--follow",
    "vcenter": "--vcenter",
    "password_stdin": "--password-stdin",
    "thumbprint": "--thumbprint",
}
"""Options for one vCenter, by their parameters."""
_OF_NONE: Final = {"busy": "--busy", "workloads": "--workloads"}
"""Options with which no vCenter is read."""


def ask_sites(command: Callable[..., Any], arguments: Mapping[str, Any], common: CommonOptions) -> None:
    """Call the command for each selected site, print all answers as one, and end with its exit code.

    `arguments` are the command's own arguments. Raises UsageError for options for one vCenter, and for a `--site` that
    selects none.
    """
    from gpuops.extras.fleet.sites.files import SiteFiles
    from gpuops.extras.fleet.sites.processes import SiteQuestion, answers_of

    if excluded_option := next((option for name, option in _OF_NONE.items() if arguments.get(name)), None):
        raise UsageError(
            f"--site and {excluded_option} exclude each other",
            hint=f"with {excluded_option} no vCenter is read: remove --site",
        )
    sites = _sites_meant(arguments, common)
    with SiteFiles(arguments) as files:
        by_site: dict[str, dict[str, Any]] = {}
        for site in sites:
            own_arguments = files.of(site.name) | _policy_of(site.policy, arguments)
            site_common = _of_site(common, site)
            by_site[site.name] = {
                # the command has its common options as one of its arguments
                name: site_common if argument is common else argument
                for name, argument in arguments.items()
            } | own_arguments
        questions = [
            SiteQuestion(site, partial(command, **by_site[site.name]), files.need_document, first=site is sites[0])
            for site in sites
        ]
        answers = answers_of(questions, jobs=common.parallel or JOBS, timeout_s=common.site_timeout or TIMEOUT_S)
        _tell(answers)
        _show(answers, files)


def services_of(common: CommonOptions) -> list[tuple[ConfiguredSite, CommonOptions]]:
    """Return the sites of a service, each with the options for it alone.

    Raises UsageError as `ask_sites`, and for --parallel: each vCenter has a process as long as the service runs.
    """
    if common.parallel is not None:
        raise UsageError(
            "a service does not accept --parallel: each vCenter has its own process while the service runs",
            hint="remove --parallel; to serve only some vCenters, use a pattern: --site 'muc-*'",
        )
    return [(site, _of_site(common, site)) for site in _sites_meant({}, common)]


def _sites_meant(arguments: Mapping[str, Any], common: CommonOptions) -> tuple[ConfiguredSite, ...]:
    """Return the sites that `--site` selects. Raises UsageError, also for an option that works with one vCenter."""
    from gpuops.config.vcenter.sources import refuse_one_login
    from gpuops.console.opening import sites_of

    options = {**arguments, **{field.name: getattr(common, field.name) for field in fields(common)}}
    if excluded_option := next((option for name, option in _OF_ONE.items() if options.get(name)), None):
        raise UsageError(
            f"--site and {excluded_option} exclude each other",
            hint=f"{excluded_option} works with one vCenter: use --vcenter NAME in place of --site",
        )
    sites = sites_of(common.site or "")
    refuse_one_login([site.name for site in sites], os.environ, common.password_file)
    return sites


def _of_site(common: CommonOptions, site: ConfiguredSite) -> CommonOptions:
    return replace(common, vcenter=site.name, site=None, parallel=None, site_timeout=None)


def _policy_of(policy: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the site's own rotation policy if the command takes one and none is given."""
    return {"policy": policy} if policy is not None and "policy" in arguments and arguments["policy"] is None else {}


def _tell(answers: list[SiteAnswer]) -> None:
    """Print why a site has no answer. Raises UsageError for a reason that all sites share."""
    from gpuops.report.layout import Text
    from gpuops.report.sites import common_failure

    if (everywhere := common_failure(answers)) is not None:
        raise UsageError(everywhere.message, hint=everywhere.hint)
    for answer in answers:
        if answer.failure is not None:
            output.note(Text(f"error: {answer.site}: {answer.failure.message}", "bold red"))
            output.note(f"next: {answer.failure.hint}" if answer.failure.hint else ())


def _show(answers: list[SiteAnswer], files: Any) -> None:
    """Print all answers as one."""
    from gpuops.report.sites import exit_code_of, merged_csv, sites_document, sites_text

    text, answers = files.write_all(answers)
    tables = {answer.site: answer.csv for answer in answers if answer.failure is None}
    document, merged_text = sites_document(answers), text if text is not None else sites_text(answers)
    output.show(merged_text, document, csv=lambda: merged_csv(tables))
    output.leave(exit_code_of(answers))
