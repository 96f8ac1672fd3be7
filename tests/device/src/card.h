// The card: a file that every process using it has mapped. Who reads the file sees what NVML would show of a GPU.
#pragma once

#include <c10/util/Exception.h>

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace card {

// The layout is that of tests/device/card.py.
constexpr uint64_t kMagic = 0x4452414347444E47;
constexpr int kSlots = 64;

// A process on the card. Another with its number has another start.
struct Slot {
  int64_t pid;
  uint64_t start, used;
};

struct Board {
  uint64_t magic, total, context;
  Slot slots[kSlots];
};

// When a process started, in ticks since the machine did; 0 for none, and for one that has ended.
inline uint64_t start_of(int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line, word;
  if (!std::getline(file, line)) return 0;
  std::istringstream words(line.substr(line.rfind(')') + 1));
  words >> word;
  if (word == "Z" || word == "X") return 0;
  for (int n = 0; n < 19; ++n) words >> word;
  return std::strtoull(word.c_str(), nullptr, 10);
}

class Locked {
 public:
  explicit Locked(int file) : file_(file) {
    while (flock(file_, LOCK_EX) != 0) {
    }
  }
  ~Locked() { flock(file_, LOCK_UN); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  int file_;
};

// One card as this process uses it. Threads of the process come one at a time: they hold the allocator's lock.
class Card {
 public:
  explicit Card(const std::string& path) : file_(open(path.c_str(), O_RDWR | O_CLOEXEC)) {
    TORCH_CHECK(file_ >= 0, "there is no card ", path);
    void* at = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    TORCH_CHECK(at != MAP_FAILED, "card ", path, " cannot be mapped");
    board_ = static_cast<Board*>(at);
    TORCH_CHECK(board_->magic == kMagic, path, " is no card");
  }

  bool has_context() const { return mine_ != nullptr; }
  uint64_t mine() const { return mine_ ? mine_->used : 0; }

  // Takes memory, and at first a context's besides; false, and nothing is taken, where there is no room.
  bool take(uint64_t bytes) {
    Locked locked(file_);
    const uint64_t wanted = bytes + (mine_ ? 0 : board_->context);
    if (used() + wanted > board_->total) return false;
    if (!mine_) enter();
    mine_->used += wanted;
    return true;
  }

  void give(uint64_t bytes) {
    Locked locked(file_);
    mine_->used -= bytes;
  }

  std::pair<uint64_t, uint64_t> free_and_total() {
    Locked locked(file_);
    return {board_->total - used(), board_->total};
  }

 private:
  uint64_t used() {
    uint64_t sum = 0;
    for (Slot& slot : board_->slots) {
      if (slot.pid == 0) continue;
      if (&slot != mine_ && start_of(slot.pid) != slot.start) slot = Slot{0, 0, 0};  // the dead have no memory
      sum += slot.used;
    }
    return sum;
  }

  void enter() {
    for (Slot& slot : board_->slots) {
      if (slot.pid != 0) continue;
      slot = Slot{getpid(), start_of(getpid()), 0};
      mine_ = &slot;
      return;
    }
    TORCH_CHECK(false, "more than ", kSlots, " processes are on the card");
  }

  int file_;
  Board* board_ = nullptr;
  Slot* mine_ = nullptr;
};

inline bool& is_forked() {
  static bool is = false;
  return is;
}

// The cards named in GANDIVA_CARDS, a:b, in this order.
inline std::vector<std::unique_ptr<Card>>& cards() {
  static auto* all = [] {
    auto* found = new std::vector<std::unique_ptr<Card>>;
    const char* names = std::getenv("GANDIVA_CARDS");
    std::istringstream paths(names ? names : "");
    for (std::string path; std::getline(paths, path, ':');) found->push_back(std::make_unique<Card>(path));
    pthread_atfork(nullptr, nullptr, [] { is_forked() = true; });
    return found;
  }();
  return *all;
}

inline Card& card_at(int64_t index) {
  TORCH_CHECK(!is_forked(), "Cannot re-initialize the card in a forked subprocess");
  TORCH_CHECK(index >= 0 && index < static_cast<int64_t>(cards().size()), "there is no card ", index);
  return *cards()[index];
}

}  // namespace card
