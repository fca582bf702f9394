// What happens in a call: the way of a plan, and the way into Python where there is none yet.
#pragma once
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#include "plan.h"

namespace opgraft {

using torch::jit::Stack;

struct Inside {
  Inside() : before_(inside) { inside = true; }
  ~Inside() { inside = before_; }

 private:
  bool before_;
};

// ---- steps: allocate, launch, return ----

inline at::Tensor allocate(const Output& out) {
  const c10::DispatchKeySet key(c10::computeDispatchKey(out.dtype, c10::kStrided, out.device));
  static const auto strided = c10::Dispatcher::singleton().findSchemaOrThrow("aten::empty_strided", "");
  static const auto dense = c10::Dispatcher::singleton().findSchemaOrThrow("aten::empty", "memory_format");
  using Some = std::optional<bool>;
  if (!out.primitive && !out.row_major)
    return entry_of(strided).lookup(key).call<at::Tensor, c10::SymIntArrayRef, c10::SymIntArrayRef, std::optional<at::ScalarType>,
                                              std::optional<at::Layout>, std::optional<at::Device>, Some>(
        strided, key, out.sizes, out.strides, out.dtype, c10::kStrided, out.device, Some());
  const c10::SymInt span(out.span);
  const auto sizes = out.row_major ? c10::SymIntArrayRef(out.sizes) : c10::SymIntArrayRef(&span, 1);
  auto made = entry_of(dense).lookup(key).call<at::Tensor, c10::SymIntArrayRef, std::optional<at::ScalarType>, std::optional<at::Layout>,
                                              std::optional<at::Device>, Some, std::optional<at::MemoryFormat>>(
      dense, key, sizes, out.dtype, c10::kStrided, out.device, Some(), std::nullopt);
  if (out.row_major) return made;
  made.unsafeGetTensorImpl()->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(c10::SymIntArrayRef(out.sizes)),
                                                    C10_AS_INTARRAYREF_SLOW(c10::SymIntArrayRef(out.strides)));
  return made;
}

inline void* stream_of(const c10::impl::VirtualGuardImpl& devices, c10::Device device) {
  return device.is_cpu() ? nullptr : devices.getStreamNativeHandle(devices.getStream(device));
}

// The result, or nothing where Python has to do it: a profiler watches launches, an address is less aligned than at first, this
// thread has no context of the device yet.
inline std::optional<at::Tensor> carry_out(const Steps& steps, const at::Tensor* const* arguments) {
  if (steps.hooks && PyList_GET_SIZE(steps.hooks) != 0) return std::nullopt;
  const Inside guard;
  c10::SmallVector<at::Tensor, 2> outputs;
  for (const auto& out : steps.outputs) outputs.push_back(allocate(out));
  if (!steps.launches.empty()) {
    const c10::impl::VirtualGuardImpl devices(steps.device.type());
    const auto current = devices.getDevice();
    if (current != steps.device) devices.setDevice(steps.device);
    void* const stream = stream_of(devices, steps.device);
    bool first = true, refused = false;
    for (const auto& launch : steps.launches) {
      c10::SmallVector<void*, 32> values, parameters;
      values.resize(launch.parameters.size());
      for (size_t i = 0; i < values.size() && !refused; i++) {
        const auto& p = launch.parameters[i];
        if (p.pointer) {
          const at::Tensor& t = p.operand < 0 ? outputs[-1 - p.operand] : *arguments[p.operand];
          values[i] = p.operand < 0 || p.written ? t.mutable_data_ptr() : const_cast<void*>(t.const_data_ptr());
          refused = p.operand < 0 && (reinterpret_cast<uintptr_t>(values[i]) & 15);
        } else {
          std::memcpy(&values[i], &p.number, sizeof(uint64_t));
        }
        parameters.push_back(&values[i]);
      }
      const int error = refused ? 0
                                : steps.launch(launch.function, launch.grid[0], launch.grid[1], launch.grid[2], launch.threads, 1, 1,
                                               launch.shared, stream, parameters.data(), nullptr);
      if (error && first) refused = true;
      if (error && !first) devices.setDevice(current);
      TORCH_CHECK(!error || first, "kernel ", launch.name, ": the launch failed with error ", error);
      if (refused) break;
      first = false;
    }
    if (current != steps.device) devices.setDevice(current);
    if (refused) return std::nullopt;
  }
  return steps.result < 0 ? outputs[-1 - steps.result] : *arguments[steps.result];
}

