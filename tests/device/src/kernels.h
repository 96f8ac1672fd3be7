// Kernels: the CPU's, run over the card's bytes where they lie, so that results are the CPU's to the last bit.
#pragma once

#include "memory.h"
#include "sparse.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>

#include <optional>

namespace card {

using at::Tensor;

inline bool is_ours(const Tensor& tensor) { return tensor.defined() && tensor.device().type() == kType; }
inline size_t reach_of(const Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(), tensor.storage_offset());
}

// A tensor of another storage, like this one in everything else.
inline Tensor over(const c10::Storage& storage, c10::DispatchKey key, const Tensor& like) {
  Tensor made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(key), like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return made;
}
// The card's bytes as memory of the CPU's; they stay the card's.
inline c10::Storage lent(const c10::Storage& storage) {
  at::DataPtr bytes(storage.mutable_data(), c10::DeviceType::CPU);
  return c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(bytes), nullptr, false);
}
inline Tensor as_cpu(const Tensor& tensor) {
  if (!is_ours(tensor)) return tensor;
  TORCH_CHECK(reach_of(tensor) <= tensor.storage().nbytes(),
              "card: an illegal memory access was encountered: this tensor's memory has been given back");
  return over(lent(tensor.storage()), c10::DispatchKey::CPU, tensor);
}

// What a kernel has made, as the card's; strides stay.
inline Tensor moved_in(const Tensor& made, c10::Device device) {
  Tensor there = at::empty_strided(made.sizes(), made.strides(), made.options().device(device));
  if (const size_t reach = reach_of(there)) std::memcpy(there.mutable_data_ptr(), made.const_data_ptr(), reach);
  return there;
}

// The device's own generator, which draws by the CPU's algorithm.
class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(c10::DeviceIndex index)
      : GeneratorImpl({kType, index}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}
  at::Generator inner = at::detail::createCPUGenerator();

  void set_current_seed(uint64_t seed) override { impl()->set_current_seed(seed); }
  uint64_t current_seed() const override { return impl()->current_seed(); }
  uint64_t seed() override { return impl()->seed(); }
  void set_offset(uint64_t offset) override { impl()->set_offset(offset); }
  uint64_t get_offset() const override { return impl()->get_offset(); }
  void set_state(const c10::TensorImpl& state) override { impl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return impl()->get_state(); }

 private:
  c10::GeneratorImpl* impl() const { return inner.unsafeGetGeneratorImpl(); }
  Generator* clone_impl() const override {
    auto* made = new Generator(device().index());
    made->inner = inner.clone();
    return made;
  }
};

inline at::Generator& generator_of(c10::DeviceIndex index) {
  static auto* all = new std::map<c10::DeviceIndex, at::Generator>;
  auto [it, is_new] = all->try_emplace(index < 0 ? current_device : index);
  if (is_new) it->second = at::make_generator<Generator>(it->first);
  return it->second;
}

