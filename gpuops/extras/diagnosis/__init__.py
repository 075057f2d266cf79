"""Which component slows a VM down, by its counters. Pure; README.md has problem, method and figures.

`model/measurements/case.py` is what is known of one VM in a while, `model/measurements/component.py` what may be at
fault; `rules` says what is certain, `model` how probable each component is; `learning` makes models, from `made_cases`
and from cases that people confirmed.
"""
