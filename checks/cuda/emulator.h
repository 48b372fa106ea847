// Runs CUDA kernels on the CPU, one block at a time: every thread is a fibre,
// and what a warp or a block does together (barriers, ldmatrix, mma)
// waits for its threads and follows the PTX manual's layouts.
//
// It is strict where a GPU is silent: shared memory begins as NaN and ends at a
// guard page, threads run in a shuffled order, background copies land as early
// or as late as they may, and a collective that not all of its threads reach,
// an address that is not aligned, a bank met twice, or a copy and a read of one
// place with no barrier between raises an error, in whatever order the threads
// ran.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#define __global__
#define __launch_bounds__(...)
#define ATTN_DEVICE inline

namespace emulator {

[[noreturn]] inline void fail(const std::string& what) {
  throw std::runtime_error("the emulator: " + what);
}

// Memory whose last byte is followed by a page that may not be touched. It
// begins as NaN; more than a GiB as zeros, which take no memory until written.
class Guarded {
 public:
  static constexpr size_t kSparse = 1 << 30;

  explicit Guarded(size_t bytes) {
    const size_t page = 4096;
    mapped_ = (bytes + page - 1) / page * page + page;
    base_ = static_cast<char*>(mmap(
        nullptr,
        mapped_,
        PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
        -1,
        0));
    if (base_ == MAP_FAILED ||
        mprotect(base_ + mapped_ - page, page, PROT_NONE)) {
      fail("no memory");
    }
    data_ = base_ + mapped_ - page - bytes;
    if (bytes <= kSparse) {
      std::memset(data_, 0xff, bytes);
    }
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() {
    munmap(base_, mapped_);
  }
  char* data() const {
    return data_;
  }

 private:
  size_t mapped_;
  char* base_;
  char* data_;
};

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

struct Copy {
  void* to;
  const void* from;
  bool valid;

  void land() const {
    valid ? std::memcpy(to, from, 16) : std::memset(to, 0, 16);
  }
};

// Threads that wait for each other, and what each brought.
struct Meeting {
  const char* name = nullptr;
  std::vector<int> members;
  std::array<void*, 32> arguments{};
};

class Block {
 public:
  static inline Block* current = nullptr;

  Block(int threads, Index index, char* shared, unsigned seed, bool early)
      : block_index(index),
        shared_memory(shared),
        early_copies(early),
        threads_(threads),
        warps_(threads / 32),
        random_(seed) {}

  void run(const std::function<void()>& kernel) {
    current = this;
    kernel_ = &kernel;
    constexpr size_t kStack = 64 << 10;
    static std::vector<std::unique_ptr<char[]>>
        stacks; // kept, as making them takes longer than a block
    for (size_t i = 0; i < threads_.size(); ++i) {
      if (stacks.size() == i) {
        stacks.emplace_back(new char[kStack]);
      }
      Thread& thread = threads_[i];
      getcontext(&thread.context);
      thread.context.uc_stack.ss_sp = stacks[i].get();
      thread.context.uc_stack.ss_size = kStack;
      thread.context.uc_link = &scheduler_;
      makecontext(&thread.context, &Block::enter, 0);
    }
    std::vector<int> order(threads_.size());
    for (size_t i = 0; i < order.size(); ++i) {
      order[i] = static_cast<int>(i);
    }
    for (bool moved = true; moved;) {
      moved = false;
      std::shuffle(order.begin(), order.end(), random_);
      for (int i : order) {
        if (threads_[i].ready) {
          moved = true;
          thread = i;
          swapcontext(&scheduler_, &threads_[i].context);
          if (error_) {
            std::rethrow_exception(error_);
          }
        }
      }
    }
    for (auto& thread : threads_) {
      if (!thread.done) {
        fail("not all threads reached a barrier or a warp's instruction");
      }
      if (!thread.copies.open.empty() || !thread.copies.committed.empty()) {
        fail("a thread ended with copies under way");
      }
    }
    current = nullptr;
  }

  // Waits for all 32 lanes of the warp to bring arguments, then performs once.
  template <typename Arguments, typename Perform>
  void together(const char* name, Arguments& mine, const Perform& perform) {
    Meeting& meeting = warps_[thread / 32];
    meeting.arguments[thread % 32] = &mine;
    if (meet(meeting, name, 32)) {
      std::array<Arguments*, 32> all;
      for (int lane = 0; lane < 32; ++lane) {
        all[lane] = static_cast<Arguments*>(meeting.arguments[lane]);
      }
      perform(all);
      release(meeting);
    } else {
      sleep();
    }
  }