// One call of an operator by the CPU's kernel: the card's tensors are lent to it, and what it returns is the card's.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::DispatchKey key)
      : op_(op), stack_(stack), key_(key), first_(stack->size() - op.schema().arguments().size()),
        given_(stack->begin() + static_cast<std::ptrdiff_t>(first_), stack->end()) {}

  void run() {
    const auto& arguments = op_.schema().arguments();
    for (size_t n = 0; n < arguments.size(); ++n) lend_argument(arguments[n], (*stack_)[first_ + n]);
    refuse_mixed();
    const c10::Device device(kType, device_ ? index_of(*device_) : current_device);
    for (size_t n = 0; n < arguments.size(); ++n) lend_generator(arguments[n], (*stack_)[first_ + n], device);
    op_.redispatchBoxed(c10::DispatchKeySet(key_), stack_);
    c10::DeviceGuard guard(device);
    const Moment done = Streams::all().queue_kernel(device.index());
    for (Loan& loan : loans_)
      if (loan.is_written) take_back(loan);
    const auto& returns = op_.schema().returns();
    for (size_t n = 0; n < returns.size(); ++n) give_result(returns[n], (*stack_)[first_ + n], device, done);
  }

 private:
  struct Loan {
    Tensor real, shown;
    bool is_written;
  };

  void lend_argument(const c10::Argument& argument, c10::IValue& value) {
    const bool is_written = argument.alias_info() && argument.alias_info()->isWrite();
    if (value.isTensor()) {
      value = lend(value.toTensor(), is_written);
    } else if (value.isTensorList()) {
      c10::List<Tensor> shown;
      for (const Tensor& tensor : value.toTensorVector()) shown.push_back(lend(tensor, is_written));
      value = std::move(shown);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> shown;
      for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector()) {
        if (tensor && is_ours(*tensor)) shown.push_back(lend(*tensor, false));
        else shown.push_back(tensor);  // indices may be on the host
      }
      value = std::move(shown);
    } else if (value.isDevice() && value.toDevice().type() == kType) {
      if (!device_) device_ = value.toDevice();
      value = c10::Device(c10::DeviceType::CPU);
    }
  }

  Tensor lend(const Tensor& real, bool is_written) {
    if (!is_ours(real)) {
      if (real.defined() && real.dim() > 0) foreign_ = real;
      return real;
    }
    device_ = real.device();
    is_any_ = true;
    Tensor shown;
    if (is_sparse(real)) {
      const auto* impl = at::sparse::get_sparse_impl(real);
      shown = sparse_over(real, lend(impl->indices(), false), lend(impl->values(), false));
    } else if (is_written && real.numel() == 0) {
      shown = at::empty(real.sizes(), real.options().device(c10::kCPU));  // it is there to be resized
    } else {
      as_cpu(real);  // checks that its memory is there
      auto& storage = lent_[real.storage().unsafeGetStorageImpl()];
      if (!storage.real) storage = {real.storage(), lent(real.storage())};
      shown = over(storage.shown, c10::DispatchKey::CPU, real);
    }
    loans_.push_back({real, shown, is_written});
    return shown;
  }

  void refuse_mixed() const {
    TORCH_CHECK(!is_any_ || !foreign_ || op_.schema().name().find("index") != std::string::npos,
                "Expected all tensors to be on the same device, but found at least two devices, ", *device_, " and ",
                foreign_->device(), "! (", op_.schema().name(), ")");
  }

  static void lend_generator(const c10::Argument& argument, c10::IValue& value, c10::Device device) {
    const c10::Type* type = argument.real_type().get();
    if (const auto* optional = type->castRaw<c10::OptionalType>()) type = optional->getElementType().get();
    if (type->kind() != c10::TypeKind::GeneratorType) return;
    const at::Generator generator = value.isNone() ? generator_of(device.index()) : value.toGenerator();
    if (auto* ours = dynamic_cast<Generator*>(generator.unsafeGetGeneratorImpl())) value = ours->inner;
  }

  // What was written to is as the kernel left it: its bytes are in place, unless it has another size now.
  void take_back(const Loan& loan) const {
    const Tensor &real = loan.real, &shown = loan.shown;
    if (is_sparse(real)) return become(real, sparse_ours(shown, real.device()));
    auto* impl = real.unsafeGetTensorImpl();
    if (shown.storage().data() == real.storage().data()) {
      if (shown.sizes() != real.sizes() || shown.strides() != real.strides())
        impl->set_sizes_and_strides(shown.sizes(), shown.strides(), shown.storage_offset());
    } else if (shown.numel() > 0) {
      at::native::resize_(real, shown.sizes(), std::nullopt);
      as_cpu(real).copy_(shown);
    }
  }

  void give_result(const c10::Argument& result, c10::IValue& value, c10::Device device, Moment done) {
    if (value.isTensor()) {
      value = ours(value.toTensor(), device);
    } else if (value.isTensorList()) {
      c10::List<Tensor> all;
      for (const Tensor& tensor : value.toTensorVector()) all.push_back(ours(tensor, device));
      value = std::move(all);
    } else if (result.type()->kind() != c10::TypeKind::NoneType) {
      Streams::all().wait(done);  // the host sees a value
    }
  }
  Tensor ours(const Tensor& shown, c10::Device device) const {
    if (!shown.defined() || !shown.device().is_cpu()) return shown;
    for (const Loan& loan : loans_)
      if (loan.shown.is_same(shown)) return loan.real;
    if (is_sparse(shown)) return sparse_ours(shown, device);
    if (shown.layout() != c10::kStrided) return shown;
    for (const auto& [storage, both] : lent_)
      if (both.shown.unsafeGetStorageImpl() == shown.storage().unsafeGetStorageImpl())
        return over(*both.real, c10::DispatchKey::PrivateUse1, shown);
    return moved_in(shown, device);
  }
  Tensor sparse_ours(const Tensor& shown, c10::Device device) const {
    const auto* impl = at::sparse::get_sparse_impl(shown);
    return sparse_over(shown, ours(impl->indices(), device), ours(impl->values(), device));
  }

  struct Both {
    std::optional<c10::Storage> real;
    c10::Storage shown;
  };

  const c10::OperatorHandle& op_;
  torch::jit::Stack* stack_;
  const c10::DispatchKey key_;
  const size_t first_;
  const std::vector<c10::IValue> given_;  // keeps alive what the call replaces
  std::vector<Loan> loans_;
  std::map<c10::StorageImpl*, Both> lent_;
  std::optional<c10::Device> device_;
  std::optional<Tensor> foreign_;
  bool is_any_ = false;
};

