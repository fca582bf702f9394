"""The simulated device: what a chip has, and the bugs it finds."""

import copy
import io
import threading

import pytest
import torch
import triton
import triton.language as tl

from opgraft import platforms, sim
from opgraft.kernels import launch
from opgraft.sim import guard, memory

DTYPES = [
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8,
    torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


def test_two_device_indexes_are_served():
    assert guard.LAYOUT_PROBLEM is None and torch.sim.device_count() == 2 == torch.accelerator.device_count()
    with torch.sim.device(1):
        assert torch.sim.current_device() == torch.accelerator.current_device_index() == 1
        assert torch.empty(1, device="sim").device.index == torch.ones(1).to("sim").device.index == 1
    assert torch.sim.current_device() == 0
    with pytest.raises(RuntimeError, match="invalid device index 7.*0 to 1"):
        torch.sim.set_device(7)


def test_the_current_device_belongs_to_a_thread():
    seen = []
    with torch.sim.device(1):
        thread = threading.Thread(target=lambda: seen.append(torch.sim.current_device()))
        thread.start()
        thread.join()
    assert seen == [0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_has_storage_and_pointer(dtype):
    t = torch.zeros(3, 2, dtype=dtype, device="sim")
    assert (
        t.device == torch.device("sim:0")
        and t.dtype is dtype
        and t.data_ptr()
        and t.untyped_storage().nbytes() == 6 * dtype.itemsize
    )
    assert t.t()[1].data_ptr() == t.data_ptr() + dtype.itemsize and not t.cpu().to(torch.complex128).any()


def test_views_share_storage_and_know_their_base():
    def views(t):
        z = torch.view_as_complex(t.view(3, 2, 2))
        return [
            t.t(),
            t[1:],
            t.unfold(1, 2, 1),
            t.view(torch.int32),
            z,
            torch.view_as_real(z),
            t.expand(2, 3, 4),
            t.diagonal(),
            z.conj(),
            t.detach(),
        ]

    t = torch.arange(12.0, device="sim").view(3, 4)
    for view, native in zip(views(t), views(torch.arange(12.0).view(3, 4))):
        assert view.untyped_storage().data_ptr() == t.untyped_storage().data_ptr()
        assert (view._is_view(), view.stride(), view.storage_offset()) == (
            native._is_view(),
            native.stride(),
            native.storage_offset(),
        )
    t[1:].zero_()
    assert t.sum().item() == 6 and t._version > 0


def test_modules_train_on_either_index():
    for index in (0, 1):
        torch.manual_seed(0)
        model, data = torch.nn.Linear(4, 2), torch.randn(5, 4)
        on_sim = copy.deepcopy(model).to(f"sim:{index}")
        model(data).relu().sum().backward()
        on_sim(data.to(f"sim:{index}")).relu().sum().backward()
        assert torch.equal(on_sim.weight.grad.cpu(), model.weight.grad) and on_sim.weight.grad.device.index == index


@pytest.mark.parametrize(
    "make, shape",
    [
        (lambda: torch.nn.Conv2d(3, 4, 3, stride=2, groups=1), (2, 3, 9, 9)),
        (lambda: torch.nn.ConvTranspose2d(4, 2, 3, groups=2, bias=False), (2, 4, 5, 5)),
        (lambda: torch.nn.LSTM(5, 6, num_layers=2, bidirectional=True), (4, 2, 5)),
        (lambda: torch.nn.LSTM(5, 6, bias=False), (4, 2, 5)),
        (lambda: torch.nn.GRU(5, 6, num_layers=2), (4, 2, 5)),
        (lambda: torch.nn.GRU(5, 6, bias=False), (4, 2, 5)),
    ],
)
def test_layers_that_ask_an_accelerator_for_kernels_of_its_own(make, shape):
    torch.manual_seed(0)
    model, data = make(), torch.randn(shape)
    there = copy.deepcopy(model).to("sim")
    outputs = []
    for net, x in ((model, data.clone().requires_grad_()), (there, data.to("sim").requires_grad_())):
        out = net(x)
        out = out[0] if isinstance(out, tuple) else out
        out.pow(2).sum().backward()
        outputs.append([out.detach().cpu(), x.grad.cpu(), *(p.grad.cpu() for p in net.parameters())])
    torch.testing.assert_close(outputs[1], outputs[0])


def test_save_load_deepcopy_and_map_location():
    state = torch.nn.Linear(3, 2).to("sim:1").state_dict()
    buffer = io.BytesIO()
    torch.save(state, buffer)
    for target, expected in ((None, "sim:1"), ("cpu", "cpu"), ("sim:0", "sim:0")):
        buffer.seek(0)
        loaded = torch.load(buffer, map_location=target)
        assert str(loaded["weight"].device) == expected and torch.equal(loaded["weight"].cpu(), state["weight"].cpu())
    twin = copy.deepcopy(state)
    assert twin["bias"].device.index == 1 and twin["bias"].data_ptr() != state["bias"].data_ptr()


def test_seeding_and_rng_state():
    def draw():
        return torch.rand(4, device="sim").tolist() + torch.nn.functional.dropout(torch.ones(8, device="sim")).tolist()

    torch.manual_seed(7)
    first, second = draw(), draw()
    assert first != second
    torch.manual_seed(7)
    torch.rand(9)  # the CPU's generator is another one
    state = torch.sim.get_rng_state()
    assert draw() == first
    torch.sim.set_rng_state(state)
    assert draw() == first
    generator = torch.sim.Generator(1)
    assert generator.device == torch.device("sim:1")
    assert torch.equal(
        torch.randn(3, device="sim:1", generator=generator.manual_seed(3)).cpu(),
        torch.randn(3, generator=torch.Generator().manual_seed(3)),
    )
    with torch.random.fork_rng(devices=[0, 1], device_type="sim"):
        draw()
    torch.sim.manual_seed_all(7)
    assert draw() == first


def test_printing_names_the_device():
    assert repr(torch.tensor([1.5, 2.0], device="sim:1")) == "tensor([1.5000, 2.0000], device='sim:1')"


def test_streams_events_pinned_and_non_blocking_are_accepted():
    start, end = torch.sim.Event(enable_timing=True), torch.sim.Event(enable_timing=True)
    with torch.sim.stream(torch.sim.Stream()):
        start.record()
        moved = torch.ones(3).pin_memory().to("sim", non_blocking=True)
        end.record()
    torch.sim.synchronize()
    assert start.elapsed_time(end) > 0 and moved.cpu().tolist() == [1, 1, 1]
    assert torch.ones(3).pin_memory().is_pinned() and not torch.ones(3).is_pinned()
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.empty(3, device="sim", pin_memory=True)


def test_devices_do_not_mix():
    a, b, c = torch.ones(2, device="sim:0"), torch.ones(2, device="sim:1"), torch.ones(2)
    for other in (b, c):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            a + other
    assert (a + torch.tensor(1.0)).cpu().tolist() == [2, 2] and a.to("sim:1").device.index == 1


def test_autocast():
    a = torch.randn(3, 3, device="sim")
    with torch.autocast("sim", dtype=torch.float16):
        assert (a @ a).dtype is torch.float16 and torch.softmax((a @ a), -1).dtype is torch.float32
        assert torch.cat([a, a.half()]).dtype is torch.float32
    assert (a @ a).dtype is torch.float32


def test_out_arguments_are_resized_as_native_does():
    out = torch.empty(0, device="sim")
    torch.add(torch.ones(2, 3, device="sim"), 1, out=out)
    assert out.shape == (2, 3) and out.cpu().eq(2).all()
    x = torch.arange(4.0, device="sim")
    torch.mul(x, 2, out=x)
    assert x.tolist() == [0, 2, 4, 6]
    values, indices = torch.empty(0, device="sim"), torch.empty(0, dtype=torch.long, device="sim")
    torch.sort(torch.tensor([3.0, 1.0], device="sim"), out=(values, indices))
    assert values.tolist() == [1, 3] and indices.tolist() == [1, 0]


def test_numbers_keep_their_precision_and_do_not_promote():
    x, y = torch.ones(3, dtype=torch.float64, device="sim"), torch.ones((), device="sim")
    assert (x * 0.1).tolist() == [0.1] * 3 and (y * 0.1).dtype is torch.float32
    out = torch.empty(0, dtype=torch.float64, device="sim")
    torch.mul(x, 0.1, out=out)
    assert out.tolist() == [0.1] * 3
    assert (torch.tensor([5], device="sim") & 0xFFFFFFFF).dtype is torch.int64


def test_resize_keeps_the_data():
    t = torch.arange(4.0, device="sim")
    t.resize_(2, 3)
    assert t.flatten()[:4].tolist() == [0, 1, 2, 3]


def test_inference_tensors_and_versions():
    with torch.inference_mode():
        assert torch.zeros(2, device="sim").is_inference() and torch.zeros(2, device="sim").add(1).is_inference()
    t = torch.zeros(2, device="sim")
    assert not t.add_(1).is_inference() and t._version == 1


def test_errors_of_cpu_kernels_come_through():
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        torch.ones(2, 3, device="sim") @ torch.ones(2, 3, device="sim")
    with pytest.raises(RuntimeError, match="negative dimension"):
        torch.empty_strided((-1,), (1,), device="sim")


def test_fresh_memory_is_poisoned():
    assert memory.host_alias(torch.empty(5, dtype=torch.uint8, device="sim")).tolist() == [memory.POISON] * 5
    assert torch.empty(2, device="sim").abs().min().item() > 1e33


@triton.jit
def fill_kernel(out, numel, past, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, 7, mask=offsets < numel + past)


def test_one_element_too_far_is_caught_at_the_launch():
    out = torch.zeros(5, dtype=torch.int32, device="sim")
    launch(fill_kernel, (1,), out, 5, 0, BLOCK=16)
    assert out.tolist() == [7] * 5
    with pytest.raises(sim.MemoryFault, match="fill_kernel.*20 bytes.*at byte 0 past its end"):
        launch(fill_kernel, (1,), out, 5, 1, BLOCK=16)


def test_a_write_that_no_launch_saw_is_caught_on_demand_and_at_the_free():
    out = torch.zeros(4, dtype=torch.uint8, device="sim")
    import ctypes

    ctypes.memset(out.data_ptr() - 1, 1, 1)
    with pytest.raises(sim.MemoryFault, match="1 byte.* before its start"):
        sim.check()
    ctypes.memset(out.data_ptr() + 4, 1, 1)
    del out
    with pytest.warns(UserWarning, match="past its end.*found when it was freed"), pytest.raises(sim.MemoryFault):
        sim.check()


def test_use_after_free_is_caught():
    t = torch.zeros(64, dtype=torch.uint8, device="sim")
    pointer = t.data_ptr()
    del t
    sim.memory.bytes_used()  # collects
    import ctypes

    assert ctypes.string_at(pointer, 64) == bytes([memory.FREED]) * 64, "a dangling read sees the freed pattern"
    ctypes.memset(pointer, 0, 1)
    with pytest.raises(sim.MemoryFault, match="a freed allocation of 64 bytes.*was written to"):
        sim.check()


def test_a_foreign_storage_is_refused():
    t = torch.zeros(4, device="sim")
    pointer = t.untyped_storage().data_ptr()
    allocation = memory._live.pop(pointer)  # as if it had been freed, or never been ours
    try:
        with pytest.raises(sim.MemoryFault, match="freed already, or foreign"):
            t + 1
    finally:
        memory._live[pointer] = allocation


def test_a_launch_in_the_wrong_context_is_refused():
    out = torch.zeros(4, dtype=torch.int32, device="sim:1")
    launch(fill_kernel, (1,), out, 4, 0, BLOCK=4)  # the launcher enters the device itself
    assert out.tolist() == [7] * 4
    with pytest.raises(RuntimeError, match="context of device 0 with a tensor on sim:1"):
        platforms.simulator("sim").launch(fill_kernel, (1,), [out], (out, 4, 0), {"BLOCK": 4})


def test_memory_is_given_back():
    before = torch.sim.memory_allocated()
    t = torch.zeros(1 << 20, device="sim")
    assert torch.sim.memory_allocated() - before == 4 << 20
    del t
    assert torch.sim.memory_allocated() == before


def test_tensors_freed_while_an_error_is_pending_do_not_hide_it():
    """PyTorch frees tensors with a Python error set; a deleter in Python would replace the error."""
    with pytest.raises(RuntimeError, match="must match the size"):
        for _ in range(3):
            torch.ones(2, 3, device="sim") * torch.ones(2, device="sim")


def test_dataloader_with_workers_and_pinned_memory():
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    batches = [b.to("sim") for (b,) in torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, pin_memory=True)]
    assert [b.tolist() for b in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_one_name_a_process():
    with pytest.raises(RuntimeError, match="named 'sim' in this process.*new process for 'mlu'"):
        sim.enable("mlu")
    sim.enable("sim")


def test_a_vendors_script_runs_unchanged(tmp_path):
    import subprocess
    import sys

    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch, torch_npu\nassert torch.npu.is_available() and sys.argv[1:] == ['--steps', '2']\n"
        "model = torch.nn.Linear(3, 1).npu()\nmodel(torch.ones(2, 3).npu()).sum().backward()\nprint(torch.npu.get_device_name(0))"
    )
    command = [sys.executable, "-m", "opgraft.cli", "simulate", "--name", "npu", str(script), "--steps", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "simulated" in done.stdout, done.stdout + done.stderr


def test_torch_accelerator_speaks_of_the_device():
    """Its memory functions ask a C++ allocator, which ended in an internal assertion (vLLM calls them)."""
    before = torch.accelerator.memory_allocated()
    x = torch.zeros(1000, device="sim")
    assert torch.accelerator.memory_allocated() == before + 4000 == torch.accelerator.memory_reserved()
    assert torch.accelerator.max_memory_allocated() >= before + 4000
    assert torch.accelerator.memory_stats()["allocated_bytes.all.current"] == before + x.nbytes
    free, total = torch.accelerator.get_memory_info(0)
    assert 0 < free <= total
    torch.accelerator.empty_cache()
    torch.accelerator.empty_host_cache()
    torch.accelerator.reset_peak_memory_stats()
    torch.accelerator.reset_accumulated_memory_stats()
    torch.accelerator.synchronize()
    assert torch.accelerator.current_accelerator() == torch.device("sim")