// ---- into Python ----

[[noreturn]] inline void raise_python_error() {
  python_error error;
  error.persist();  // it may be caught by a thread without this one's Python state
  throw std::move(error);
}

// A value as Python sees it. Not by PyTorch's own way to a Python kernel, which hands over a bare number for a tensor that wraps one
// (`x[i] = 32` calls copy_); here it stays the tensor that native is given.
inline pybind11::object to_python(const c10::IValue& v, const c10::Type& type) {
  if (v.isNone()) return pybind11::none();
  if (v.isTensor()) return pybind11::reinterpret_steal<pybind11::object>(THPVariable_Wrap(v.toTensor()));
  if (v.isInt()) {
    const auto* of = &type;
    if (auto* optional = of->castRaw<c10::OptionalType>()) of = optional->getElementType().get();
    const auto borrow = [](void* o) { return pybind11::reinterpret_borrow<pybind11::object>(static_cast<PyObject*>(o)); };
    if (of->kind() == c10::TypeKind::ScalarTypeType) return borrow(torch::getTHPDtype(v.toScalarType()));
    if (of->kind() == c10::TypeKind::LayoutType) return borrow(torch::getTHPLayout(v.toLayout()));
    if (of->kind() == c10::TypeKind::MemoryFormatType) return borrow(torch::utils::getTHPMemoryFormat(v.toMemoryFormat()));
  }
  return torch::jit::toPyObject(v);
}

inline bool is_default(const c10::Argument& argument, const c10::IValue& v) {
  return argument.default_value().has_value() && !v.isTensor() && v == *argument.default_value();
}

// Positional and keyword arguments; those that have their default are left out, from the right and of the keywords.
inline std::pair<pybind11::tuple, pybind11::dict> to_python(const c10::OperatorHandle& op, const Stack& stack) {
  const auto& arguments = op.schema().arguments();
  size_t positional = 0;
  while (positional < arguments.size() && !arguments[positional].kwarg_only()) positional++;
  size_t given = positional;
  while (given > 0 && is_default(arguments[given - 1], stack[given - 1])) given--;
  pybind11::tuple args(given);
  for (size_t i = 0; i < given; i++) args[i] = to_python(stack[i], *arguments[i].real_type());
  pybind11::dict kwargs;
  for (size_t i = positional; i < arguments.size(); i++)
    if (!is_default(arguments[i], stack[i])) kwargs[arguments[i].name().c_str()] = to_python(stack[i], *arguments[i].real_type());
  return {std::move(args), std::move(kwargs)};
}

inline pybind11::object call_python(pybind11::handle function, pybind11::handle args, pybind11::handle kwargs) {
  auto result = pybind11::reinterpret_steal<pybind11::object>(PyObject_Call(function.ptr(), args.ptr(), kwargs.ptr()));
  if (!result) raise_python_error();
  return result;
}

inline pybind11::tuple with_keys(c10::DispatchKeySet keys, pybind11::handle args) {
  return pybind11::tuple(pybind11::make_tuple(keys) + pybind11::reinterpret_borrow<pybind11::tuple>(args));
}

inline void answer(const c10::OperatorHandle& op, Stack& stack, const pybind11::object& result) {
  const auto& returns = op.schema().returns();
  stack.clear();
  if (returns.size() == 1 && THPVariable_Check(result.ptr())) {
    stack.emplace_back(THPVariable_Unpack(result.ptr()));
  } else if (returns.size() == 1) {
    stack.push_back(torch::jit::toIValue(result, returns[0].real_type()));
  } else if (!returns.empty()) {
    const auto all = pybind11::reinterpret_borrow<pybind11::sequence>(result);
    TORCH_CHECK(all.size() == returns.size(), op.operator_name(), ": the kernel gave ", all.size(), " results, the schema has ", returns.size());
    for (size_t i = 0; i < returns.size(); i++) stack.push_back(torch::jit::toIValue(pybind11::object(all[i]), returns[i].real_type()));
  }
}

