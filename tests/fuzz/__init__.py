"""Random calls on the CPU and on the device: the same values, the same errors, the same arguments afterwards."""
