// The signature of a call: everything that a decision about it may depend on, as a row of 64-bit words.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/SmallVector.h>

#include <cstring>

namespace opgraft {

// A few bytes of each thread, where they are found without a call.
#define OPGRAFT_THREAD thread_local __attribute__((tls_model("initial-exec")))
inline OPGRAFT_THREAD bool inside = false;     // this thread is inside an override: overridden operators go straight to native
inline OPGRAFT_THREAD int64_t forced = 0;      // the route that this thread takes: 0 by the table, 1 own, 2 native
inline std::atomic<int64_t> deciding_anew{0};  // while positive, nothing that was decided is remembered or used

// Keys of tensors that no plan serves: they answer in Python, have no strides, or only record what they would do.
const c10::DispatchKeySet unplannable =
    c10::python_ks | c10::DispatchKeySet({c10::DispatchKey::Functionalize, c10::DispatchKey::FuncTorchBatched,
                                          c10::DispatchKey::BatchedNestedTensor, c10::DispatchKey::FuncTorchGradWrapper});

struct Signature {
  c10::SmallVector<int64_t, 64> words;
  bool plannable = true;

  void word(int64_t w) {
    words.push_back(w);
    mixed_ += (static_cast<uint64_t>(w) ^ 0x9E3779B97F4A7C15ull) * (multiplier_ += 0xD1B54A32D192ED04ull);  // odd multipliers
  }
  uint64_t hash() const { return mixed_ ^ mixed_ >> 32 ^ mixed_ >> 17; }

  // What no argument says: the route that is forced, and whether a gradient is recorded.
  void finish() { word(forced | static_cast<int64_t>(grad_ && c10::GradMode::is_enabled()) << 16); }

  void put(const at::Tensor& t) {
    if (!t.defined()) return word(-1);
    auto* impl = t.unsafeGetTensorImpl();
    const auto keys = impl->key_set();
    if (keys.has_any(unplannable) || impl->layout() != c10::kStrided || impl->has_symbolic_sizes_strides() || !impl->unsafe_storage()) {
      plannable = false;
      return;
    }
    const auto sizes = t.sizes();
    const auto strides = t.strides();
    const auto width = static_cast<int64_t>(t.dtype().itemsize());
    const auto address = reinterpret_cast<int64_t>(static_cast<const void*>(impl->unsafe_storage().data())) + t.storage_offset() * width;
    const auto device = t.device();
    word(static_cast<int64_t>(t.scalar_type()) | static_cast<int64_t>(device.type()) << 8 |
         static_cast<int64_t>(static_cast<uint8_t>(device.index())) << 16 |
         static_cast<int64_t>(keys.has(c10::DispatchKey::Conjugate)) << 24 | static_cast<int64_t>(keys.has(c10::DispatchKey::Negative)) << 25 |
         static_cast<int64_t>(impl->_is_zerotensor()) << 26 | static_cast<int64_t>(impl->is_wrapped_number()) << 27 |
         static_cast<int64_t>(impl->is_inference()) << 28 | (address & 15) << 32 | static_cast<int64_t>(sizes.size()) << 40);
    int64_t reach = width;
    for (size_t i = 0; i < sizes.size(); i++) {
      word(sizes[i]);
      word(strides[i]);
      reach = sizes[i] == 0 || reach == 0 ? 0 : reach + (sizes[i] - 1) * strides[i] * width;
    }
    grad_ = grad_ || (impl->autograd_meta() && impl->requires_grad());
    // Tensors whose bytes meet: where they lie relative to each other decides too.
    for (size_t i = 0; i < spans_.size(); i++) {
      if (reach && spans_[i].first < address + reach && address < spans_[i].second) {
        word(static_cast<int64_t>(i) | 1ll << 62);
        word(address - spans_[i].first);
      }
    }
    spans_.emplace_back(address, address + reach);
  }

