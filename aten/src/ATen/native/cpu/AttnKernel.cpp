// CPU kernels of attn and its backward: tiles of attn that stay in the cache
// between the products before and after them.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/native/attn.h>
#include <ATen/native/cpu/AttnTile.h>
#include <c10/core/CPUAllocator.h>

#include <vector>

namespace at::native {

namespace {

using namespace attn_tile;

// Tiles of attn are kBlockRows x kBlockColumns at most.
constexpr int64_t kForwardRows = 48, kBackwardRows = 96, kBlockColumns = 128;

// Less work than this (FLOP) is not worth another thread.
constexpr double kThreadWork = 2e6;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// A matrix where it lies in memory, of any strides.
template <typename scalar_t>
struct Source {
  explicit Source(const Tensor& t)
      : data(t.const_data_ptr<scalar_t>()), row(t.stride(0)), column(t.stride(1)) {}
  const scalar_t* at(int64_t i, int64_t j) const {
    return data + i * row + j * column;
  }
  const scalar_t* data;
  int64_t row, column;
};

// Uninitialised memory, seen by the profiler as every tensor is.
template <typename T>
class Scratch {
 public:
  explicit Scratch(int64_t elements)
      : memory_(c10::GetCPUAllocator()->allocate(elements * sizeof(T))) {}
  T* get() const {
    return static_cast<T*>(memory_.get());
  }