  void barrier() {
    if (meet(block_, "barrier", threads_.size())) {
      ++barriers_;
      release(block_);
    } else {
      sleep();
    }
  }

  void copy(Copy copy) {
    if (copy.valid) {
      check_aligned(copy.from);
    }
    start(copy.to).landed = kNever;
    if (early_copies) {
      copy.land();
    }
    threads_[thread].copies.open.push_back(copy);
  }

  void store(void* to, const void* value) {
    start(to).landed = barriers_;
    std::memcpy(to, value, 16);
  }

  void commit() {
    auto& [open, committed] = threads_[thread].copies;
    committed.insert(committed.end(), open.begin(), open.end());
    open.clear();
  }

  void wait() {
    auto& committed = threads_[thread].copies.committed;
    for (const Copy& copy : committed) {
      if (!early_copies) {
        copy.land();
      }
      chunk_of(copy.to).landed = barriers_;
    }
    committed.clear();
  }

  static void check_aligned(const void* pointer) {
    if (reinterpret_cast<uintptr_t>(pointer) % 16) {
      fail("an access of 16 bytes is not aligned");
    }
  }

  void read(const void* pointer) {
    Chunk& chunk = chunk_of(pointer);
    if (chunk.landed == kNever) {
      fail("what is being copied, or was never written, is read");
    }
    if (chunk.landed == barriers_) {
      fail("what other threads have copied is read: no barrier");
    }
    chunk.read = barriers_;
  }

  int thread = 0;
  const Index block_index;
  char* const shared_memory;
  const bool early_copies;

 private:
  struct Thread {
    ucontext_t context;
    bool ready = true;
    bool done = false;
    struct {
      std::vector<Copy> open, committed;
    } copies;
  };

  static constexpr int kNever = -1;

  // How many barriers stood before a copy or a store to 16 bytes started and
  // landed, and before they were read last.
  struct Chunk {
    int started = kNever, landed = kNever, read = kNever;
  };

  Chunk& chunk_of(const void* pointer) {
    return chunks_.at((static_cast<const char*>(pointer) - shared_memory) / 16);
  }

  // The 16 bytes that a copy or a store begins to overwrite.
  Chunk& start(void* to) {
    check_aligned(to);
    Chunk& chunk = chunk_of(to);
    if (chunk.read == barriers_ || chunk.started == barriers_) {
      fail("what other threads may read or write is overwritten: no barrier");
    }
    chunk.started = barriers_;
    return chunk;
  }

  static void enter() {
    Block* block = current;
    try { // nothing may leave a fibre
      (*block->kernel_)();
    } catch (...) {
      block->error_ = std::current_exception();
    }
    block->threads_[block->thread].ready = false;
    block->threads_[block->thread].done = true;
  }

  // True for the last to come.
  bool meet(Meeting& meeting, const char* name, size_t expected) {
    if (!meeting.members.empty() && std::strcmp(meeting.name, name) != 0) {
      fail("threads of one warp are at different instructions");
    }
    meeting.name = name;
    meeting.members.push_back(thread);
    return meeting.members.size() == expected;
  }

  void release(Meeting& meeting) {
    for (int member : meeting.members) {
      threads_[member].ready = true;
    }
    meeting.members.clear();
  }

  void sleep() {
    Thread& mine = threads_[thread];
    mine.ready = false;
    swapcontext(&mine.context, &scheduler_);
  }

