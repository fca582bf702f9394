// Entries: the functions that the dispatcher calls. They have no object of their own, and find their site by their number.
//
// An entry shares its kernel's functor with the native one, so a thread that reads the dispatcher's table while it changes, pointer by
// pointer, pairs either function with a functor that fits it. A typed entry takes its arguments as C++ callers pass them, which spares
// boxing them (0.2 to 0.4 µs); operators of other signatures are served by the boxed one.
#pragma once
#include "call.h"

namespace opgraft {

constexpr size_t most_sites = 1024, most_of_a_signature = 32;
inline std::array<Site*, most_sites> sites;

// The ways through an entry, for any manner of passing arguments. `Call` gives:
//   put(x)                 each argument to a Signature or a Recorded
//   run(kernel, op, keys)  a kernel with the arguments
//   boxed(f)               f(stack), with the arguments on the stack, and the result
//   operands(array)        pointers to the tensors, by position
//   tensor(t)              a result that is this tensor
template <class Call>
typename Call::Result by_plan(Site& site, Section& section, c10::DispatchKeySet keys, bool recording, Call& call) {
  Live& live = *section.live;
  Signature signature;
  call.put(signature);
  signature.finish();
  if (C10_LIKELY(signature.plannable && deciding_anew.load(std::memory_order_relaxed) == 0)) {
    const Plan* plan = live.table.load(std::memory_order_acquire)->find(signature, signature.hash());
    if (plan && plan->kind == Plan::native) {
      live.count(*plan->tally);
      section.leave();
      const Inside guard;
      return call.run(site.native, site.op, keys);
    }
    if (plan && plan->kind != Plan::python) {
      std::optional<at::AutoDispatchBelowAutograd> below;
      if (site.role == Site::autograd) below.emplace();
      if (plan->kind == Plan::instead) {
        live.count(*plan->tally);
        const auto op = *plan->operator_;
        section.leave();
        const Inside guard;
        return call.run(entry_of(op).lookup(c10::DispatchKeySet(site.backend_key)), op, keys);
      }
      c10::SmallVector<const at::Tensor*, 8> operands;
      call.operands(operands);
      if (auto result = carry_out(*plan->launched, operands.data())) {
        live.count(*plan->tally);
        return call.tensor(std::move(*result));
      }
    }
  }
  const auto kept = live.shared_from_this();
  section.leave();
  std::optional<at::AutoDispatchBelowAutograd> below;
  if (site.role == Site::autograd && !recording) below.emplace();
  return call.boxed([&](Stack& stack) { in_python(site, kept, signature, recording, keys, stack); });
}

template <class Call>
typename Call::Result enter(Site& site, c10::DispatchKeySet keys, Call call) {
  if (inside || site.role == Site::formula) return call.run(site.native, site.op, keys);
  Section section(site);
  if (!section.live) {
    section.leave();
    return call.run(site.native, site.op, keys);
  }
  if (site.role == Site::backend) return by_plan(site, section, keys, false, call);
  const auto after = keys & c10::after_autograd_keyset;
  bool recording = false;
  if (section.live->records) {
    Recorded recorded;
    call.put(recorded);
    recording = recorded.grad && c10::GradMode::is_enabled();
    if (recorded.tangent || (recording && recorded.python)) {
      const auto kept = section.live->shared_from_this();
      section.leave();
      return call.boxed([&](Stack& stack) { uncertain_in_python(site, kept, keys, stack); });
    }
  }
  if (!recording && after.highestFunctionalityKey() != c10::DispatchKey::Dense) {  // a mode or a subclass comes first
    section.leave();
    const at::AutoDispatchBelowAutograd guard;
    return call.run(entry_of(site.op).lookup(after), site.op, after);
  }
  return by_plan(site, section, keys, recording, call);
}

// ---- boxed ----

struct BoxedCall {
  using Result = void;
  const c10::OperatorHandle& op;
  Stack* stack;

  c10::ArrayRef<c10::IValue> arguments() const { return torch::jit::last(*stack, op.schema().arguments().size()); }
  template <class To>
  void put(To& to) const {
    for (const auto& v : arguments()) to.put(v);
  }
  void run(const c10::KernelFunction& kernel, const c10::OperatorHandle& of, c10::DispatchKeySet keys) const { kernel.callBoxed(of, keys, stack); }
  template <class F>
  void boxed(F f) const {
    Stack mine(arguments().begin(), arguments().end());
    f(mine);
    torch::jit::drop(*stack, op.schema().arguments().size());
    for (auto& v : mine) stack->push_back(std::move(v));
  }
  void operands(c10::SmallVector<const at::Tensor*, 8>& found) const {
    for (const auto& v : arguments()) found.push_back(v.isTensor() ? &v.toTensor() : nullptr);
  }
  void tensor(at::Tensor t) const {
    torch::jit::drop(*stack, op.schema().arguments().size());
    stack->push_back(std::move(t));
  }
};

template <size_t N>
void boxed_entry(c10::OperatorKernel*, const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  enter(*sites[N], keys, BoxedCall{op, stack});
}

template <size_t... N>
constexpr std::array<c10::BoxedKernel::InternalBoxedKernelFunction*, sizeof...(N)> boxed_entries(std::index_sequence<N...>) {
  return {&boxed_entry<N>...};
}

// ---- typed ----

template <class R, class... A>
struct TypedCall {
  using Result = R;
  std::tuple<A...> arguments;  // references stay references

