// opgraft's call path, as Python sees it: sites, registrations, counts.
#include <c10/util/strides.h>
#include <pthread.h>
#include <torch/csrc/Dtype.h>
#include <torch/extension.h>

#include "entry.h"

namespace opgraft {
namespace py = pybind11;

static size_t used_sites = 0;

static bool same_kernel(const c10::KernelFunction& a, const c10::KernelFunction& b) {
  const auto &boxed_a = a.*member(BoxedKernelOf()), &boxed_b = b.*member(BoxedKernelOf());
  return (boxed_a.*member(FunctorOf())).get() == (boxed_b.*member(FunctorOf())).get() && boxed_a.*member(BoxedFunctionOf()) == boxed_b.*member(BoxedFunctionOf()) &&
         a.*member(UnboxedOf()) == b.*member(UnboxedOf()) && a.*member(SymUnboxedOf()) == b.*member(SymUnboxedOf());
}

// The site of an operator at a key over the kernel that is there now; made at the first request.
static Site& site_of(const c10::OperatorHandle& op, c10::DispatchKey key, Site::Role role, const c10::KernelFunction& native) {
  for (size_t i = 0; i < used_sites; i++) {
    Site& site = *sites[i];
    if (site.op == op && site.key == key && site.role == role && same_kernel(site.native, native)) return site;
  }
  TORCH_CHECK(used_sites < most_sites, "opgraft: more than ", most_sites, " kernels were overridden in this process");
  static const auto boxed = boxed_entries(std::make_index_sequence<most_sites>());
  auto* site = new Site(op, key, role, native);
  site->function = native;
  site->function.*member(BoxedKernelOf()).*member(BoxedFunctionOf()) = boxed[used_sites];
  site->function.*member(UnboxedOf()) = nullptr;
  site->function.*member(SymUnboxedOf()) = nullptr;
  sites[used_sites] = site;
  serve_typed(*site);
  used_sites++;
  return *site;
}

class Quiet : public c10::WarningHandler {  // "Overriding a previously registered kernel" is what the user asked for
  void process(const c10::Warning&) override {}
};

// One kernel of a registration in the dispatcher.
class Installed {
 public:
  Installed(const std::string& name, const std::string& overload, const std::string& key, const std::string& role, py::object planner,
            py::object recorder, py::object uncertain, py::object counter, const std::string& native_key) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
    const auto dispatch_key = c10::parseDispatchKey(key);
    const auto as = role == "backend" ? Site::backend : role == "autograd" ? Site::autograd : Site::formula;
    // A copy, which keeps what it calls alive whoever removes it.
    const c10::KernelFunction native(entry_of(op).lookup(c10::DispatchKeySet(c10::parseDispatchKey(native_key))));
    site_ = &site_of(op, dispatch_key, as, native);
    live_ = std::make_shared<Live>(*site_, std::move(planner), std::move(recorder), std::move(uncertain), std::move(counter));
  }
  bool typed() const { return site_->function.isValidUnboxed() || site_->function.isValidSymUnboxed(); }
  void install(const std::string& debug) {
    TORCH_CHECK(!site_->registration, site_->op.operator_name(), " at ", site_->key, " is replaced by opgraft already");
    Quiet quiet;
    const c10::WarningUtils::WarningHandlerGuard guard(&quiet);
    site_->registration.emplace(
        c10::Dispatcher::singleton().registerImpl(site_->op.operator_name(), site_->key, site_->function, std::nullopt, nullptr, debug));
    installed_ = true;
  }
  void start() {
    site_->current = live_;
    site_->live.store(live_.get());
  }
  // Calls go to native from here on; plans are freed once no thread is inside.
  void stop() {
    if (site_->live.load() == live_.get()) {
      site_->live.store(nullptr);
      site_->retire(std::exchange(site_->current, nullptr));
      site_->retire(live_->forget());
    }
    site_->sweep();
  }
  void uninstall() {
    if (installed_) site_->registration.reset();
    installed_ = false;
  }
  void count() { live_->count(live_->own); }
  void hand_over(const std::string& reason) { live_->count(live_->handed_for(reason)); }
  int64_t hits() const { return live_->hits().first; }
  int64_t inference_hits() const { return live_->hits().second; }
  auto handed() const { return live_->handed(); }
  size_t plans() const { return live_->plans(); }

 private:
  Site* site_;
  std::shared_ptr<Live> live_;
  bool installed_ = false;
};

static at::ScalarType dtype_of(py::handle h) { return reinterpret_cast<THPDtype*>(h.ptr())->scalar_type; }

