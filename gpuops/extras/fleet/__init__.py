"""Many vCenters: `--site` asks all of them at once (`sites`), runners share their nights (`runner`, `gpuops runner`).

* `sites/`        one process for each vCenter: of one question (`processes.py`), or of a service (`services.py`)
* `runner/`       the loop of a runner, and the database that runners share
* `cli.py`   `gpuops runner`, its texts and documents

The core reaches `cli` by the table in `gpuops/extensions.py`, and `sites.ask_sites` by `gpuops.extensions.load`.
"""
