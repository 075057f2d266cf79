# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0
"""The door to gpuops: arguments of the connection and of the host shell, and an answer of `gpuops.tasks` as an end."""

from __future__ import annotations

import json
import traceback

from ansible.module_utils.basic import AnsibleModule, missing_required_lib

CONNECTION = {
    "hostname": {"type": "str"},
    "port": {"type": "int"},
    "username": {"type": "str", "aliases": ["admin", "user"]},
    "password": {"type": "str", "aliases": ["pass", "pwd"], "no_log": True},
    "password_file": {"type": "path", "no_log": False},
    "validate_certs": {"type": "bool"},
    "ca_file": {"type": "path"},
    "proxy_host": {"type": "str"},
    "proxy_port": {"type": "int"},
    "journal_url": {"type": "str", "no_log": True},
    "reader": {"type": "str", "choices": ["auto", "soap", "json"]},
    "state_dir": {"type": "path"},
}
"""As in the documentation fragment `connection`. Defaults are gpuops's own: variables and the configuration file."""

HOST_SHELL = {
    "host_shell": {"type": "str", "choices": ["none", "ssh"]},
    "ssh_user": {"type": "str"},
    "ssh_known_hosts": {"type": "path"},
    "ssh_key": {"type": "path", "no_log": False},
    "ssh_port": {"type": "int"},
}
"""As in the documentation fragment `host_shell`."""

VM = {
    "vm": {"type": "str", "aliases": ["name"]},
    "moid": {"type": "str"},
    "uuid": {"type": "str"},
}


def connection(module):
    """What the task says of the connection."""
    from gpuops.tasks.connection import ConnectionArguments

    return ConnectionArguments(**{name: module.params[name] for name in CONNECTION})


def host_shell(module):
    """What the task says of the way into hosts."""
    from gpuops.tasks.connection import HostShellArguments

    return HostShellArguments(**{name: module.params[name] for name in HOST_SHELL})


def vm_of(params):
    """The VM as gpuops names it; None = the task names none."""
    if params["moid"]:
        return f"moid:{params['moid']}"
    return f"uuid:{params['uuid']}" if params["uuid"] else params["vm"]


def read(ask, options, *, mutually_exclusive=(), **rules):
    """Runs a module that changes nothing: it has the connection and these options, and ends with what `ask` answers."""
    module = AnsibleModule(
        argument_spec={**CONNECTION, **options},
        mutually_exclusive=[("password", "password_file"), *mutually_exclusive],
        supports_check_mode=True,
        **rules,
    )
    finish(module, ask)


def finish(module, ask):
    """Ends the module with what `ask` answers; an error ends it as one line, its next move and its exit code."""
    try:
        from gpuops.errors import GpuopsError
        from gpuops.tasks.connection import prepare_process
        from gpuops.tasks.words import in_words_of, result_in_words_of
    except ImportError:
        module.fail_json(msg=missing_required_lib("gpuops-vsphere"), exception=traceback.format_exc())
    prepare_process()
    try:
        answer = ask(module)
    except GpuopsError as error:
        message = in_words_of(module.argument_spec, error.message)
        hint = in_words_of(module.argument_spec, error.hint)
        module.fail_json(
            msg=f"{message}; {hint}" if hint else message,
            hint=hint,
            reasons=[message],
            exit_code=error.exit_code,
        )
    for warning in answer.warnings:
        module.warn(in_words_of(module.argument_spec, warning))
    result = json.loads(json.dumps(answer.result))  # plain text for enums: what JSON makes of them
    result = result_in_words_of(module.argument_spec, result)
    if answer.exit_code:
        message = in_words_of(module.argument_spec, answer.message)
        module.fail_json(msg=message, exit_code=answer.exit_code, **result)
    module.exit_json(**result)
