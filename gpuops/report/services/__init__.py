"""What services keep and tell: metrics, measurements, runners."""
