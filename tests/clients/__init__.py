"""Hugging Face models at reduced size on the device, held to CPU PyTorch: ``python -m tests.clients`` runs all of them."""