inline void call_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Call(op, stack, c10::DispatchKey::CPU).run();
}
inline void call_sparse_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Call(op, stack, c10::DispatchKey::SparseCPU).run();
}

inline Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                    std::optional<c10::Device> device, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  c10::DeviceGuard guard(c10::device_or_default(device));
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(size, &Memory::all(), keys, c10::dtype_or_default(dtype), format);
}
inline Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
                            std::optional<c10::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  c10::DeviceGuard guard(c10::device_or_default(device));
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(size, stride, &Memory::all(), keys, c10::dtype_or_default(dtype));
}

// Copies within the card are queued; those from and to the host are waited for unless the host's memory is pinned.
inline Tensor copy_from(const Tensor& source, const Tensor& target, bool is_queued) {
  const bool is_out = target.device().is_cpu(), is_in = source.device().is_cpu();
  const Tensor& there = is_out ? source : target;
  const Moment done = Streams::all().queue_copy(there.device().index(), there.nbytes());
  const void* host = is_out ? target.const_data_ptr() : is_in ? source.const_data_ptr() : nullptr;
  at::AutoDispatchBelowADInplaceOrView below;
  if (is_out && is_queued && Pinned::all().has(host)) {
    Tensor bytes = at::empty_like(target);
    bytes.copy_(as_cpu(source));
    Streams::all().land_later({done, target, bytes});
    return target;
  }
  if (host && !(is_queued && Pinned::all().has(host))) Streams::all().wait(done);
  as_cpu(target).copy_(as_cpu(source));
  return target;
}
inline Tensor copy_from_and_resize(const Tensor& source, const Tensor& target) {
  at::native::resize_(target, source.sizes(), std::nullopt);
  return copy_from(source, target, false);
}
inline at::Scalar local_scalar(const Tensor& tensor) {
  const c10::DeviceIndex device = tensor.device().index();
  Streams::all().wait(Streams::all().until(device, current_streams[device]));
  return at::_local_scalar_dense(as_cpu(tensor));
}

inline Tensor& set_storage_at(Tensor& tensor, at::Storage storage, int64_t offset, c10::IntArrayRef size,
                              c10::IntArrayRef stride) {
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  if (stride.data() == nullptr) {
    impl->set_storage_offset(offset);
    impl->set_sizes_contiguous(size);
  } else {
    impl->set_sizes_and_strides(size, stride, offset);
  }
  return tensor;
}
inline Tensor& set_storage(Tensor& tensor, at::Storage storage) {
  const auto size = static_cast<int64_t>(storage.nbytes() / tensor.itemsize());
  return set_storage_at(tensor, std::move(storage), 0, {size}, {});
}
inline Tensor& set_tensor(Tensor& tensor, const Tensor& source) {
  return set_storage_at(tensor, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

// Bytes that stay are copied, as CUDA's are.
inline void resize_storage(const c10::Storage& storage, size_t size) {
  auto* impl = storage.unsafeGetStorageImpl();
  TORCH_CHECK(impl->resizable(), "Trying to resize storage that is not resizable");
  c10::DeviceGuard guard(impl->device());
  at::DataPtr fresh = Memory::all().allocate(size);
  if (const size_t kept = std::min(size, impl->nbytes())) std::memcpy(fresh.get(), impl->data(), kept);
  impl->set_data_ptr_noswap(std::move(fresh));
  impl->set_nbytes(size);
}

}  // namespace card
