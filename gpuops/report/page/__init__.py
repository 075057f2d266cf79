"""The report of a fleet: a document for programs, a summary as text, a table of GPU-hours by owner, and one HTML page.

The page holds the document and draws from nothing else, so that no figure of it can differ from `--output json`. Tables
are written by a Jinja2 template; the map of the fleet and the night, which are thousands of elements, by the page's own
script from the document, in a fifth of the bytes that their markup would take.
"""
