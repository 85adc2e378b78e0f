"""Shakedown: rehearse and prove a PyTorch workload's move to AWS Trainium.

``shakedown.neuron`` is the PyTorch device, ``shakedown.readiness`` the trial. Nothing is imported here, because
``import torch`` reaches this file through the device's autoload entry point.
"""

__version__ = "0.1.0"
