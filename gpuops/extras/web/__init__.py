"""The HTML page (`page`) and its server (`http`), Prometheus metrics, and `gpuops top`."""
