"""The HTML page (`page`) and its server (`http`), Prometheus metrics, and `gpuops top`.

* `report_cli.py`   `gpuops report` and `gpuops serve`
* `reporting.py`, `page/`   reads the fleet, and makes the page
* `serve_reads.py`, `serve_sites.py`, `http/`   the same page, kept current
* `metrics_cli.py`, `metrics_source.py`, `metrics_view.py`   `gpuops metrics`: reads the values,
  writes them as text, answers Prometheus
* `top_cli.py`, `top.py`, `top_view.py`, `top_table.py`, `top_screen.py`   `gpuops top`: rows, what is selected, table,
  terminal

The core reaches the four commands and their documents by the table in `gpuops/extensions.py`.
"""
