"""Entry point of the group ``torch.backends``: ``OPGRAFT_SIM=mlu python script.py`` has the simulated device.

PyTorch calls it at the end of ``import torch`` in every process, so it does nothing unless asked.
"""

import importlib
import os
import sys


def autoload() -> None:
    """Make the simulated device if ``OPGRAFT_SIM`` names one."""
    wanted = os.environ.get("OPGRAFT_SIM")
    if not wanted:
        return
    sim = sys.modules.get("opgraft.sim")
    if sim is None:
        importlib.import_module("opgraft.sim")  # calls this function again at its end
    elif hasattr(sim, "enable"):
        sim.enable(wanted)
    # Else `import opgraft.sim` is what imports torch, and it calls this function again at its end.
