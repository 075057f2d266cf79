"""Bulk reads of properties, over SOAP and VI/JSON: what is asked for, in pages, as values."""
