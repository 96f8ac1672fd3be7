// Sparse tensors (COO) of the card: two dense ones each, which are lent to the CPU's kernels as any other.
#pragma once

#include <ATen/SparseTensorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/SparseTensorUtils.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <torch/library.h>

namespace card {

using at::Tensor;

inline bool is_sparse(const Tensor& tensor) { return tensor.defined() && tensor.layout() == c10::kSparse; }

// A sparse tensor of these indices and values, where they lie; like this one in everything else.
inline Tensor sparse_over(const Tensor& like, const Tensor& indices, const Tensor& values) {
  const auto* impl = at::sparse::get_sparse_impl(like);
  return at::native::new_with_dims_and_tensor_sparse_symint(
      impl->sparse_dim(), impl->dense_dim(), like.sym_sizes(), indices, values, values.scalar_type(), c10::kSparse,
      values.device(), false, impl->coalesced());
}

// Have a sparse tensor be as another is: of its indices and values.
inline void become(const Tensor& tensor, const Tensor& other) {
  auto* impl = at::sparse::get_sparse_impl(tensor);
  const auto* made = at::sparse::get_sparse_impl(other);
  impl->raw_resize_(made->sparse_dim(), made->dense_dim(), other.sizes());
  impl->set_indices_and_values_unsafe(made->indices(), made->values());
  impl->set_coalesced(made->coalesced());
}

// What asks for the parts of one, or makes one of them, needs none lent.
inline void register_parts(torch::Library& m) {
  m.impl("_sparse_coo_tensor_with_dims_and_tensors", &at::native::new_with_dims_and_tensor_sparse_symint);
  m.impl("_indices", &at::native::_indices_sparse);
  m.impl("_values", &at::native::_values_sparse);
  m.impl("_nnz", &at::native::_nnz_sparse);
  m.impl("sparse_dim", &at::native::sparse_dim_sparse);
  m.impl("dense_dim", &at::native::dense_dim_sparse);
  m.impl("is_coalesced", &at::native::is_coalesced_sparse);
  m.impl("_coalesced_", &at::native::_coalesced_sparse_);
}

}  // namespace card