  template <class To>
  void put(To& to) {
    std::apply([&](auto&... a) { (to.put(a), ...); }, arguments);
  }
  R run(const c10::KernelFunction& kernel, const c10::OperatorHandle& op, c10::DispatchKeySet keys) {
    return std::apply([&](auto&... a) -> R { return kernel.call<R, A...>(op, keys, static_cast<A>(a)...); }, arguments);
  }
  template <class F>
  R boxed(F f) {
    Stack stack = std::apply([](auto&... a) { return c10::impl::boxArgs<A...>(a...); }, arguments);
    f(stack);
    if constexpr (std::is_same_v<R, at::Tensor&>) {
      return std::get<0>(arguments);  // written in place, and returned
    } else {
      return std::move(stack.at(0)).template to<R>();
    }
  }
  void operands(c10::SmallVector<const at::Tensor*, 8>& found) {
    std::apply([&](auto&... a) { (found.push_back(tensor_or_none(a)), ...); }, arguments);
  }
  R tensor(at::Tensor t) {
    if constexpr (std::is_same_v<R, at::Tensor>) {
      return t;
    } else if constexpr (std::is_same_v<R, at::Tensor&>) {
      return std::get<0>(arguments);
    } else {
      TORCH_INTERNAL_ASSERT(false, "steps give a tensor");
    }
  }

 private:
  static const at::Tensor* tensor_or_none(const at::Tensor& t) { return &t; }
  static const at::Tensor* tensor_or_none(const std::optional<at::Tensor>& t) { return t.has_value() ? &*t : nullptr; }
  template <class T>
  static const at::Tensor* tensor_or_none(const T&) {
    return nullptr;
  }
};

template <class>
struct Typed;

template <class R, class... A>
struct Typed<R(A...)> {
  static inline std::array<Site*, most_of_a_signature> mine{};
  static inline size_t used = 0;

  template <size_t N>
  static R entry(c10::OperatorKernel*, c10::DispatchKeySet keys, A... a) {
    return enter(*mine[N], keys, TypedCall<R, A...>{std::tuple<A...>(static_cast<A>(a)...)});
  }
  template <size_t... N>
  static std::array<void*, sizeof...(N)> entries(std::index_sequence<N...>) {
    return {reinterpret_cast<void*>(&entry<N>)...};
  }
  // Gives the site a typed entry, if this is its operator's signature and one is left.
  static bool serve(Site& site) {
    constexpr bool symbols = std::disjunction_v<c10::has_symint<A>...>;
    const auto& entry = entry_of(site.op);
    const auto& known = symbols ? entry.*member(SymSignatureOf()) : entry.*member(SignatureOf());
    if (!known.has_value() || !(known->signature == c10::impl::CppSignature::make<R(A...)>())) return false;
    static const auto all = entries(std::make_index_sequence<most_of_a_signature>());
    if (used == all.size()) return true;
    mine[used] = &site;
    (symbols ? site.function.*member(SymUnboxedOf()) : site.function.*member(UnboxedOf())) = all[used++];
    return true;
  }
};

template <class... Signatures>
bool serve_any(Site& site) {
  return (Typed<Signatures>::serve(site) || ...);
}

namespace signatures {
using Dtype = std::optional<at::ScalarType>;
using Layout = std::optional<at::Layout>;
using Device = std::optional<at::Device>;
using Flag = std::optional<bool>;
using Format = std::optional<at::MemoryFormat>;
using Mask = const std::optional<at::Tensor>&;
using T = const at::Tensor&;
}  // namespace signatures

// Signatures with a typed entry; any operator of one of them is served by it.
inline bool serve_typed(Site& site) {
  using namespace signatures;
  using at::Scalar;
  using at::Tensor;
  using c10::SymInt;
  using c10::SymIntArrayRef;
  return serve_any<Scalar(T), Tensor(T), Tensor(T, Format), Tensor(T, at::MemoryFormat), Tensor(T, T), Tensor&(Tensor&, T, bool),
                   Tensor(T, Dtype, Layout, Device, Flag, Format), Tensor(SymIntArrayRef, SymIntArrayRef, Dtype, Layout, Device, Flag),
                   Tensor(T, double, bool), Tensor&(Tensor&, double, bool), Tensor(T, T, SymInt, bool, bool),
                   Tensor(T, T, SymInt, SymInt, bool), Tensor(T, T, T, Mask, double, bool, std::optional<double>, bool)>(site);
}

}  // namespace opgraft
