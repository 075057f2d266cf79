# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0
"""`main` of every module: passes the arguments of the module to `gpuops.tasks`, and ends with the result."""

from __future__ import annotations

import json
import traceback

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.gpuops.vsphere.plugins.module_utils.arguments import ARGUMENTS


def main(name, mutually_exclusive=(), **rules):
    """Run the module of this name. `rules`: required_if, required_one_of and the like of AnsibleModule."""
    passwords = [("password", "password_file")] if "password" in ARGUMENTS[name] else []
    module = AnsibleModule(
        argument_spec=ARGUMENTS[name],
        mutually_exclusive=[*passwords, *mutually_exclusive],
        supports_check_mode=True,
        **rules,
    )

    def run_task(module):
        from gpuops.tasks.perform import perform

        return perform(name, without_aliases(ARGUMENTS[name], module.params), apply=not module.check_mode)

    finish(module, run_task)


def without_aliases(arguments, params):
    """Return the parameters, also those of suboptions, by the names of the arguments.

    Ansible keeps a parameter that is given by an alias under both names.
    """
    parameters = {name: params[name] for name in arguments}
    for name, argument in arguments.items():
        if "options" in argument and isinstance(parameters[name], list):
            parameters[name] = [without_aliases(argument["options"], element) for element in parameters[name]]
        elif "options" in argument and parameters[name] is not None:
            parameters[name] = without_aliases(argument["options"], parameters[name])
    return parameters


def finish(module, run_task):
    """Run the task and end the module with its result; an error becomes one line, the next move and the exit code."""
    try:
        from gpuops.errors import GpuopsError
        from gpuops.tasks.perform import in_words_of, result_in_words_of
        from gpuops.tasks.task_connection import prepare_process
    except ImportError:
        module.fail_json(msg=missing_required_lib("gpuops-vsphere"), exception=traceback.format_exc())
    prepare_process()
    try:
        task_result = run_task(module)
    except GpuopsError as error:
        message = in_words_of(module.argument_spec, error.message)
        hint = in_words_of(module.argument_spec, error.hint)
        module.fail_json(
            msg=f"{message}; {hint}" if hint else message,
            hint=hint,
            reasons=[message],
            exit_code=error.exit_code,
        )
    for warning in task_result.warnings:
        module.warn(in_words_of(module.argument_spec, warning))
    result = json.loads(json.dumps(task_result.result))  # enums become text
    result = result_in_words_of(module.argument_spec, result)
    if task_result.exit_code:
        message = in_words_of(module.argument_spec, task_result.message)
        module.fail_json(msg=message, exit_code=task_result.exit_code, **result)
    module.exit_json(**result)
