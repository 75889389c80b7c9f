"""Sources of data, partitions among peers, and synthetic problems. NumPy only."""
