"""Measures a chip with micro-benchmarks, and finds the constants with which the timing model agrees with it.

Each of the ``PROBES`` gives a figure, such as the clocks of a load that hits the L1, which one constant of the model
decides. The same kernels run on the chip and in the model. A constant is changed until the model's figure is the
chip's; what else the figure depends on, such as the clocks of the loop around the loads, is in both.
"""

from .device import Device
from .fit import Finding, calibrate
from .probes import PROBES, Probe

__all__ = ["PROBES", "Device", "Finding", "Probe", "calibrate"]
