// Plans: what becomes of every call of one signature, and the bounded tables that threads read without a lock.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/EmptyTensor.h>
#include <torch/csrc/utils/pybind.h>

#ifdef __linux__
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "signature.h"

namespace opgraft {

// PyTorch's kernel functions and operator entries have no public door to what an override needs: the kernel that is there now, and
// a kernel function that shares its functor. Explicit instantiation may name private members, so this opens those.
template <class Tag, auto Member>
struct Open {
  friend constexpr auto member(Tag) { return Member; }
};
#define OPGRAFT_OPEN(Tag, Member)           \
  struct Tag {                              \
    friend constexpr auto member(Tag);      \
  };                                        \
  template struct Open<Tag, &Member>;
OPGRAFT_OPEN(BoxedKernelOf, c10::KernelFunction::boxed_kernel_func_)
OPGRAFT_OPEN(UnboxedOf, c10::KernelFunction::unboxed_kernel_func_)
OPGRAFT_OPEN(SymUnboxedOf, c10::KernelFunction::sym_unboxed_kernel_func_)
OPGRAFT_OPEN(FunctorOf, c10::BoxedKernel::functor_)
OPGRAFT_OPEN(BoxedFunctionOf, c10::BoxedKernel::boxed_kernel_func_)
OPGRAFT_OPEN(DefinitionOf, c10::OperatorHandle::operatorDef_)
OPGRAFT_OPEN(SignatureOf, c10::impl::OperatorEntry::cpp_signature_)
OPGRAFT_OPEN(SymSignatureOf, c10::impl::OperatorEntry::sym_cpp_signature_)

inline const c10::impl::OperatorEntry& entry_of(const c10::OperatorHandle& op) { return (op.*member(DefinitionOf()))->op; }

// The C function that launches a kernel, with the arguments of CUDA's cuLaunchKernel; the platform names it.
using LaunchFunction = int (*)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                               unsigned block_z, unsigned shared, void* stream, void** parameters, void** extra);

struct Output {
  c10::SmallVector<c10::SymInt, 6> sizes, strides;
  int64_t span;  // elements from the first to the last
  at::ScalarType dtype;
  c10::Device device;
  bool primitive;           // made from `empty`, for the override of empty_strided itself
  bool row_major = false;  // as `empty` makes it
};

struct Parameter {
  int operand;     // an argument's position, -1 - i for output i; otherwise a number, below
  bool pointer, written;
  uint64_t number;
};

struct Launch {
  std::string name;
  void* function;
  unsigned grid[3], threads, shared;
  std::vector<Parameter> parameters;
};

// Outputs to allocate, kernels to launch, the operand to return.
struct Steps {
  c10::Device device;
  std::vector<Output> outputs;
  std::vector<Launch> launches;
  int result;
  LaunchFunction launch;
  PyObject* hooks;  // a list that is empty while no profiler watches launches; kept alive by the plan's callable
};

// Calls that were answered alike: by the override's own kernel, or by native for one reason. Every call is counted in one of them.
struct Tally {
  std::atomic<int64_t> calls{0}, in_inference_mode{0};
  void add(bool may_infer) {
    (may_infer && c10::InferenceMode::is_enabled() ? in_inference_mode : calls).fetch_add(1, std::memory_order_relaxed);
  }
  int64_t total() const { return calls.load() + in_inference_mode.load(); }
  const int64_t number = next++;  // in the order in which reasons first came up
  static inline std::atomic<int64_t> next{0};
};

struct Plan {
  enum Kind { native, instead, steps, python } kind = python;
  c10::SmallVector<int64_t, 16> words;
  uint64_t hash = 0;
  Tally* tally = nullptr;
  std::optional<c10::OperatorHandle> operator_;  // instead
  std::unique_ptr<Steps> launched;               // steps
  PyObject* callable = nullptr;                  // python, steps
  bool whole = true;  // counts, and runs inside; not so a Gradient, whose call counts where it goes on below autograd

  ~Plan() {
    if (callable && Py_IsInitialized()) {
      pybind11::gil_scoped_acquire gil;
      Py_DECREF(callable);
    }
  }
};

