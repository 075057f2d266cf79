"""Connections, requests and replies of a vCenter; the only package that may import pyVmomi's adapters.

The server may be faulty or hostile, and the libraries trust it. Measured with pyvmomi 9.1.1 (libexpat 2.5): a 3 MB
reply with nested entities ends the process by a signal, 1 MB of gzip holds it for minutes, one plain text of 16 MB for
22 s. A server that sends a byte now and then is waited for without end. `thumbprint=` disables verification in the
context that it was given, so that a second attempt reaches any server.

Therefore `network` opens connections, each with a context of its own that verifies and, where the target has a pin,
compares it in the handshake. `exchange` sends one request and reads the complete reply, within limits of bytes (of the
unpacked text) and seconds. `messages` refuses what no vCenter sends, before any parser sees it. Only then `stub`
(pyVmomi's typed values) or lxml reads it.

pyVmomi's streaming is not used: a reply is in memory before it is parsed, which its limit of 64 MiB allows.
"""
