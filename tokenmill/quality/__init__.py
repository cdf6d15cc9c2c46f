"""Statistics, expectations and drift: the gate between a snapshot and training."""
