"""Pure functions from evidence and requirements to findings. Nothing here imports torch or JAX."""
