"""The contract: every public name and variable of TorchNeuron, each with a check and a verdict.

``python -m tests.torchneuron --write docs/torchneuron.md`` runs all checks and writes the table; ``pytest tests/torchneuron``
runs them and holds the committed table against the run.
"""
