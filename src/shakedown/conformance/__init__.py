"""PyTorch's own operator and module databases run on the device and compared with the CPU; the table made of the results.

``shakedown ops conformance`` is the command; docs/conformance.md says how each number is made.
"""
