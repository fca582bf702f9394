"""vLLM on the simulated device, as on a chip that is not in vLLM's tree: its platform. :mod:`.sim_worker` is what runs.

Entry point group ``vllm.platform_plugins``; active only if ``OPGRAFT_SIM`` names the device (``sim``, ``mlu``, ``npu``, …).
It rehearses what an MLU or NPU goes through: weights, the key/value cache and every tensor of the forward are on the
PrivateUse1 device, and overrides are reached at its keys. Imported by vLLM only. Tried with vLLM 0.32.0.
"""

from __future__ import annotations

import torch
from vllm.platforms.interface import Platform, PlatformEnum

from opgraft import sim

BYTES = 1 << 30


class SimulatedPlatform(Platform):
    """The simulated device as vLLM sees it."""

    _enum = PlatformEnum.OOT
    device_name = device_type = sim.name()
    dispatch_key = "PrivateUse1"
    dist_backend = "gloo"
    simple_compile_backend = "eager"
    ray_device_key = ""
    device_control_env_var = "OPGRAFT_SIM_DEVICES"

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        """What the simulated device computes: all that the CPU does."""
        return [torch.float32, torch.bfloat16, torch.float16]

    @classmethod
    def import_kernels(cls) -> None:
        """There are no C++ kernels for this device."""

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        """The device's name."""
        return f"opgraft simulated {cls.device_type}"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """Bytes that vLLM may plan with."""
        return 4 * BYTES

    @classmethod
    def get_current_memory_usage(cls, device: torch.device | None = None) -> float:
        """Bytes allocated on the device."""
        return float(torch.get_device_module(cls.device_type).memory_allocated(device))

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        """Make it the current device."""
        torch.get_device_module(cls.device_type).set_device(device)

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        """Seed the device's generator."""
        torch.get_device_module(cls.device_type).manual_seed_all(seed)

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        """Host memory is not pinned."""
        return False

    @classmethod
    def get_attn_backend_cls(cls, *args, **kwargs) -> str:
        """Our attention."""
        return "opgraft.vllm.sim_worker.Attention"

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """Collectives between workers."""
        return "opgraft.vllm.sim_worker.HostCommunicator"

    @classmethod
    def check_and_update_config(cls, vllm_config) -> None:
        """Name our worker, and switch off what is made for a GPU."""
        from vllm.config import CompilationMode

        vllm_config.parallel_config.worker_cls = "opgraft.vllm.sim_worker.SimulatedWorker"
        vllm_config.parallel_config.disable_custom_all_reduce = True
        vllm_config.scheduler_config.async_scheduling = False
        vllm_config.compilation_config.mode = CompilationMode.NONE
        vllm_config.compilation_config.cudagraph_capture_sizes = []
        vllm_config.profiler_config.torch_profiler_dump_cuda_time_total = False
        if not vllm_config.cache_config.user_specified_block_size:
            vllm_config.cache_config.block_size = 16

    @classmethod
    def check_runner_kv_caches_multi_layer(cls) -> None:
        """Nothing to check."""