std::unique_ptr<Steps> steps_from_python(const Site& site, py::handle direct) {
  auto steps = std::unique_ptr<Steps>(new Steps{direct.attr("device").cast<c10::Device>()});
  if (py::len(direct.attr("launches"))) {
    try {
      stream_of(c10::impl::VirtualGuardImpl(steps->device.type()), steps->device);
    } catch (const c10::Error&) {
      return nullptr;
    }
  }
  for (py::handle out : direct.attr("outputs")) {
    Output o{{}, {}, out.attr("span").cast<int64_t>(), dtype_of(out.attr("dtype")), out.attr("device").cast<c10::Device>(),
             out.attr("primitive").cast<bool>()};
    const auto sizes = out.attr("size").cast<std::vector<int64_t>>(), strides = out.attr("stride").cast<std::vector<int64_t>>();
    o.sizes.assign(sizes.begin(), sizes.end());
    o.strides.assign(strides.begin(), strides.end());
    const auto dense = c10::contiguous_strides(sizes);
    o.row_major = c10::IntArrayRef(dense).equals(strides);
    steps->outputs.push_back(std::move(o));
  }
  for (py::handle given : direct.attr("launches")) {
    Launch launch{given.attr("name").cast<std::string>(), reinterpret_cast<void*>(given.attr("function").cast<uintptr_t>())};
    const auto grid = given.attr("grid").cast<std::array<unsigned, 3>>();
    std::copy(grid.begin(), grid.end(), launch.grid);
    launch.threads = given.attr("threads").cast<unsigned>();
    launch.shared = given.attr("shared").cast<unsigned>();
    for (py::handle p : given.attr("parameters")) {
      if (py::isinstance<py::bytes>(p)) {
        Parameter number{0, false, false, 0};
        const auto bytes = p.cast<std::string>();
        std::memcpy(&number.number, bytes.data(), std::min(bytes.size(), sizeof number.number));
        launch.parameters.push_back(number);
      } else {
        const int operand = p.cast<int>();
        launch.parameters.push_back({operand, true, operand >= 0 && site.written.at(operand), 0});
      }
    }
    steps->launches.push_back(std::move(launch));
  }
  steps->result = direct.attr("result").cast<int>();
  steps->launch = reinterpret_cast<LaunchFunction>(direct.attr("launcher").cast<uintptr_t>());
  const py::object hooks = direct.attr("hooks");
  steps->hooks = hooks.is_none() ? nullptr : hooks.ptr();
  return steps;
}

static std::vector<Mark*>& free_marks() {
  static auto* all = new std::vector<Mark*>;
  return *all;
}

Mark& new_mark() {
  struct Returned {
    ~Returned() {
      std::lock_guard<std::mutex> lock(writing());
      if (mine) free_marks().push_back(std::exchange(mine, nullptr));
    }
  };
  static thread_local Returned when_the_thread_ends;
  (void)&when_the_thread_ends;
  std::lock_guard<std::mutex> lock(writing());
  if (free_marks().empty()) {
    marks().push_back(new Mark(0));
    mine = marks().back();
  } else {
    mine = free_marks().back();
    free_marks().pop_back();
  }
  return *mine;
}

static void in_forked_child() {
  new (&writing()) std::mutex;  // another thread may have held it
  if (light_sections) ask_for_barriers();
  for (auto* mark : marks())
    if (mark != mine) mark->store(0);  // its thread does not exist here
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  pthread_atfork(nullptr, nullptr, in_forked_child);
  py::class_<Installed>(m, "Installed")
      .def(py::init<const std::string&, const std::string&, const std::string&, const std::string&, py::object, py::object, py::object, py::object, const std::string&>())
      .def_property_readonly("typed", &Installed::typed)
      .def_property_readonly("hits", &Installed::hits)
      .def_property_readonly("inference_hits", &Installed::inference_hits)
      .def_property_readonly("handed", &Installed::handed)
      .def_property_readonly("plans", &Installed::plans)
      .def("install", &Installed::install)
      .def("start", &Installed::start)
      .def("stop", &Installed::stop)
      .def("uninstall", &Installed::uninstall)
      .def("count", &Installed::count)
      .def("hand_over", &Installed::hand_over);
  m.def("inside", [] { return inside; });
  m.def("set_inside", [](bool value) { return std::exchange(inside, value); });
  m.def("forced", [] { return forced; });
  m.def("set_forced", [](int64_t value) { return std::exchange(forced, value); });
  m.def("decide_anew", [](int by) { deciding_anew.fetch_add(by); });
}

}  // namespace opgraft
