"""The report of a fleet: a document for programs, a summary as text, a table of GPU-hours by owner, and one HTML page.

The page contains the document and draws only from it, so that its figures cannot differ from `--output json`. A Jinja2
template writes the tables. The map of the fleet and the night have thousands of elements: the script of the page draws
them from the document, which takes a fifth of the bytes of their markup.
"""
