"""Metrics, measurements, runners."""
