"""Connections, requests and replies of a vCenter; the only package that may import pyVmomi's adapters.

Problem: the other end may be wrong or hostile, and the libraries trust it. Measured with pyvmomi 9.1.1 (libexpat 2.5):
a 3 MB reply with nested entities ends the process by a signal, 1 MB of gzip holds it for minutes, one plain text of 16
MB for 22 s; a server that sends a byte now and then is waited for for ever; and its `thumbprint=` switches
verification off on the context it was given, so that a second try reaches any server.

Choice: `network` opens connections, each with a context of its own that verifies and, where the target has a pin,
compares it in the handshake itself. `exchange` sends one request and reads the reply whole, within bytes (of what is
unpacked) and seconds.
`reply` refuses what no vCenter sends before any parser sees it. Only then `stub` (pyVmomi's typed values) or lxml
reads it.

Given up: pyVmomi's streaming. A reply is in memory before it is parsed, which its limit of 64 MiB allows.
"""
