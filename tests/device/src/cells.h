// Kernels that torch asks of a device in one piece, and that its CPU has in several: recurrent cells, attention.
#pragma once

#include "kernels.h"

#include <ATen/Functions.h>
#include <ATen/SDPBackend.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/transformers/attention.h>

#include <array>
#include <tuple>

namespace card {

using Maybe = std::optional<Tensor>;

inline bool is_given(const Maybe& tensor) { return tensor && tensor->defined(); }
inline Tensor as_cpu_or(const Maybe& tensor, const Tensor& otherwise) {
  return is_given(tensor) ? as_cpu(*tensor) : at::zeros_like(otherwise);
}
inline Tensor biased(const Tensor& gates, const Maybe& bias) {
  return is_given(bias) ? as_cpu(gates) + as_cpu(*bias) : as_cpu(gates);
}
// What comes through a sigmoid, or a tanh, with this value.
inline Tensor sigmoid_slope(const Tensor& value) { return value * (1 - value); }
inline Tensor tanh_slope(const Tensor& value) { return 1 - value * value; }

// A kernel's place: below autograd, in the order of its device's stream.
class Kernel {
 public:
  explicit Kernel(const Tensor& like) : device_(like.device()), guard_(device_) {
    Streams::all().queue_kernel(device_.index());
  }
  Tensor made(const Tensor& cpu) const { return cpu.defined() ? moved_in(cpu, device_) : cpu; }

 private:
  c10::Device device_;
  c10::DeviceGuard guard_;
  at::AutoDispatchBelowADInplaceOrView below_;
};

inline std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& from_input, const Tensor& from_hidden,
                                                    const Tensor& cell, const Maybe& input_bias,
                                                    const Maybe& hidden_bias) {
  const Kernel kernel(from_input);
  const auto gates = (biased(from_input, input_bias) + biased(from_hidden, hidden_bias)).chunk(4, 1);
  const Tensor in = gates[0].sigmoid(), forget = gates[1].sigmoid(), fresh = gates[2].tanh(), out = gates[3].sigmoid();
  const Tensor next = forget * as_cpu(cell) + in * fresh;
  return {kernel.made(out * next.tanh()), kernel.made(next), kernel.made(at::cat({in, forget, fresh, out}, 1))};
}
inline std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const Maybe& grad_hidden, const Maybe& grad_cell,
                                                             const Tensor& cell, const Tensor& next,
                                                             const Tensor& kept, bool has_bias) {
  const Kernel kernel(kept);
  const auto gates = as_cpu(kept).chunk(4, 1);
  const Tensor &in = gates[0], &forget = gates[1], &fresh = gates[2], &out = gates[3];
  const Tensor shown = as_cpu(next).tanh(), hidden = as_cpu_or(grad_hidden, shown);
  const Tensor through = as_cpu_or(grad_cell, shown) + hidden * out * tanh_slope(shown);
  const Tensor all = at::cat({through * fresh * sigmoid_slope(in), through * as_cpu(cell) * sigmoid_slope(forget),
                              through * in * tanh_slope(fresh), hidden * shown * sigmoid_slope(out)}, 1);
  return {kernel.made(all), kernel.made(through * forget), kernel.made(has_bias ? all.sum(0) : Tensor())};
}

inline std::tuple<Tensor, Tensor> gru_cell(const Tensor& from_input, const Tensor& from_hidden, const Tensor& hidden,
                                           const Maybe& input_bias, const Maybe& hidden_bias) {
  const Kernel kernel(from_input);
  const auto inputs = biased(from_input, input_bias).chunk(3, 1), hiddens = biased(from_hidden, hidden_bias).chunk(3, 1);
  const Tensor reset = (inputs[0] + hiddens[0]).sigmoid(), keep = (inputs[1] + hiddens[1]).sigmoid();
  const Tensor fresh = (inputs[2] + reset * hiddens[2]).tanh(), before = as_cpu(hidden);
  const Tensor kept = at::cat({reset, keep, fresh, before, hiddens[2]}, 1);
  return {kernel.made(fresh + keep * (before - fresh)), kernel.made(kept)};
}
inline std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hidden,
                                                                            const Tensor& kept, bool has_bias) {
  const Kernel kernel(kept);
  const auto parts = as_cpu(kept).chunk(5, 1);
  const Tensor &reset = parts[0], &keep = parts[1], &fresh = parts[2], &before = parts[3], &of_hidden = parts[4];
  const Tensor grad = as_cpu(grad_hidden);
  const Tensor to_keep = grad * (before - fresh) * sigmoid_slope(keep);
  const Tensor to_fresh = grad * (1 - keep) * tanh_slope(fresh);
  const Tensor to_reset = to_fresh * of_hidden * sigmoid_slope(reset);
  const Tensor inputs = at::cat({to_reset, to_keep, to_fresh}, 1);
  const Tensor hiddens = at::cat({to_reset, to_keep, to_fresh * reset}, 1);
  return {kernel.made(inputs), kernel.made(hiddens), kernel.made(grad * keep),
          kernel.made(has_bias ? inputs.sum(0) : Tensor()), kernel.made(has_bias ? hiddens.sum(0) : Tensor())};
}

// The way that the CPU would go: its flash attention, or one by one.
inline int64_t choose_attention(const Tensor& query, const Tensor& key, const Tensor& value, const Maybe& mask,
                                double dropout, bool is_causal, std::optional<double> scale, bool is_grouped) {
  const bool is_learnt = is_given(mask) && mask->requires_grad();
  const Maybe bias = is_given(mask) ? Maybe(as_cpu(*mask)) : std::nullopt;
  const int64_t chosen = at::_fused_sdp_choice(as_cpu(query), as_cpu(key), as_cpu(value), bias, dropout, is_causal,
                                               scale, is_grouped);
  const bool is_flash = chosen == static_cast<int64_t>(at::SDPBackend::flash_attention);
  return static_cast<int64_t>(is_flash && !is_learnt ? at::SDPBackend::overrideable : at::SDPBackend::math);
}
inline std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> attention(
    const Tensor& query, const Tensor& key, const Tensor& value, const Maybe& mask, double dropout, bool is_causal,
    bool, std::optional<double> scale) {
  const Kernel kernel(query);
  const Maybe bias = is_given(mask) ? Maybe(as_cpu(*mask)) : std::nullopt;
  const auto [out, sums] = at::_scaled_dot_product_flash_attention_for_cpu(as_cpu(query), as_cpu(key), as_cpu(value),
                                                                           dropout, is_causal, bias, scale);
  return {kernel.made(out), kernel.made(sums), {}, {}, query.size(2), key.size(2), {}, {}, {}};
}
inline std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& mask,
    std::array<bool, 4>, const Tensor& out, const Tensor& sums, const Tensor&, const Tensor&, c10::SymInt, c10::SymInt,
    double dropout, bool is_causal, const Tensor&, const Tensor&, std::optional<double> scale) {
  const Kernel kernel(query);
  const Maybe bias = mask.defined() ? Maybe(as_cpu(mask)) : std::nullopt;
  const auto [to_query, to_key, to_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      as_cpu(grad), as_cpu(query), as_cpu(key), as_cpu(value), as_cpu(out), as_cpu(sums), dropout, is_causal, bias,
      scale);
  return {kernel.made(to_query), kernel.made(to_key), kernel.made(to_value), {}};
}

}  // namespace card

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &card::choose_attention)
}
