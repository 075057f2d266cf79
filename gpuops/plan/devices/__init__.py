"""The passthrough devices of one VM: what a request asks for, the rules for it, and the settings that go with it.

`plan/vm` and `plan/queue` call it.
"""
