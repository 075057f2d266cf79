# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0
"""The door to gpuops: `main` of every module, which hands its arguments to `gpuops.tasks` and ends with the answer."""

from __future__ import annotations

import json
import traceback

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.gpuops.vsphere.plugins.module_utils.arguments import ARGUMENTS


def main(name, mutually_exclusive=(), **rules):
    """Runs the module of this name; `rules` are those of Ansible about arguments that go together."""
    passwords = [("password", "password_file")] if "password" in ARGUMENTS[name] else []
    module = AnsibleModule(
        argument_spec=ARGUMENTS[name],
        mutually_exclusive=[*passwords, *mutually_exclusive],
        supports_check_mode=True,
        **rules,
    )

    def ask(module):
        from gpuops.tasks.perform import perform

        return perform(name, without_aliases(ARGUMENTS[name], module.params), apply=not module.check_mode)

    finish(module, ask)


def without_aliases(arguments, params):
    """The parameters by the names of the arguments; Ansible keeps one that is given by an alias under both names."""
    named = {name: params[name] for name in arguments}
    for name, argument in arguments.items():
        if "options" in argument and isinstance(named[name], list):
            named[name] = [without_aliases(argument["options"], each) for each in named[name]]
        elif "options" in argument and named[name] is not None:
            named[name] = without_aliases(argument["options"], named[name])
    return named


def finish(module, ask):
    """Ends the module with what `ask` answers; an error ends it as one line, its next move and its exit code."""
    try:
        from gpuops.errors import GpuopsError
        from gpuops.tasks.perform import in_words_of, result_in_words_of
        from gpuops.tasks.task_connection import prepare_process
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
