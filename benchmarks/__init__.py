"""Speed of the device against peers on the same work in the same run. ``python -m benchmarks`` prints ratios."""
