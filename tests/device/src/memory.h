// The caching allocator of a card's memory, and pinned memory of the host.
#pragma once

#include "streams.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <cstring>

namespace card {

constexpr size_t kMiB = 1 << 20;
// As torch's for CUDA: what is small is cut from segments of 2 MiB, what is middling from such of 20 MiB.
constexpr size_t kRound = 512, kSmall = kMiB, kMiddling = 10 * kMiB;

inline size_t up_to(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

struct Block {
  size_t size, asked;
  bool is_used;
};

// Memory taken from a card in one piece; `blocks`, by their place, cover it without gaps.
struct Segment {
  c10::DeviceIndex device;
  c10::StreamId stream;
  bool is_small;
  size_t size;
  std::map<size_t, Block> blocks;
  int64_t pool = 0;  // 0: the card's memory; else a pool's, of the host

  bool is_free() const { return blocks.size() == 1 && !blocks.begin()->second.is_used; }
};

class Memory final : public c10::DeviceAllocator {
 public:
  using Stats = c10::CachingDeviceAllocator::DeviceStats;

  static Memory& all() {
    static auto* it = new Memory;
    return *it;
  }

  at::DataPtr allocate(size_t asked) override {
    const c10::DeviceIndex device = current_device;
    const c10::Device where(kType, device);
    if (asked == 0) return {nullptr, nullptr, &drop, where};
    std::lock_guard<std::recursive_mutex> guard(lock_);
    begin_context(device);
    const size_t size = up_to(asked, kRound);
    char* at = find(device, size, pool_);
    if (!at && !pool_) at = room_for(device, size);
    if (!at) at = find_in(*segments_.find(new_segment(device, size)), size);
    take_block(at, size, asked);
    return {at, at, &drop, where};
  }

  void emptyCache(c10::MempoolId_t) override {
    std::lock_guard<std::recursive_mutex> guard(lock_);
    for (auto it = segments_.begin(); it != segments_.end();)
      it = it->second.is_free() && (!it->second.pool || it->second.pool != fall_back_) ? end_segment(it) : ++it;
  }

  bool initialized() override { return !cards().empty(); }
  void recordStream(const at::DataPtr&, c10::Stream) override {}  // kernels have run when they have been called
  Stats getDeviceStats(c10::DeviceIndex device) override {
    std::lock_guard<std::recursive_mutex> guard(lock_);
    return stats_[device];
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    each_stat(device, [](auto& stat) { stat.reset_accumulated(); });
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    each_stat(device, [](auto& stat) { stat.reset_peak(); });
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    std::lock_guard<std::recursive_mutex> guard(lock_);
    begin_context(device);
    return card_at(device).free_and_total();
  }
  at::DeleterFnPtr raw_deleter() const override { return &drop; }
  void copy_data(void* to, const void* from, size_t size) const override { default_copy_data(to, from, size); }

  // This process reserves at most so many bytes of a device; negative: as many as there are.
  void bound(c10::DeviceIndex device, int64_t most) {
    std::lock_guard<std::recursive_mutex> guard(lock_);
    most_[device] = most;
  }

  // What is allocated from now on is a pool's, of the host's memory; 0: the card's again.
  void use_pool(int64_t pool) {
    std::lock_guard<std::recursive_mutex> guard(lock_);
    pool_ = pool;
  }
  // What finds no room on a card may have that of this pool; 0: of none.
  void fall_back_on(int64_t pool) {
    std::lock_guard<std::recursive_mutex> guard(lock_);
    fall_back_ = pool;
  }

  // Address, size, stream, pool and bytes in use of each segment of a device.
  std::vector<int64_t> snapshot(c10::DeviceIndex device) {
    std::lock_guard<std::recursive_mutex> guard(lock_);
    std::vector<int64_t> found;
    for (auto& [at, segment] : segments_) {
      if (segment.device != device) continue;
      int64_t used = 0;
      for (auto& [place, block] : segment.blocks) used += block.is_used ? static_cast<int64_t>(block.size) : 0;
      const auto start = reinterpret_cast<int64_t>(at);
      found.insert(found.end(), {start, static_cast<int64_t>(segment.size), segment.stream, segment.pool, used});
    }
    return found;
  }

 private:
  using Segments = std::map<char*, Segment>;

  static void drop(void* at) {
    if (at) all().free_block(static_cast<char*>(at));
  }

  static void begin_context(c10::DeviceIndex device) {
    Card& card = card_at(device);
    TORCH_CHECK_WITH(OutOfMemoryError, card.has_context() || card.take(0), "card out of memory: a context has no room");
  }

  // The smallest free block of the current stream that is large enough; nullptr where there is none.
  char* find(c10::DeviceIndex device, size_t size, int64_t pool) {
    char* best = nullptr;
    size_t least = SIZE_MAX;
    for (auto& entry : segments_) {
      const Segment& segment = entry.second;
      if (segment.device != device || segment.stream != current_streams[device] || segment.pool != pool) continue;
      if (segment.is_small != (size <= kSmall)) continue;
      char* at = find_in(entry, size);
      if (at && block_at(at)->second.size < least) {
        best = at;
        least = block_at(at)->second.size;
      }
    }
    return best;
  }
  static char* find_in(const Segments::value_type& entry, size_t size) {
    const Block* best = nullptr;
    char* at = nullptr;
    for (auto& [place, block] : entry.second.blocks) {
      if (block.is_used || block.size < size || (best && best->size <= block.size)) continue;
      best = &block;
      at = entry.first + place;
    }
    return at;
  }

  static size_t segment_size(size_t wanted) {
    return wanted <= kSmall ? 2 * kMiB : wanted < kMiddling ? 2 * kMiddling : up_to(wanted, 2 * kMiB);
  }
  // As torch's: before the cache is emptied, memory of the pool that is there for it.
  char* room_for(c10::DeviceIndex device, size_t wanted) {
    const size_t size = segment_size(wanted);
    if (!fall_back_ || take(device, size, false)) return nullptr;
    return find(device, wanted, fall_back_);
  }

  char* new_segment(c10::DeviceIndex device, size_t wanted) {
    const bool is_small = wanted <= kSmall;
    const size_t size = segment_size(wanted);
    Stats& stats = stats_[device];
    if (!pool_ && !take(device, size)) {
      ++stats.num_alloc_retries;
      emptyCache({0, 0});
      if (!take(device, size)) fail(device, wanted);
    }
    // No address is given twice: what has kept an old one finds nothing there.
    static char* next = reinterpret_cast<char*>(0x610000000000);
    const int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    void* at = mmap(next, size, PROT_READ | PROT_WRITE, how, -1, 0);
    TORCH_CHECK(at == next, "the host has no memory to play the card's");
    next += size + 2 * kMiB;
    Segment segment{device, current_streams[device], is_small, size, {{0, Block{size, 0, false}}}, pool_};
    segments_.emplace(static_cast<char*>(at), std::move(segment));
    ++stats.num_device_alloc;
    add(stats.segment, is_small, 1);
    add(stats.reserved_bytes, is_small, static_cast<int64_t>(size));
    return static_cast<char*>(at);
  }
  bool take(c10::DeviceIndex device, size_t size, bool is_real = true) {
    const auto most = most_.find(device);
    const int64_t after = reserved(device) + static_cast<int64_t>(size);
    if (most != most_.end() && most->second >= 0 && after > most->second) return false;
    return is_real ? card_at(device).take(size) : card_at(device).free_and_total().first >= size;
  }
  int64_t reserved(c10::DeviceIndex device) { return stats_[device].reserved_bytes[0].current; }
  [[noreturn]] void fail(c10::DeviceIndex device, size_t wanted) {
    Stats& stats = stats_[device];
    ++stats.num_ooms;
    const auto [free, total] = card_at(device).free_and_total();
    TORCH_CHECK_WITH(OutOfMemoryError, false, "card out of memory. Tried to allocate ", wanted, " bytes. Card ",
                     static_cast<int>(device), " has ", total, " bytes, of which ", free, " are free. This process has ",
                     card_at(device).mine(), ", of which tensors have ", stats.allocated_bytes[0].current, ".");
    std::abort();
  }
  Segments::iterator end_segment(Segments::iterator it) {
    Segment& segment = it->second;
    Streams::all().wait(Streams::all().until(segment.device));
    munmap(it->first, segment.size);
    if (!segment.pool) card_at(segment.device).give(segment.size);
    Stats& stats = stats_[segment.device];
    ++stats.num_device_free;
    add(stats.segment, segment.is_small, -1);
    add(stats.reserved_bytes, segment.is_small, -static_cast<int64_t>(segment.size));
    return segments_.erase(it);
  }

  Segments::iterator segment_of(char* at) { return --segments_.upper_bound(at); }
  std::map<size_t, Block>::iterator block_at(char* at) {
    auto segment = segment_of(at);
    return segment->second.blocks.find(static_cast<size_t>(at - segment->first));
  }

  void take_block(char* at, size_t size, size_t asked) {
    Segment& segment = segment_of(at)->second;
    auto [place, block] = *block_at(at);
    const size_t rest = block.size - size;
    if (rest >= (segment.is_small ? kRound : kMiB + 1)) {
      segment.blocks[place + size] = Block{rest, 0, false};
      block.size = size;
    }
    segment.blocks[place] = Block{block.size, asked, true};
    count(segment, segment.blocks[place], 1);
    poison(at, block.size);
  }
  void free_block(char* at) {
    std::lock_guard<std::recursive_mutex> guard(lock_);
    Segment& segment = segment_of(at)->second;
    auto it = block_at(at);
    count(segment, it->second, -1);
    poison(at, it->second.size);
    it->second.is_used = false;
    auto next = std::next(it);
    if (next != segment.blocks.end() && !next->second.is_used) join(segment, it, next);
    if (it != segment.blocks.begin() && !std::prev(it)->second.is_used) join(segment, std::prev(it), it);
  }
  static void join(Segment& segment, std::map<size_t, Block>::iterator first, std::map<size_t, Block>::iterator second) {
    first->second.size += second->second.size;
    segment.blocks.erase(second);
  }
  // What is read before it is written, or after it was freed, is no number.
  static void poison(char* at, size_t size) { std::memset(at, 0xff, size); }

  void count(const Segment& segment, const Block& block, int sign) {
    Stats& stats = stats_[segment.device];
    for (auto* one : {&stats.allocation, &stats.active}) add(*one, segment.is_small, sign);
    for (auto* one : {&stats.allocated_bytes, &stats.active_bytes})
      add(*one, segment.is_small, sign * static_cast<int64_t>(block.size));
    add(stats.requested_bytes, segment.is_small, sign * static_cast<int64_t>(block.asked));
  }
  static void add(c10::CachingAllocator::StatArray& stat, bool is_small, int64_t change) {
    for (size_t which : {size_t{0}, size_t{is_small ? 1u : 2u}}) {
      if (change > 0) stat[which].increase(static_cast<size_t>(change));
      else stat[which].decrease(static_cast<size_t>(-change));
    }
  }
  template <class Change>
  void each_stat(c10::DeviceIndex device, Change change) {
    std::lock_guard<std::recursive_mutex> guard(lock_);
    Stats& stats = stats_[device];
    for (auto* stat : {&stats.allocation, &stats.segment, &stats.active, &stats.allocated_bytes, &stats.reserved_bytes,
                       &stats.active_bytes, &stats.requested_bytes})
      for (auto& one : *stat) change(one);
  }

  std::recursive_mutex lock_;
  Segments segments_;
  std::map<c10::DeviceIndex, Stats> stats_;
  std::map<c10::DeviceIndex, int64_t> most_;
  int64_t pool_ = 0, fall_back_ = 0;
};

// Pinned memory is ordinary memory whose addresses are known.
class Pinned final : public at::HostAllocator {
 public:
  static Pinned& all() {
    static auto* it = new Pinned;
    return *it;
  }
  at::DataPtr allocate(size_t size) override {
    void* at = nullptr;
    TORCH_CHECK(posix_memalign(&at, 4096, std::max<size_t>(size, 1)) == 0, "the host has no memory to pin");
    std::lock_guard<std::mutex> guard(lock_);
    known_[static_cast<char*>(at)] = size;
    return {at, at, &drop, c10::DeviceType::CPU};
  }
  bool has(const void* address) {
    const char* at = static_cast<const char*>(address);
    std::lock_guard<std::mutex> guard(lock_);
    auto after = known_.upper_bound(const_cast<char*>(at));
    if (after == known_.begin()) return false;
    const auto& [start, size] = *--after;
    return at < start + size;
  }
  at::DeleterFnPtr raw_deleter() const override { return &drop; }
  void copy_data(void* to, const void* from, size_t size) const override { default_copy_data(to, from, size); }
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}

 private:
  static void drop(void* at) {
    {
      std::lock_guard<std::mutex> guard(all().lock_);
      all().known_.erase(static_cast<char*>(at));
    }
    free(at);
  }
  std::mutex lock_;
  std::map<char*, size_t> known_;
};

}  // namespace card