  void put(const std::optional<at::Tensor>& t) { t.has_value() ? put(*t) : word(-2); }
  void put(bool b) { word(b); }
  void put(int64_t i) { word(i); }
  void put(double d) {
    int64_t bits;
    std::memcpy(&bits, &d, sizeof bits);
    word(bits);
  }
  void put(at::ScalarType v) { word(static_cast<int64_t>(v)); }
  void put(at::Layout v) { word(static_cast<int64_t>(v)); }
  void put(at::MemoryFormat v) { word(static_cast<int64_t>(v)); }
  void put(c10::Device v) {
    int64_t index = v.index();
    if (index < 0 && v.type() != c10::kCPU && v.type() != c10::kMeta)
      index = c10::impl::VirtualGuardImpl(v.type()).getDevice().index();  // "cuda" means the current device
    word(static_cast<int64_t>(v.type()) | static_cast<int64_t>(static_cast<uint8_t>(index)) << 8);
  }
  void put(c10::SymInt v) {
    if (auto i = v.maybe_as_int()) return word(*i);
    plannable = false;
  }
  void put(c10::IntArrayRef list) {
    word(static_cast<int64_t>(list.size()));
    for (int64_t i : list) word(i);
  }
  void put(c10::SymIntArrayRef list) {
    if (auto ints = c10::asIntArrayRefSlowOpt(list)) return put(*ints);
    plannable = false;
  }
  void none() { word(-3 - static_cast<int64_t>(c10::get_default_dtype_as_scalartype())); }  // a factory's dtype, if that is what was left out
  template <class T>
  void put(const std::optional<T>& v) {
    if (!v.has_value()) return std::is_same_v<T, at::ScalarType> ? none() : word(-2);
    word(-1);
    put(*v);
  }

  void put(const c10::IValue& v) {
    word(static_cast<int64_t>(v.isTensor()) | static_cast<int64_t>(v.isInt()) << 1 | static_cast<int64_t>(v.isBool()) << 2 |
         static_cast<int64_t>(v.isDouble()) << 3);
    if (v.isTensor()) return put(v.toTensor());
    if (v.isNone()) return none();
    if (v.isInt()) return word(v.toInt());
    if (v.isBool()) return word(v.toBool());
    if (v.isDouble()) return put(v.toDouble());
    if (v.isDevice()) return put(v.toDevice());
    if (v.isComplexDouble()) {
      put(v.toComplexDouble().real());
      return put(v.toComplexDouble().imag());
    }
    if (v.isIntList()) return put(v.toDimVector());
    if (v.isDoubleList() || v.isBoolList() || v.isTensorList() || v.isOptionalTensorList()) {
      const auto list = v.toListRef();
      word(static_cast<int64_t>(list.size()));
      for (const auto& element : list) put(element);
      return;
    }
    if (v.isString()) {
      const auto& text = v.toStringRef();
      word(static_cast<int64_t>(text.size()));
      for (size_t i = 0; i < text.size(); i += 8) {
        int64_t piece = 0;
        std::memcpy(&piece, text.data() + i, std::min<size_t>(8, text.size() - i));
        word(piece);
      }
      return;
    }
    plannable = false;  // a generator, a symbol, something to come
  }
  void put(const c10::DimVector& list) { put(c10::IntArrayRef(list)); }

 private:
  bool grad_ = false;
  uint64_t mixed_ = 0, multiplier_ = 1;
  c10::SmallVector<std::pair<int64_t, int64_t>, 4> spans_;
};

// What the autograd key asks of a call's tensors before anything else.
struct Recorded {
  bool grad = false;     // one asks for a gradient
  bool tangent = false;  // one carries a tangent of forward-mode AD
  bool python = false;   // one answers in Python, or has sizes that are symbols

  void put(const at::Tensor& t) {
    if (!t.defined()) return;
    auto* impl = t.unsafeGetTensorImpl();
    if (impl->autograd_meta()) {
      grad = grad || impl->requires_grad();
      tangent = tangent || impl->_fw_grad(/*level=*/0, t).defined();
    }
    python = python || impl->key_set().has_any(unplannable) || impl->has_symbolic_sizes_strides();
  }
  void put(const std::optional<at::Tensor>& t) {
    if (t.has_value()) put(*t);
  }
  void put(const c10::IValue& v) {
    if (v.isTensor()) return put(v.toTensor());
    if (v.isTensorList() || v.isOptionalTensorList())
      for (const auto& element : v.toListRef()) put(element);
  }
  template <class T>
  void put(const T&) {}
};

}  // namespace opgraft
