"""Which component slows a VM down, by its counters (`gpuops diagnose`). README.md has problem, method and figures.

Read in this order:

* `case.py`        the components, and a case: what is known of one VM over some hours. Pure
* `channels.py`, `features.py`   series become comparable numbers, and these the input of a model. Pure
* `model.py`       how probable each component is, by decision trees. Pure
* `answer.py`      the diagnosis: by a rule, which one counter or fact proves, otherwise by the model. Pure
* `corrections.py` what people found goes before the model. Pure
* `case_file.py`, `diagnoses.py`   reads cases from files; stores diagnoses
* `diagnosing.py`  reads cases from the store of `observe`; what the command calls
* `made_cases.py`, `learning.py`   made-up cases, and the training of models. Pure
* `cli.py`, `view.py`, `tasks.py`   command, texts and documents, Ansible task

The core reaches command, documents and task by the table in `gpuops/extensions.py`.
"""