 private:
  at::DataPtr memory_;
};

// to (n) <- from (n)
template <typename scalar_t, typename T>
inline void widen(const scalar_t* from, T* to, int64_t n) {
  if constexpr (std::is_same_v<scalar_t, T>) {
    std::copy_n(from, n, to);
  } else {
    using Vec = Vectorized<scalar_t>;
    int64_t i = 0;
    for (; i + Vec::size() <= n; i += Vec::size()) {
      auto [low, high] = vec::convert_to_float<scalar_t>(Vec::loadu(from + i));
      low.store(to + i);
      high.store(to + i + Vec::size() / 2);
    }
    for (; i < n; i++) {
      to[i] = static_cast<T>(from[i]);
    }
  }
}

template <typename scalar_t, typename T>
inline void narrow(const T* from, scalar_t* to, int64_t n) {
  if constexpr (std::is_same_v<scalar_t, T>) {
    std::copy_n(from, n, to);
  } else {
    vec::convert(from, to, n);
  }
}

// to (n) <- the row of `from` that begins at (i, j)
template <typename scalar_t, typename T>
inline void load_row(const Source<scalar_t>& from, int64_t i, int64_t j, T* to, int64_t n) {
  const scalar_t* element = from.at(i, j);
  if (from.column == 1) {
    widen(element, to, n);
  } else {
    for (int64_t c = 0; c < n; c++, element += from.column) {
      to[c] = static_cast<T>(*element);
    }
  }
}

// to (rows, padded(columns)) <- rows of `from`, from row i, and zeros
template <typename scalar_t, typename T>
void load_rows(const Source<scalar_t>& from, int64_t i, T* to, int64_t rows, int64_t columns) {
  const int64_t width = padded<T>(columns);
  for (int64_t r = 0; r < rows; r++, to += width) {
    load_row(from, i + r, 0, to, columns);
    std::fill(to + columns, to + width, T(0));
  }
}

// to (columns, kPanel) for every kPanel rows <- rows of `from` transposed, from
// row i, and zeros
template <typename scalar_t, typename T>
void load_transposed(const Source<scalar_t>& from, int64_t i, T* to, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; r += kPanel<T>, to += columns * kPanel<T>) {
    const int64_t n = std::min(kPanel<T>, rows - r);
    for (int64_t c = 0; c < columns; c++) {
      const scalar_t* element = from.at(i + r, c);
      T* line = to + c * kPanel<T>;
      for (int64_t j = 0; j < n; j++, element += from.row) {
        line[j] = static_cast<T>(*element);
      }
      std::fill(line + n, line + kPanel<T>, T(0));
    }
  }
}

// scores (n) <- tanh(scores), rounded to what attn (n) then holds
template <typename scalar_t, typename T>
inline void tanh_row(T* scores, scalar_t* attn, int64_t n) {
  using Vec = Vectorized<T>;
  int64_t j = 0;
  for (; j + Vec::size() <= n; j += Vec::size()) {
    const Vec t = attn_tile::tanh(Vec::loadu(scores + j));
    t.store(scores + j);
    if constexpr (std::is_same_v<scalar_t, T>) {
      t.store(attn + j);
    }
  }
  if (j < n) {
    const Vec t = attn_tile::tanh(Vec::loadu(scores + j, n - j));
    t.store(scores + j, n - j);
    if constexpr (std::is_same_v<scalar_t, T>) {
      t.store(attn + j, n - j);
    }
  }
  if constexpr (!std::is_same_v<scalar_t, T>) {
    narrow(scores, attn, n);
    widen(attn, scores, n);
  }
}

template <typename scalar_t>
void attn_forward(
    const Tensor& output,
    const Tensor& attn,
    const Tensor& q_,
    const Tensor& k_,
    const Tensor& v_) {
  using T = at::opmath_type<scalar_t>;
  const int64_t n = q_.size(0), d = q_.size(1), e = v_.size(1);
  const int64_t e_padded = padded<T>(e);
  const Source<scalar_t> q(q_), k(k_), v(v_);
  scalar_t* output_data = output.mutable_data_ptr<scalar_t>();
  scalar_t* attn_data = attn.mutable_data_ptr<scalar_t>();

  const int64_t panels = ceil_div(n, kPanel<T>);
  const Scratch<T> k_panels(panels * d * kPanel<T>), v_rows(n * e_padded);
  const int64_t copy_grain = ceil_div(1 << 15, kPanel<T> * (d + e) + 1);
  at::parallel_for(0, panels, copy_grain, [&](int64_t begin, int64_t end) {
    const int64_t row = begin * kPanel<T>;
    const int64_t rows = std::min(end * kPanel<T>, n) - row;
    load_transposed(k, row, k_panels.get() + row * d, rows, d);
    load_rows(v, row, v_rows.get() + row * e_padded, rows, e);
  });

  const double row_work = 2. * n * (d + e + 16);
  const int64_t threads = std::min<int64_t>(
      at::get_num_threads(), row_work * n / kThreadWork + 1);
  const int64_t blocks = ceil_div(ceil_div(n, kForwardRows), threads) * threads;
  const int64_t block_rows = ceil_div(n, blocks);
  at::parallel_for(
      0, blocks, ceil_div(blocks, threads), [&](int64_t begin, int64_t end) {
        const Scratch<T> memory(
            block_rows * (d + kBlockColumns + e_padded));
        T* q_rows = memory.get();
        T* scores = q_rows + block_rows * d;
        T* sums = scores + block_rows * kBlockColumns;
        for (int64_t i = begin * block_rows; i < std::min(end * block_rows, n);
             i += block_rows) {
          const int64_t rows = std::min(block_rows, n - i);
          for (const auto r : c10::irange(rows)) {
            load_row(q, i + r, 0, q_rows + r * d, d);
          }
          for (int64_t j = 0; j < n; j += kBlockColumns) {
            const int64_t columns = std::min(kBlockColumns, n - j);
            // scores <- q @ k.T
            product<T>(
                rows, columns, d, {q_rows, d, 1},
                {k_panels.get() + j * d, kPanel<T>, d * kPanel<T>},
                scores, kBlockColumns, false);
            // attn, scores <- tanh(scores)
            for (const auto r : c10::irange(rows)) {
              tanh_row(
                  scores + r * kBlockColumns, attn_data + (i + r) * n + j, columns);
            }
            // sums <- sums + attn @ v
            product<T>(
                rows, e, columns, {scores, kBlockColumns, 1},
                {v_rows.get() + j * e_padded, e_padded},
                sums, e_padded, j > 0);
          }
          for (const auto r : c10::irange(rows)) {
            narrow(sums + r * e_padded, output_data + (i + r) * e, e);
          }
        }
      });
}

template <typename scalar_t>
void attn_backward(
    const Tensor& grad_q,
    const Tensor& grad_k,
    const Tensor& grad_v,
    const Tensor& grad_output_,
    const Tensor& grad_attn_,
    const Tensor& q_,
    const Tensor& k_,
    const Tensor& v_,
    const Tensor& attn_) {
  using T = at::opmath_type<scalar_t>;
  using Vec = Vectorized<T>;
  const bool scores_wanted = grad_q.defined() || grad_k.defined();
  const auto source = [](const Tensor& t, bool wanted) {
    return wanted && t.defined() ? std::optional<Source<scalar_t>>(t) : std::nullopt;
  };
  const auto grad_output = source(grad_output_, true);
  const auto grad_attn = source(grad_attn_, scores_wanted);
  const auto q = source(q_, grad_k.defined());
  const auto k = source(k_, grad_q.defined());
  const auto v = source(v_, scores_wanted && grad_output);
  const Source<scalar_t> attn(attn_);
  const int64_t n = attn_.size(0);
  const int64_t d = grad_q.defined() ? grad_q.size(1) : grad_k.defined() ? grad_k.size(1) : 0;
  const int64_t e = grad_output ? grad_output_.size(1) : 0;
  const int64_t d_padded = padded<T>(d), e_padded = padded<T>(e);

  // Each part owns some columns of attn, rows of grad_k and grad_v, and has its
  // own sums of grad_q, which are to stay small beside attn.
  const int64_t most = std::max<int64_t>(
      {1, n / (4 * d_padded + 1), (1 << 18) / (n * d_padded + 1)});
  int64_t parts = std::min<int64_t>(
      {at::get_num_threads(), most,
       static_cast<int64_t>(4. * n * n * (d + e + 4) / kThreadWork) + 1});
  const int64_t part_columns = padded<T>(ceil_div(n, parts));
  parts = ceil_div(n, part_columns);
  const int64_t block_rows = std::min(n, kBackwardRows);
  const Scratch<T> grad_q_sums(grad_q.defined() ? parts * n * d_padded : 0);

  at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    const int64_t tile = block_rows * kBlockColumns;
    const int64_t width = d_padded + e_padded;
    const Scratch<T> memory(
        2 * tile + kBlockColumns + block_rows * width +
        kBlockColumns * 2 * width);
    T* grad_scores = memory.get();
    T* attn_rows = grad_scores + tile;
    T* grad_attn_row = attn_rows + tile;
    T* q_rows = grad_attn_row + kBlockColumns;
    T* grad_output_rows = q_rows + block_rows * d_padded;
    T* k_rows = grad_output_rows + block_rows * e_padded;
    T* v_panels = k_rows + kBlockColumns * d_padded;
    T* grad_k_rows = v_panels + kBlockColumns * e_padded;
    T* grad_v_rows = grad_k_rows + kBlockColumns * d_padded;
    for (const auto part : c10::irange(begin, end)) {
      const int64_t first = part * part_columns;
      const int64_t last = std::min(first + part_columns, n);
      T* grad_q_rows = grad_q_sums.get() + part * n * d_padded;
      for (int64_t j = first; j < last; j += kBlockColumns) {
        const int64_t columns = std::min(kBlockColumns, last - j);
        if (k) {
          load_rows(*k, j, k_rows, columns, d);
        }
        if (v) {
          load_transposed(*v, j, v_panels, columns, e);
        }
        for (int64_t i = 0; i < n; i += block_rows) {
          const int64_t rows = std::min(block_rows, n - i);
          if (q) {
            load_rows(*q, i, q_rows, rows, d);
          }
          if (grad_output) {
            load_rows(*grad_output, i, grad_output_rows, rows, e);
          }
          if (v) {
            // grad_scores <- grad_output @ v.T
            product<T>(
                rows, columns, e, {grad_output_rows, e_padded, 1},
                {v_panels, kPanel<T>, e * kPanel<T>},
                grad_scores, kBlockColumns, false);
          }
          for (const auto r : c10::irange(rows)) {
            T* a = attn_rows + r * kBlockColumns;
            T* x = grad_scores + r * kBlockColumns;
            load_row(attn, i + r, j, a, columns);
            if (!scores_wanted) {
              continue;
            }
            const T* g = x;
            if (grad_attn) {
              g = grad_attn_row;
              load_row(*grad_attn, i + r, j, grad_attn_row, columns);
            }
            const bool both = v && grad_attn;
            // grad_scores <- (grad_scores + grad_attn) * (1 - attn^2)
            for (int64_t c = 0; c < columns; c += Vec::size()) {
              const Vec t = Vec::loadu(a + c);
              Vec grad = Vec::loadu(g + c);
              if (both) {
                grad = grad + Vec::loadu(x + c);
              }
              const Vec one(T(1));
              (grad * ((one - t) * (one + t))).store(x + c);
            }
          }
          if (grad_q.defined()) {
            // grad_q <- grad_q + grad_scores @ k
            product<T>(
                rows, d, columns, {grad_scores, kBlockColumns, 1},
                {k_rows, d_padded},
                grad_q_rows + i * d_padded, d_padded, j > first);
          }
          if (grad_k.defined()) {
            // grad_k <- grad_k + grad_scores.T @ q
            product<T>(
                columns, d, rows, {grad_scores, 1, kBlockColumns},
                {q_rows, d_padded},
                grad_k_rows, d_padded, i > 0);
          }
          if (grad_v.defined()) {
            // grad_v <- grad_v + attn.T @ grad_output
            product<T>(
                columns, e, rows, {attn_rows, 1, kBlockColumns},
                {grad_output_rows, e_padded},
                grad_v_rows, e_padded, i > 0);
          }
        }
        const auto store_rows = [&](const Tensor& grad, const T* rows, int64_t size) {
          if (grad.defined()) {
            scalar_t* to = grad.mutable_data_ptr<scalar_t>() + j * size;
            for (const auto c : c10::irange(columns)) {
              narrow(rows + c * padded<T>(size), to + c * size, size);
            }
          }
        };
        store_rows(grad_k, grad_k_rows, d);
        store_rows(grad_v, grad_v_rows, e);
      }
    }
  });

  if (grad_q.defined()) {
    scalar_t* to = grad_q.mutable_data_ptr<scalar_t>();
    const int64_t grain = ceil_div(1 << 15, parts * d + 1);
    at::parallel_for(0, n, grain, [&](int64_t begin, int64_t end) {
      for (const auto i : c10::irange(begin, end)) {
        T* sum = grad_q_sums.get() + i * d_padded;
        for (const auto part : c10::irange(int64_t(1), parts)) {
          const T* other = sum + part * n * d_padded;
          for (int64_t c = 0; c < d_padded; c += Vec::size()) {
            (Vec::loadu(sum + c) + Vec::loadu(other + c)).store(sum + c);
          }
        }
        narrow(sum, to + i * d, d);
      }
    });
  }
}

void attn_kernel(
    const Tensor& output,
    const Tensor& attn,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      kHalf, kBFloat16, q.scalar_type(), "attn_cpu", [&] {
        attn_forward<scalar_t>(output, attn, q, k, v);
      });
}

void attn_backward_kernel(
    const Tensor& grad_q,
    const Tensor& grad_k,
    const Tensor& grad_v,
    const Tensor& grad_output,
    const Tensor& grad_attn,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& attn) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      kHalf, kBFloat16, attn.scalar_type(), "_attn_backward_cpu", [&] {
        attn_backward<scalar_t>(
            grad_q, grad_k, grad_v, grad_output, grad_attn, q, k, v, attn);
      });
}

} // namespace

ALSO_REGISTER_AVX512_DISPATCH(attn_stub, &attn_kernel)
ALSO_REGISTER_AVX512_DISPATCH(attn_backward_stub, &attn_backward_kernel)

} // namespace at::native
