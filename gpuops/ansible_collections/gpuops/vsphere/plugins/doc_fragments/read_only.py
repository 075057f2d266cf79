# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0


class ModuleDocFragment:
    DOCUMENTATION = r"""
attributes:
  check_mode:
    support: full
  diff_mode:
    support: N/A
  platform:
    platforms: all
"""