// An open-addressed table of plans that only grows; readers need no lock.
struct Table {
  explicit Table(size_t capacity) : mask(capacity - 1), slots(new std::atomic<Plan*>[capacity]) {
    for (size_t i = 0; i < capacity; i++) slots[i].store(nullptr, std::memory_order_relaxed);
  }
  Plan* find(const Signature& s, uint64_t hash) const {
    for (size_t i = hash & mask;; i = (i + 1) & mask) {
      Plan* p = slots[i].load(std::memory_order_acquire);
      if (!p) return nullptr;
      if (p->hash == hash && same(p->words, s.words)) return p;
    }
  }
  void insert(Plan* p) {
    size_t i = p->hash & mask;
    while (slots[i].load(std::memory_order_relaxed)) i = (i + 1) & mask;
    slots[i].store(p, std::memory_order_release);
  }
  const size_t mask;
  std::unique_ptr<std::atomic<Plan*>[]> slots;

 private:
  static bool same(c10::ArrayRef<int64_t> a, c10::ArrayRef<int64_t> b) {
    if (a.size() != b.size()) return false;
    int64_t differs = 0;
    for (size_t i = 0; i < a.size(); i++) differs |= a[i] ^ b[i];
    return !differs;
  }
};

constexpr size_t most_plans = 4096;  // a table that has grown to this starts anew

inline std::mutex& writing() {  // of what changes tables; renewed in a forked child
  static auto* mutex = new std::mutex;
  return *mutex;
}

// How deep a thread is in sections (below). A thread that ends leaves its mark to the next one that starts.
using Mark = std::atomic<int64_t>;
inline std::vector<Mark*>& marks() {  // all, under writing()
  static auto* all = new std::vector<Mark*>;
  return *all;
}
inline OPGRAFT_THREAD Mark* mine = nullptr;
// Linux can make every thread of the process pass a barrier, so that whoever frees pays for it and not whoever calls.
#ifdef __linux__
inline bool ask_for_barriers() { return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0; }
inline bool barrier_everywhere() { return syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0; }
#else
inline bool ask_for_barriers() { return false; }
inline bool barrier_everywhere() { return false; }
#endif
inline bool light_sections = ask_for_barriers();
Mark& new_mark();  // module.cpp
inline Mark& my_mark() { return C10_LIKELY(mine != nullptr) ? *mine : new_mark(); }
inline bool any_reader() {
  if (light_sections && !barrier_everywhere()) return true;
  for (auto* mark : marks())
    if (mark->load() != 0) return true;
  return false;
}

struct Site;

// One registration's share of a site: its counts, its planners in Python, its plans.
struct Live : std::enable_shared_from_this<Live> {
  Site& site;
  pybind11::object planner;    // arguments -> a reason for native, or what runs
  pybind11::object recorder;   // at the autograd key: the same for a call whose gradient is kept; None if there is none to keep
  pybind11::object uncertain;  // at the autograd key: runs calls that no plan serves (key set, arguments)
  const bool records;
  PyObject* counter;  // the user's dictionary, or nullptr
  Tally own;
  std::atomic<Table*> table{new Table(64)};

  Live(Site& site, pybind11::object planner, pybind11::object recorder, pybind11::object uncertain, pybind11::object counter)
      : site(site), planner(std::move(planner)), recorder(std::move(recorder)), uncertain(std::move(uncertain)),
        records(!this->recorder.is_none()), counter(counter.is_none() ? nullptr : counter.release().ptr()) {}
  ~Live() {
    delete table.load();
    pybind11::gil_scoped_acquire gil;
    Py_XDECREF(counter);
    planner = recorder = uncertain = pybind11::object();
  }

  inline void count(Tally& tally);
  // counter["n"] += 1: an ordinary dictionary has no way to ask us when it is read, so it is written at each call, under the GIL.
  void count_for_user() {
    pybind11::gil_scoped_acquire gil;
    auto dict = pybind11::reinterpret_borrow<pybind11::dict>(counter);
    dict["n"] = pybind11::object(dict["n"]) + pybind11::int_(1);
  }
  Tally& handed_for(const std::string& reason) {
    std::lock_guard<std::mutex> lock(writing());
    auto& found = handed_[reason];
    if (!found) found = std::make_unique<Tally>();
    return *found;
  }
  std::pair<int64_t, int64_t> hits() {  // all, and those in inference mode
    std::lock_guard<std::mutex> lock(writing());
    int64_t all = own.total(), inference = own.in_inference_mode.load();
    for (auto& [reason, tally] : handed_) {
      all += tally->total();
      inference += tally->in_inference_mode.load();
    }
    return {all, inference};
  }
  std::vector<std::tuple<int64_t, std::string, int64_t>> handed() {  // number, reason, calls
    std::lock_guard<std::mutex> lock(writing());
    std::vector<std::tuple<int64_t, std::string, int64_t>> result;
    for (auto& [reason, tally] : handed_)
      if (auto calls = tally->total()) result.emplace_back(tally->number, reason, calls);
    return result;
  }
  size_t plans() {
    std::lock_guard<std::mutex> lock(writing());
    return plans_.size();
  }
  void remember(std::unique_ptr<Plan> plan, const Signature& signature);
  // Leaves its plans behind, for whoever is still among them.
  std::shared_ptr<void> forget() {
    std::lock_guard<std::mutex> lock(writing());
    return take(64);
  }