  std::vector<Thread> threads_;
  std::vector<Chunk> chunks_ = std::vector<Chunk>(1 << 14); // 256 KiB
  int barriers_ = 0;
  std::vector<Meeting> warps_;
  Meeting block_;
  std::mt19937 random_;
  ucontext_t scheduler_;
  std::exception_ptr error_;
  const std::function<void()>* kernel_ = nullptr;
};

inline Index thread_index() {
  return {static_cast<unsigned>(Block::current->thread), 0, 0};
}

inline Index block_index() {
  return Block::current->block_index;
}

} // namespace emulator

#define threadIdx (emulator::thread_index())
#define blockIdx (emulator::block_index())
#define __syncthreads() emulator::Block::current->barrier()

namespace at::native::attn_fused {

using emulator::Block;

ATTN_DEVICE char* shared_memory() {
  return Block::current->shared_memory;
}

ATTN_DEVICE void copy_async(void* to, const void* from, bool valid) {
  Block::current->copy({to, from, valid});
}

ATTN_DEVICE void copy_commit() {
  Block::current->commit();
}

ATTN_DEVICE void copy_wait() {
  Block::current->wait();
}

using SharedAddress = uintptr_t;

ATTN_DEVICE SharedAddress shared_address(const void* pointer) {
  return reinterpret_cast<SharedAddress>(pointer);
}

struct MatrixLoad {
  uint32_t* words;
  const void* row;
};

// ldmatrix .x4: the eight rows of a matrix come from eight lanes, and their 128
// bytes must lie in 32 banks.
template <bool kTransposed>
void load_matrices_of(uint32_t (&words)[4], const void* row) {
  Block::check_aligned(row);
  MatrixLoad mine{words, row};
  Block::current->together(
      kTransposed ? "ldmatrix.trans" : "ldmatrix", mine, [](auto& all) {
        for (int matrix = 0; matrix < 4; ++matrix) {
          uint16_t element[8][8];
          unsigned banks = 0;
          for (int r = 0; r < 8; ++r) {
            const void* from = all[matrix * 8 + r]->row;
            banks |= 1u << (reinterpret_cast<uintptr_t>(from) / 16 % 8);
            Block::current->read(from);
            std::memcpy(element[r], from, 16);
          }
          if (banks != 0xff) {
            emulator::fail("ldmatrix meets a bank twice");
          }
          for (int lane = 0; lane < 32; ++lane) {
            const int group = lane / 4, member = lane % 4;
            uint16_t pair[2];
            for (int i = 0; i < 2; ++i) {
              pair[i] = kTransposed ? element[2 * member + i][group]
                                    : element[group][2 * member + i];
            }
            std::memcpy(&all[lane]->words[matrix], pair, 4);
          }
        }
      });
}

ATTN_DEVICE void load_matrices(uint32_t (&words)[4], SharedAddress row) {
  load_matrices_of<false>(words, reinterpret_cast<const void*>(row));
}

ATTN_DEVICE void load_matrices_transposed(
    uint32_t (&words)[4],
    SharedAddress row) {
  load_matrices_of<true>(words, reinterpret_cast<const void*>(row));
}

struct WordProduct {
  float* c;
  const uint32_t* a;
  uint32_t b[2];
};

template <typename T>
double half_of(uint32_t word, int index) {
  return static_cast<float>(
      T(static_cast<uint16_t>(word >> (16 * index)), T::from_bits()));
}

// mma.m16n8k16; the hardware does not say in which order it sums, so the sum is
// made in float64 and rounded once.
template <typename T>
void mma(T, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  WordProduct mine{c, a, {b0, b1}};
  Block::current->together("mma.m16n8k16", mine, [](auto& all) {
    double a[16][16], b[16][8];
    for (int lane = 0; lane < 32; ++lane) {
      const int group = lane / 4, member = lane % 4;
      for (int i = 0; i < 8; ++i) {
        const int row = i % 4 < 2 ? group : group + 8;
        const int depth = 2 * member + i % 2 + (i < 4 ? 0 : 8);
        a[row][depth] = half_of<T>(all[lane]->a[i / 2], i % 2);
      }
      for (int i = 0; i < 4; ++i) {
        const int depth = 2 * member + i % 2 + (i < 2 ? 0 : 8);
        b[depth][group] = half_of<T>(all[lane]->b[i / 2], i % 2);
      }
    }
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        double sum = all[lane]->c[i];
        for (int d = 0; d < 16; ++d) {
          sum += a[row][d] * b[d][column];
        }
        all[lane]->c[i] = static_cast<float>(sum);
      }
    }
  });
}

template <typename T>
uint32_t pack(T, float low, float high) {
  return T(low).x | static_cast<uint32_t>(T(high).x) << 16;
}

// As far from tanh as the manual allows.
ATTN_DEVICE float tanh_approximate(float x) {
  const float y = std::tanh(x);
  return std::fabs(y) < 1 - 0x1p-11f ? y * (1 + 0x1p-11f) : y;
}

ATTN_DEVICE float reciprocal(float x) {
  return 1 / x;
}

ATTN_DEVICE float clamp(float x, float limit) {
  return std::isnan(x) ? x : std::clamp(x, -limit, limit);
}

struct alignas(8) float2 {
  float x, y;
};

struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

ATTN_DEVICE void store_shared(void* to, uint4 value) {
  Block::current->store(to, &value);
}

ATTN_DEVICE void store_streaming(void* to, uint4 value) {
  Block::check_aligned(to);
  std::memcpy(to, &value, 16);
}

} // namespace at::native::attn_fused
