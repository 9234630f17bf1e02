"""Benchmarks: `./dev bench NAME`. Ratios within one run count; the machine is noisy."""