// Nothing if the device does not tell its stream's handle.
std::unique_ptr<Steps> steps_from_python(const Site& site, pybind11::handle direct);  // module.cpp

// What a planner answered, as a plan.
inline std::unique_ptr<Plan> planned(Live& live, pybind11::object answer) {
  auto plan = std::make_unique<Plan>();
  plan->tally = &live.own;
  if (PyUnicode_Check(answer.ptr())) {
    plan->kind = Plan::native;
    plan->tally = &live.handed_for(answer.cast<std::string>());
  } else if (pybind11::hasattr(answer, "instead_of_python")) {
    plan->kind = Plan::instead;
    const auto name = answer.attr("instead_of_python").cast<std::pair<std::string, std::string>>();
    plan->operator_ = c10::Dispatcher::singleton().findSchemaOrThrow(name.first.c_str(), name.second.c_str());
  } else {
    plan->whole = pybind11::getattr(answer, "whole", pybind11::bool_(true)).cast<bool>();
    plan->callable = answer.release().ptr();
  }
  return plan;
}

struct Decision {  // of a plan, what outlives its table
  Plan::Kind kind;
  Tally* tally;
  std::optional<c10::OperatorHandle> instead;
  bool whole;
  explicit Decision(const Plan& plan) : kind(plan.kind), tally(plan.tally), instead(plan.operator_), whole(plan.whole) {}
};

// A call that is not wholly planned, with its arguments on the stack; leaves the results there.
inline void in_python(Site& site, const std::shared_ptr<Live>& live, const Signature& signature, bool recording, c10::DispatchKeySet keys, Stack& stack) {
  std::optional<Decision> decision;
  {
    pybind11::gil_scoped_acquire gil;
    const bool remembered = signature.plannable && deciding_anew.load(std::memory_order_relaxed) == 0;
    const auto [args, kwargs] = to_python(site.op, stack);
    pybind11::object callable;
    const auto take = [&](const Plan& plan) {
      decision.emplace(plan);
      if (plan.callable) callable = pybind11::reinterpret_borrow<pybind11::object>(plan.callable);
    };
    if (remembered) {
      const Section section(site);
      const Plan* plan = section.live == live.get() ? live->table.load()->find(signature, signature.hash()) : nullptr;
      if (plan) take(*plan);
    }
    if (!decision) {
      std::unique_ptr<Plan> plan;
      try {
        const Inside guard;
        plan = planned(*live, call_python(recording ? live->recorder : live->planner, args, kwargs));
      } catch (...) {
        live->count(live->own);
        throw;
      }
      take(*plan);
      if (remembered && !recording && plan->callable && pybind11::hasattr(plan->callable, "first")) {
        // Runs once in Python, which compiles, and says how the next calls may go without.
        live->count(live->own);
        const Inside guard;
        const pybind11::tuple both = call_python(callable.attr("first"), args, kwargs);
        if (!both[1].is_none()) plan->launched = steps_from_python(site, both[1]);
        if (plan->launched) plan->kind = Plan::steps;
        live->remember(std::move(plan), signature);
        return answer(site.op, stack, both[0]);
      }
      if (remembered) live->remember(std::move(plan), signature);
    }
    if (decision->whole) live->count(*decision->tally);
    if (callable) {
      const bool before = std::exchange(inside, inside || decision->whole);
      try {
        const auto result = recording ? call_python(callable, with_keys(keys, args), kwargs) : call_python(callable, args, kwargs);
        inside = before;
        return answer(site.op, stack, result);
      } catch (...) {
        inside = before;
        throw;
      }
    }
  }
  const Inside guard;
  if (decision->kind == Plan::native) return site.native.callBoxed(site.op, keys, &stack);
  entry_of(*decision->instead).lookup(c10::DispatchKeySet(site.backend_key)).callBoxed(*decision->instead, keys, &stack);
}

// A call at the autograd key that no plan serves: traced, with symbols for sizes, or in forward-mode AD.
inline void uncertain_in_python(Site& site, const std::shared_ptr<Live>& live, c10::DispatchKeySet keys, Stack& stack) {
  pybind11::gil_scoped_acquire gil;
  const auto [args, kwargs] = to_python(site.op, stack);
  answer(site.op, stack, call_python(live->uncertain, with_keys(keys, args), kwargs));
}

}  // namespace opgraft