 private:
  struct Old {
    std::unique_ptr<Table> table;
    std::vector<std::unique_ptr<Plan>> plans;
  };
  std::shared_ptr<Old> take(size_t capacity) {
    auto old = std::make_shared<Old>();
    old->table.reset(table.exchange(new Table(capacity)));
    old->plans.swap(plans_);
    return old;
  }

  std::unordered_map<std::string, std::unique_ptr<Tally>> handed_;
  std::vector<std::unique_ptr<Plan>> plans_;
};

// An operator at a dispatch key over one native kernel. Sites are never freed, so a thread that read the dispatcher's table just before
// a removal still finds one, without a registration, and passes on to native.
struct Site {
  enum Role { backend, autograd, formula };  // formula: always the native kernel, which is PyTorch's own derivative
  c10::OperatorHandle op;
  c10::DispatchKey key, backend_key;
  Role role;
  c10::KernelFunction native;
  std::vector<bool> written;  // by position: arguments that the operator writes to
  std::atomic<Live*> live{nullptr};
  std::shared_ptr<Live> current;
  std::optional<c10::RegistrationHandleRAII> registration;
  c10::KernelFunction function;  // what the dispatcher is given

  Site(c10::OperatorHandle op, c10::DispatchKey key, Role role, const c10::KernelFunction& native)
      : op(std::move(op)), key(key), backend_key(c10::toRuntimePerBackendFunctionalityKey(c10::DispatchKey::Dense, c10::toBackendComponent(key))),
        role(role), native(native) {
    for (const auto& argument : this->op.schema().arguments())
      written.push_back(argument.alias_info() && argument.alias_info()->isWrite());
  }

  void retire(std::shared_ptr<void> what) {
    std::lock_guard<std::mutex> lock(writing());
    retired_.push_back(std::move(what));
  }
  // What was retired, if no thread is inside: whoever comes later reads what has replaced it. The caller drops it, without the lock.
  std::vector<std::shared_ptr<void>> sweep() {
    std::lock_guard<std::mutex> lock(writing());
    if (any_reader()) return {};
    return std::exchange(retired_, {});
  }

 private:
  std::vector<std::shared_ptr<void>> retired_;
};

// While one exists, nothing that was retired is freed. Only this thread writes its mark, so threads do not wait for each other.
struct Section {
  explicit Section(Site& site) : mark_(my_mark()) {
    const auto deeper = mark_.load(std::memory_order_relaxed) + 1;
    if (C10_LIKELY(light_sections)) {
      mark_.store(deeper, std::memory_order_relaxed);
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      mark_.exchange(deeper);  // before what follows is read
    }
    live = site.live.load(std::memory_order_acquire);
  }
  void leave() {
    if (!left_) mark_.store(mark_.load(std::memory_order_relaxed) - 1, std::memory_order_release);
    left_ = true;
  }
  ~Section() { leave(); }
  Live* live;

 private:
  Mark& mark_;
  bool left_ = false;
};

inline void Live::count(Tally& tally) {
  tally.add(site.role != Site::autograd);  // inference mode passes by the autograd key
  if (C10_UNLIKELY(counter != nullptr)) count_for_user();
}

inline void Live::remember(std::unique_ptr<Plan> plan, const Signature& signature) {
  plan->words.assign(signature.words.begin(), signature.words.end());
  plan->hash = signature.hash();
  std::shared_ptr<void> old;
  {
    std::lock_guard<std::mutex> lock(writing());
    Table* now = table.load();
    if (now->find(signature, plan->hash)) return;  // another thread was first
    if (plans_.size() >= most_plans) {
      old = take(64);
    } else if (2 * (plans_.size() + 1) > now->mask) {
      auto larger = std::make_unique<Table>(2 * (now->mask + 1));
      for (auto& p : plans_) larger->insert(p.get());
      old = std::shared_ptr<Table>(table.exchange(larger.release()));
    }
    table.load()->insert(plan.get());
    plans_.push_back(std::move(plan));
  }
  if (old) {
    site.retire(std::move(old));
    site.sweep();
  }
}

}  // namespace opgraft
