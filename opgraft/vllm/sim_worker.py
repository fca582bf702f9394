"""What runs when vLLM is on the simulated device: an attention of plain PyTorch calls, a worker and its model runner."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase
from vllm.profiler import wrapper
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionMetadataBuilder
from vllm.v1.kv_cache_interface import KVCacheLayout
from vllm.v1.worker.block_table import BlockTable
from vllm.v1.worker.cpu_model_runner import _torch_cuda_wrapper
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.gpu_worker import Worker, init_worker_distributed_environment
from vllm.v1.worker.worker_base import CompilationTimes

from .sim import BYTES, SimulatedPlatform

# vLLM's profiler knows the devices of its own tree only.
wrapper._DEFAULT_TORCH_PROFILER_ACTIVITIES[SimulatedPlatform.device_type] = ("CPU",)
wrapper._SUPPORTED_TORCH_PROFILER_ACTIVITIES[SimulatedPlatform.device_type] = frozenset(["CPU"])
wrapper._SUPPORTED_PROFILER_KINDS[SimulatedPlatform.device_type] = frozenset(["torch"])


@dataclass
class Metadata:
    """Of one step: requests' token ranges in the batch, lengths with what is cached, blocks, and where new keys go."""

    starts: list[int]
    lengths: list[int]
    blocks: torch.Tensor
    slots: torch.Tensor


class MetadataBuilder(AttentionMetadataBuilder):
    """Makes :class:`Metadata` of what vLLM gives every backend."""

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Metadata:
        """The metadata of one step."""
        common = common_attn_metadata
        return Metadata(
            common.query_start_loc_cpu.tolist()[: common.num_reqs + 1],
            common.seq_lens.tolist()[: common.num_reqs],
            common.block_table_tensor,
            common.slot_mapping,
        )


class PlainAttention(AttentionImpl):
    """Paged attention from plain PyTorch calls, one request at a time."""

    def __init__(self, num_heads, head_size, scale, num_kv_heads, *args, **kwargs):
        self.num_heads, self.head_size, self.scale, self.num_kv_heads = num_heads, head_size, scale, num_kv_heads

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None, output_block_scale=None):
        """Store the step's keys and values, then attend to each request's blocks.

        Args:
            layer: vLLM's layer.
            query: (tokens, heads, head size).
            key: (tokens, key/value heads, head size); value likewise.
            value: see key.
            kv_cache: (blocks, key/value heads, block size, 2 × head size).
            attn_metadata: :class:`Metadata`, or None while vLLM warms up.
            output: (tokens, heads, head size), written.
            output_scale: for quantized outputs; not supported.
            output_block_scale: for quantized outputs; not supported.
        """
        if attn_metadata is None:
            return output.zero_()
        tokens, size = attn_metadata.starts[-1], kv_cache.shape[2]
        slots = attn_metadata.slots[:tokens]
        pairs = torch.cat([key[:tokens], value[:tokens]], dim=-1)
        kv_cache[slots // size, :, slots % size] = pairs.to(kv_cache.dtype)
        for number, length in enumerate(attn_metadata.lengths):
            start, end = attn_metadata.starts[number : number + 2]
            blocks = attn_metadata.blocks[number, : -(-length // size)].long()
            past = kv_cache[blocks].transpose(0, 1).flatten(1, 2)[:, :length].to(query.dtype)
            q = query[start:end].transpose(0, 1)
            at = torch.arange(length - (end - start), length, device=q.device)
            seen = at[:, None] >= torch.arange(length, device=q.device)[None, :]
            attended = torch.nn.functional.scaled_dot_product_attention(
                q[None], past[None, ..., : self.head_size], past[None, ..., self.head_size :],
                attn_mask=seen, scale=self.scale, enable_gqa=self.num_heads != self.num_kv_heads,
            )  # fmt: skip
            output[start:end] = attended[0].transpose(0, 1)
        return output


class Attention(AttentionBackend):
    """The backend that vLLM selects on this platform."""

    forward_includes_kv_cache_update = True
    supported_dtypes = [torch.float32, torch.bfloat16, torch.float16]

    @staticmethod
    def get_name() -> str:
        """Its name."""
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[PlainAttention]:
        """The layer's implementation."""
        return PlainAttention

    @staticmethod
    def get_builder_cls() -> type[MetadataBuilder]:
        """The metadata's builder."""
        return MetadataBuilder

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        """Heads before positions in a block."""
        return (KVCacheLayout.LBHNC,)


class HostCommunicator(DeviceCommunicatorBase):
    """Collectives by way of the host: PyTorch has no collectives for a PrivateUse1 device made in Python."""

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        """The sum over workers."""
        host = input_.cpu()
        torch.distributed.all_reduce(host, group=self.cpu_group)
        return host.to(input_.device)

    def all_gather(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """Every worker's tensor, joined along a dimension."""
        host = input_.cpu().contiguous()
        parts = [torch.empty_like(host) for _ in range(self.world_size)]
        torch.distributed.all_gather(parts, host, group=self.cpu_group)
        return torch.cat(parts, dim).to(input_.device)

    def gather(self, input_: torch.Tensor, dst: int = 0, dim: int = -1) -> torch.Tensor | None:
        """As :meth:`all_gather`, on one worker only."""
        joined = self.all_gather(input_, dim)
        return joined if self.rank_in_group == dst else None


def compute_slot_mapping(table: BlockTable, num_reqs: int, query_start_loc: torch.Tensor, positions: torch.Tensor) -> None:
    """Where each new token's key goes: vLLM's own is a Triton kernel, and vLLM switches Triton off without a GPU driver.

    Args:
        table: of the requests' blocks; its slot mapping is written, -1 beyond the tokens.
        num_reqs: requests in the batch.
        query_start_loc: (requests + 1,), where each request's tokens start in the batch.
        positions: (tokens,) of the tokens in their requests.
    """
    starts = query_start_loc[: num_reqs + 1].long()
    requests = torch.repeat_interleave(torch.arange(num_reqs, device=starts.device), starts.diff())
    blocks = table.block_table.gpu[requests, positions // table.block_size].long()
    table.slot_mapping.gpu.fill_(-1)
    table.slot_mapping.gpu[: positions.shape[0]] = blocks * table.block_size + positions % table.block_size


BlockTable.compute_slot_mapping = compute_slot_mapping


class Runner(GPUModelRunner):
    """vLLM's own runner, without streams, events and graphs."""

    def __init__(self, config, device):
        with _torch_cuda_wrapper():
            super().__init__(config, device)
        self.use_cuda_graph = False

    def _sync_device(self) -> None:
        pass

    def _to_list(self, sampled_token_ids):
        return sampled_token_ids.tolist()


class SimulatedWorker(Worker):
    """vLLM's own worker on a device of the simulated backend."""

    def init_device(self) -> None:
        """Take the device and build the runner."""
        self.device = torch.device(SimulatedPlatform.device_type, self.local_rank)
        SimulatedPlatform.set_device(self.device)
        init_worker_distributed_environment(
            self.vllm_config, self.rank, self.distributed_init_method, self.local_rank, SimulatedPlatform.dist_backend
        )
        self.model_runner = Runner(self.vllm_config, self.device)

    def _maybe_get_memory_pool_context(self, tag):
        return contextlib.nullcontext()

    def determine_available_memory(self) -> int:
        """Bytes for the key/value cache; no trial run."""
        return BYTES // 8

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Nothing to compile."""
        return CompilationTimes(language_model=0.0, encoder=0.0)
