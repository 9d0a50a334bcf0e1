"""What every room shares: errors, the benchmark's facts, registry, seeds, files. No torch."""
