// A card for tests: PyTorch's device PrivateUse1 with finite memory that processes share, and streams that are busy.
// See tests/device/README.md.
#include "cells.h"

#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <torch/library.h>

namespace card {
namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return !cards().empty(); }
  c10::DeviceIndex deviceCount() const override { return Guard().deviceCount(); }
  bool hasPrimaryContext(c10::DeviceIndex index) const override {
    return index >= 0 && index < deviceCount() && cards()[static_cast<size_t>(index)]->has_context();
  }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(c10::DeviceIndex index) const override { Guard().setDevice({kType, index}); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const c10::DeviceIndex before = current_device;
    if (index >= 0) setCurrentDevice(index);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  bool isPinnedPtr(const void* at) const override { return Pinned::all().has(at); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &Pinned::all(); }
  c10::Device getDeviceFromPtr(void*) const override { return {kType, current_device}; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return generator_of(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<Generator>(index < 0 ? current_device : index);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override { resize_storage(storage, size); }
};

// Called before any of the card's memory is used: the library is loaded for it.
const bool is_registered = [] {
  static Hooks hooks;
  c10::SetAllocator(kType, &Memory::all());
  at::setHostAllocator(kType, &Pinned::all());
  at::RegisterPrivateUse1HooksInterface(&hooks);
  return true;
}();

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

c10::DeviceIndex narrow(int64_t index) { return static_cast<c10::DeviceIndex>(index); }

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&call_cpu>()); }

// Of these a device that is unknown to torch has kernels that only raise.
constexpr const char* kRaising[] = {"convolution", "convolution_backward"};

// An operator with a kernel of the CPU's and a composition of others would be composed here, and differ in bits.
bool is_composed(const c10::OperatorHandle& op, c10::DispatchKey cpu, c10::DispatchKey card) {
  using c10::DispatchKey;
  if (!op.hasKernelForDispatchKey(cpu) || op.hasKernelForDispatchKey(card)) return false;
  for (DispatchKey key : {DispatchKey::CompositeExplicitAutograd, DispatchKey::CompositeImplicitAutograd,
                          DispatchKey::CompositeExplicitAutogradNonFunctional})
    if (op.hasKernelForDispatchKey(key)) return true;
  return false;
}

template <c10::BoxedKernel::BoxedKernelFunction* call>
void take_composed(torch::Library& m, c10::DispatchKey cpu, c10::DispatchKey card) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (name.name.rfind("aten::", 0) != 0 || !op || !op->hasSchema() || !is_composed(*op, cpu, card)) continue;
    const std::string overload = name.overload_name.empty() ? "" : "." + name.overload_name;
    m.impl((name.name.substr(6) + overload).c_str(), torch::CppFunction::makeFromBoxedFunction<call>());
  }
}

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&call_sparse_cpu>()); }
TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  register_parts(m);
  take_composed<&call_sparse_cpu>(m, c10::DispatchKey::SparseCPU, c10::DispatchKey::SparsePrivateUse1);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Storage_storage_offset", &set_storage_at);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("record_stream", [](Tensor&, at::Stream) {});
  m.impl("resize_", [](const Tensor& tensor, c10::IntArrayRef size, std::optional<c10::MemoryFormat> format)
                     -> const Tensor& {
    return at::native::resize_(tensor, size, format);
  });
  m.impl("view", [](const Tensor& tensor, c10::IntArrayRef size) { return at::native::view(tensor, size); });
  m.impl("as_strided", [](const Tensor& tensor, c10::IntArrayRef size, c10::IntArrayRef stride,
                          std::optional<int64_t> offset) {
    return at::native::as_strided_tensorimpl(tensor, size, stride, offset);
  });
  m.impl("_reshape_alias", [](const Tensor& tensor, c10::IntArrayRef size, c10::IntArrayRef stride) {
    return at::native::_reshape_alias(tensor, size, stride);
  });
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", &gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
  m.impl("_scaled_dot_product_fused_attention_overrideable", &attention);
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", &attention_backward);
  for (const char* name : kRaising) m.impl(name, torch::CppFunction::makeFromBoxedFunction<&call_cpu>());
  take_composed<&call_cpu>(m, c10::DispatchKey::CPU, c10::DispatchKey::PrivateUse1);
}

#define IN_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define IN_SINGLE_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(IN_LOWER_PRECISION)
  AT_FORALL_FP32(IN_SINGLE_PRECISION)
}

// What tests/device/backend.py makes torch.card of.
TORCH_LIBRARY(gandiva_card, m) {
  m.def("device_count() -> int", [] { return static_cast<int64_t>(cards().size()); });
  m.def("is_initialized() -> bool", [] {
    return std::any_of(cards().begin(), cards().end(), [](auto& card) { return card->has_context(); });
  });
  m.def("is_forked() -> bool", [] { return is_forked(); });
  m.def("memory_info(int device) -> (int, int)", [](int64_t device) {
    const auto [free, total] = Memory::all().getMemoryInfo(narrow(device));
    return std::make_tuple(static_cast<int64_t>(free), static_cast<int64_t>(total));
  });
  m.def("snapshot(int device) -> int[]", [](int64_t device) { return Memory::all().snapshot(narrow(device)); });
  m.def("use_pool(int pool) -> ()", [](int64_t pool) { Memory::all().use_pool(pool); });
  m.def("fall_back_on(int pool) -> ()", [](int64_t pool) { Memory::all().fall_back_on(pool); });
  m.def("bound(int device, int most) -> ()", [](int64_t device, int64_t most) {
    Memory::all().bound(narrow(device), most);
  });
  m.def("seed(int device, int seed) -> ()", [](int64_t device, int64_t seed) {
    generator_of(narrow(device)).set_current_seed(static_cast<uint64_t>(seed));
  });
  m.def("get_rng_state(int device) -> Tensor", [](int64_t device) { return generator_of(narrow(device)).get_state(); });
  m.def("set_rng_state(int device, Tensor state) -> ()", [](int64_t device, const Tensor& state) {
    generator_of(narrow(device)).set_state(state);
  });
  // torch.accelerator's waits with the GIL held, so that nothing in Python could give it up.
  m.def("synchronize(int device) -> ()", [](int64_t device) { Guard().synchronizeDevice(narrow(device)); });
  m.def("queue_work(int device, float seconds) -> ()", [](int64_t device, double seconds) {
    Streams::all().queue(narrow(device), Nanoseconds(static_cast<int64_t>(seconds * 1e9)));
  });
  m.def("set_pace(float kernel_s, int bytes_per_s) -> ()", [](double kernel_s, int64_t bytes_per_s) {
    Streams::all().kernel_ns = static_cast<int64_t>(kernel_s * 1e9);
    Streams::all().bytes_per_s = bytes_per_s;
  });
}

}  // namespace
}  // namespace card
