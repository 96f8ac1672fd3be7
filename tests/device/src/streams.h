// Streams by time: kernels run at once, and their stream counts as busy until a moment that tests can put off.
#pragma once

#include "card.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>

namespace card {

constexpr auto kType = c10::DeviceType::PrivateUse1;
using Clock = std::chrono::steady_clock;
using Moment = Clock::time_point;
using Nanoseconds = std::chrono::nanoseconds;

// This thread's device, and its stream on each.
inline thread_local c10::DeviceIndex current_device = 0;
inline thread_local std::map<c10::DeviceIndex, c10::StreamId> current_streams;

inline c10::DeviceIndex index_of(c10::Device device) {
  return device.index() < 0 ? current_device : device.index();
}

// A copy to pinned memory, which is seen there once it is due and something has waited for its stream.
struct Landing {
  Moment due;
  at::Tensor target, bytes;
};

class Streams {
 public:
  static Streams& all() {
    static auto* it = new Streams;
    return *it;
  }

  // What a kernel takes, and how many bytes are copied in a second; 0: no time at all.
  std::atomic<int64_t> kernel_ns{0}, bytes_per_s{0};

  // The current stream has so much more to do; returns when it will have done it.
  Moment queue(c10::DeviceIndex device, Nanoseconds work) {
    std::lock_guard<std::mutex> guard(lock_);
    Moment& until = until_[{device, current_streams[device]}];
    until = std::max(until, Clock::now()) + work;
    return until;
  }
  Moment queue_kernel(c10::DeviceIndex device) {
    const int64_t took = kernel_ns;
    return took ? queue(device, Nanoseconds(took)) : until(device, current_streams[device]);
  }
  Moment queue_copy(c10::DeviceIndex device, size_t bytes) {
    const int64_t rate = bytes_per_s;
    return queue(device, Nanoseconds(rate ? static_cast<int64_t>(1e9 * bytes / rate) : kernel_ns.load()));
  }
  Moment until(c10::DeviceIndex device, c10::StreamId stream) {
    std::lock_guard<std::mutex> guard(lock_);
    return until_[{device, stream}];
  }
  Moment until(c10::DeviceIndex device) {
    std::lock_guard<std::mutex> guard(lock_);
    Moment last;
    for (auto& [stream, moment] : until_)
      if (stream.first == device) last = std::max(last, moment);
    return last;
  }
  void put_off(c10::DeviceIndex device, c10::StreamId stream, Moment moment) {
    std::lock_guard<std::mutex> guard(lock_);
    Moment& until = until_[{device, stream}];
    until = std::max(until, moment);
  }

  void land_later(Landing landing) {
    std::lock_guard<std::mutex> guard(lock_);
    landings_.push_back(std::move(landing));
  }
  bool is_over(Moment moment) {
    if (moment > Clock::now()) return false;
    land();
    return true;
  }
  void wait(Moment moment) {
    std::this_thread::sleep_until(moment);
    land();
  }

 private:
  void land() {
    std::vector<Landing> due;
    {
      std::lock_guard<std::mutex> guard(lock_);
      const Moment now = Clock::now();
      for (Landing& one : landings_)
        if (one.due <= now) due.push_back(one);
      landings_.erase(std::remove_if(landings_.begin(), landings_.end(), [&](auto& one) { return one.due <= now; }),
                      landings_.end());
    }
    at::AutoDispatchBelowADInplaceOrView below;
    for (Landing& one : due) one.target.copy_(one.bytes);
  }

  std::mutex lock_;
  std::map<std::pair<c10::DeviceIndex, c10::StreamId>, Moment> until_;
  std::vector<Landing> landings_;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device getDevice() const override { return {kType, current_device}; }
  void setDevice(c10::Device device) const override {
    card_at(index_of(device));
    current_device = index_of(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device = index_of(device); }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(cards().size()); }

  static c10::Stream stream_on(c10::Device device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, {kType, index_of(device)}, id);
  }
  c10::Stream getStream(c10::Device device) const override {
    return stream_on(device, current_streams[index_of(device)]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_on(device, 0); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    static std::atomic<c10::StreamId> newest{0};
    return stream_on(device, ++newest);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    current_streams[stream.device_index()] = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return reinterpret_cast<void*>(stream.id()); }
  bool queryStream(const c10::Stream& stream) const override {
    return Streams::all().is_over(Streams::all().until(stream.device_index(), stream.id()));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    Streams::all().wait(Streams::all().until(stream.device_index(), stream.id()));
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    Streams::all().wait(Streams::all().until(device));
  }

  // An event is the moment at which its stream will have come to it.
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new Moment;
    *static_cast<Moment*>(*event) = std::max(Clock::now(), Streams::all().until(stream.device_index(), stream.id()));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event) Streams::all().put_off(stream.device_index(), stream.id(), *static_cast<Moment*>(event));
  }
  bool queryEvent(void* event) const override { return !event || Streams::all().is_over(*static_cast<Moment*>(event)); }
  void synchronizeEvent(void* event) const override {
    if (event) Streams::all().wait(*static_cast<Moment*>(event));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Moment*>(event); }
  double elapsedTime(void* from, void* to, const c10::DeviceIndex) const override {
    const auto took = *static_cast<Moment*>(to) - *static_cast<Moment*>(from);
    return std::chrono::duration<double, std::milli>(took).count();
  }
};

}  // namespace card
