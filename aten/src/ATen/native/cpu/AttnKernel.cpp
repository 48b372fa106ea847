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
#include <c10/util/irange.h>

#include <array>
#include <cstring>

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

// to (rows, units of columns) <- from (rows, columns), where a row is summed
// over
template <typename U, typename scalar_t>
void load_left(const scalar_t* from, U* to, int64_t rows, int64_t columns) {
  const int64_t units = ceil_div(columns, Unit<U>::group);
  for (; rows > 0; rows--, from += columns, to += units) {
    if constexpr (std::is_same_v<U, Pair>) {
      if (columns % 2) {
        to[units - 1].second = 0;
      }
      std::memcpy(to, from, columns * sizeof(scalar_t));
    } else {
      widen(from, to, columns);
    }
  }
}

// to (units of rows, padded(columns)) <- from (rows, columns), rows from_row
// apart, where a column is summed over
template <typename U, typename scalar_t>
void load_right(
    const scalar_t* from,
    int64_t from_row,
    U* to,
    int64_t to_row,
    int64_t rows,
    int64_t columns) {
  for (int64_t r = 0; r < rows; r += Unit<U>::group) {
    if constexpr (std::is_same_v<U, Pair>) {
      const scalar_t* next = from + from_row;
      if (r + 1 < rows) {
        for (int64_t c = 0; c < columns; c++) {
          to[c] = {from[c], next[c]};
        }
      } else {
        for (int64_t c = 0; c < columns; c++) {
          to[c] = {from[c], scalar_t(0)};
        }
      }
    } else {
      widen(from, to, columns);
    }
    std::fill(to + columns, to + to_row, U{});
    from += Unit<U>::group * from_row;
    to += to_row;
  }
}

// for each kPanel rows: to (units of columns, kPanel) <- from (rows, columns)
// transposed
template <typename U, typename scalar_t>
void load_transposed(
    const scalar_t* from,
    U* to,
    int64_t rows,
    int64_t columns) {
  constexpr int64_t group = Unit<U>::group;
  constexpr int64_t panel = kPanel<typename Unit<U>::Sum>;
  for (int64_t r = 0; r < rows; r += panel, from += panel * columns) {
    const int64_t n = std::min(panel, rows - r);
    for (int64_t c = 0; c < columns; c += group, to += panel) {
      const scalar_t* element = from + c;
      for (int64_t j = 0; j < n; j++, element += columns) {
        if constexpr (std::is_same_v<U, Pair>) {
          to[j] = {element[0], c + 1 < columns ? element[1] : scalar_t(0)};
        } else {
          to[j] = static_cast<U>(*element);
        }
      }
      std::fill(to + n, to + panel, U{});
    }
  }
}

// attn (n) <- tanh(scores); scores <- what attn holds of it
template <typename scalar_t, typename T>
inline void tanh_row(T* scores, scalar_t* attn, int64_t n) {
  using Vec = Vectorized<T>;
  constexpr int64_t width = Vec::size();
  for (int64_t j = 0; j < n; j += width) {
    attn_tile::tanh(Vec::loadu(scores + j)).store(scores + j);
  }
  narrow(scores, attn, n);
}

// U is what the products read: opmath_type<scalar_t>, or Pair for bfloat16.
template <typename scalar_t, typename U>
void attn_forward(
    const Tensor& output,
    const Tensor& attn,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v) {
  using T = typename Unit<U>::Sum;
  constexpr int64_t group = Unit<U>::group;
  const int64_t n = q.size(0), d = q.size(1), e = v.size(1);
  const int64_t d_units = ceil_div(d, group), e_padded = padded<T>(e);
  const scalar_t* q_data = q.const_data_ptr<scalar_t>();
  const scalar_t* k_data = k.const_data_ptr<scalar_t>();
  const scalar_t* v_data = v.const_data_ptr<scalar_t>();
  scalar_t* output_data = output.mutable_data_ptr<scalar_t>();
  scalar_t* attn_data = attn.mutable_data_ptr<scalar_t>();

  const int64_t panels = ceil_div(n, kPanel<T>);
  const Scratch<U> k_panels(panels * d_units * kPanel<T>);
  const Scratch<U> v_rows(ceil_div(n, group) * e_padded);
  const int64_t copy_grain = ceil_div(1 << 15, kPanel<T> * (d + e) + 1);
  at::parallel_for(0, panels, copy_grain, [&](int64_t begin, int64_t end) {
    const int64_t i = begin * kPanel<T>;
    const int64_t rows = std::min(end * kPanel<T>, n) - i;
    load_transposed(k_data + i * d, k_panels.get() + i * d_units, rows, d);
    load_right(
        v_data + i * e,
        e,
        v_rows.get() + i / group * e_padded,
        e_padded,
        rows,
        e);
  });

  const int64_t threads = std::min<int64_t>(
      at::get_num_threads(), 2. * n * n * (d + e + 16) / kThreadWork + 1);
  const int64_t blocks = ceil_div(ceil_div(n, kForwardRows), threads) * threads;
  const int64_t block_rows = ceil_div(n, blocks);
  const auto run = [&](int64_t begin, int64_t end) {
    const int64_t tile = block_rows * kBlockColumns;
    const Scratch<U> left(block_rows * d_units + tile);
    const Scratch<T> sums(tile + block_rows * e_padded);
    U* q_rows = left.get();
    U* attn_rows = q_rows + block_rows * d_units;
    T* scores = sums.get();
    T* output_rows = scores + tile;
    for (int64_t i = begin * block_rows; i < std::min(end * block_rows, n);
         i += block_rows) {
      const int64_t rows = std::min(block_rows, n - i);
      load_left(q_data + i * d, q_rows, rows, d);
      for (int64_t j = 0; j < n; j += kBlockColumns) {
        const int64_t columns = std::min(kBlockColumns, n - j);
        // scores <- q @ k.T
        product<U, T>(
            rows,
            columns,
            d_units,
            {q_rows, d_units, 1},
            {k_panels.get() + j * d_units, kPanel<T>, d_units * kPanel<T>},
            scores,
            kBlockColumns,
            false);
        // attn <- tanh(scores)
        for (const auto r : c10::irange(rows)) {
          scalar_t* to = attn_data + (i + r) * n + j;
          tanh_row(scores + r * kBlockColumns, to, columns);
          load_left(to, attn_rows + r * kBlockColumns, 1, columns);
        }
        // output <- output + attn @ v
        product<U, T>(
            rows,
            e,
            ceil_div(columns, group),
            {attn_rows, kBlockColumns, 1},
            {v_rows.get() + j / group * e_padded, e_padded},
            output_rows,
            e_padded,
            j > 0);
      }
      for (const auto r : c10::irange(rows)) {
        narrow(output_rows + r * e_padded, output_data + (i + r) * e, e);
      }
    }
  };
  at::parallel_for(0, blocks, ceil_div(blocks, threads), run);
}

// grad_scores (n) <- (grad_scores + grad_attn) * (1 - attn^2); either term may
// be missing
template <typename scalar_t, typename T>
inline void backward_row(
    T* grad_scores,
    bool has_scores,
    const scalar_t* grad_attn,
    int64_t grad_attn_stride,
    const scalar_t* attn,
    int64_t n) {
  using Vec = Vectorized<T>;
  const Vec one(T(1));
  std::array<T, kBlockColumns> a, g;
  widen(attn, a.data(), n);
  if (grad_attn && grad_attn_stride == 1) {
    widen(grad_attn, g.data(), n);
  } else if (grad_attn) {
    for (const auto c : c10::irange(n)) {
      g[c] = static_cast<T>(grad_attn[c * grad_attn_stride]);
    }
  }
  for (int64_t c = 0; c < n; c += Vec::size()) {
    Vec grad =
        has_scores ? Vec::loadu(grad_scores + c) : Vec::loadu(g.data() + c);
    if (has_scores && grad_attn) {
      grad = grad + Vec::loadu(g.data() + c);
    }
    const Vec t = Vec::loadu(a.data() + c);
    (grad * ((one - t) * (one + t))).store(grad_scores + c);
  }
}

template <typename scalar_t, typename U>
void attn_backward(
    const Tensor& grad_q,
    const Tensor& grad_k,
    const Tensor& grad_v,
    const Tensor& grad_output,
    const Tensor& grad_attn,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& attn) {
  using T = typename Unit<U>::Sum;
  constexpr int64_t group = Unit<U>::group;
  const auto data = [](const Tensor& t) -> const scalar_t* {
    return t.defined() ? t.const_data_ptr<scalar_t>() : nullptr;
  };
  const bool scores_wanted = grad_q.defined() || grad_k.defined();
  const bool has_output = grad_output.defined();
  const bool has_attn = grad_attn.defined() && scores_wanted;
  const bool has_scores = has_output && scores_wanted;
  const scalar_t* q_data = data(q);
  const scalar_t* k_data = data(k);
  const scalar_t* v_data = data(v);
  const scalar_t* grad_output_data = data(grad_output);
  const scalar_t* grad_attn_data = data(grad_attn);
  const scalar_t* attn_data = data(attn);
  const int64_t n = attn.size(0);
  const int64_t d = grad_q.defined() ? grad_q.size(1)
      : grad_k.defined()             ? grad_k.size(1)
                                     : 0;
  const int64_t e = has_output ? grad_output.size(1) : 0;
  const int64_t d_padded = padded<T>(d), e_padded = padded<T>(e);
  const int64_t e_units = ceil_div(e, group);

  // Each part owns some columns of attn, rows of grad_k and grad_v, and has its
  // own sums of grad_q, which are to stay small beside attn.
  const int64_t most = std::max<int64_t>(
      {1, n / (4 * d_padded + 1), (1 << 18) / (n * d_padded + 1)});
  int64_t parts = std::min<int64_t>(
      {at::get_num_threads(),
       most,
       static_cast<int64_t>(4. * n * n * (d + e + 4) / kThreadWork) + 1});
  const int64_t part_columns = padded<T>(ceil_div(n, parts));
  parts = ceil_div(n, part_columns);
  const int64_t block_rows = std::min(n, kBackwardRows);
  const int64_t block_units = ceil_div(block_rows, group);
  const Scratch<T> grad_q_sums(grad_q.defined() ? parts * n * d_padded : 0);

  at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    const int64_t tile = block_rows * kBlockColumns;
    const int64_t width = d_padded + e_padded;
    const Scratch<T> sums(tile + kBlockColumns * width);
    const Scratch<U> units(
        tile + 2 * block_units * kBlockColumns + block_rows * e_units +
        block_units * width + kBlockColumns * width);
    T* grad_scores = sums.get();
    T* grad_k_rows = grad_scores + tile;
    T* grad_v_rows = grad_k_rows + kBlockColumns * d_padded;
    U* scores_left = units.get();
    U* scores_right = scores_left + tile;
    U* attn_right = scores_right + block_units * kBlockColumns;
    U* output_left = attn_right + block_units * kBlockColumns;
    U* output_right = output_left + block_rows * e_units;
    U* q_right = output_right + block_units * e_padded;
    U* k_right = q_right + block_units * d_padded;
    U* v_panels = k_right + kBlockColumns * d_padded;
    for (const auto part : c10::irange(begin, end)) {
      const int64_t first = part * part_columns;
      const int64_t last = std::min(first + part_columns, n);
      T* grad_q_rows = grad_q_sums.get() + part * n * d_padded;
      for (int64_t j = first; j < last; j += kBlockColumns) {
        const int64_t columns = std::min(kBlockColumns, last - j);
        if (grad_q.defined()) {
          load_right(k_data + j * d, d, k_right, d_padded, columns, d);
        }
        if (has_scores) {
          load_transposed(v_data + j * e, v_panels, columns, e);
        }
        for (int64_t i = 0; i < n; i += block_rows) {
          const int64_t rows = std::min(block_rows, n - i);
          const scalar_t* attn_block = attn_data + i * n + j;
          if (has_scores) {
            // grad_scores <- grad_output @ v.T
            load_left(grad_output_data + i * e, output_left, rows, e);
            product<U, T>(
                rows,
                columns,
                e_units,
                {output_left, e_units, 1},
                {v_panels, kPanel<T>, e_units * kPanel<T>},
                grad_scores,
                kBlockColumns,
                false);
          }
          if (scores_wanted) {
            for (const auto r : c10::irange(rows)) {
              backward_row(
                  grad_scores + r * kBlockColumns,
                  has_scores,
                  has_attn ? grad_attn_data + (i + r) * grad_attn.stride(0) +
                          j * grad_attn.stride(1)
                           : nullptr,
                  has_attn ? grad_attn.stride(1) : 0,
                  attn_block + r * n,
                  columns);
            }
          }
          const U* left = nullptr;
          const U* right = nullptr;
          if constexpr (std::is_same_v<U, T>) {
            left = right = grad_scores;
          } else if (scores_wanted) {
            auto* rounded = reinterpret_cast<scalar_t*>(scores_left);
            for (const auto r : c10::irange(rows)) {
              scalar_t* line = rounded + r * 2 * kBlockColumns;
              narrow(grad_scores + r * kBlockColumns, line, columns);
              line[columns] = 0;
            }
            left = scores_left;
            if (grad_k.defined()) {
              load_right(
                  rounded,
                  2 * kBlockColumns,
                  scores_right,
                  kBlockColumns,
                  rows,
                  columns);
              right = scores_right;
            }
          }
          if (grad_q.defined()) {
            // grad_q <- grad_q + grad_scores @ k
            product<U, T>(
                rows,
                d,
                ceil_div(columns, group),
                {left, kBlockColumns, 1},
                {k_right, d_padded},
                grad_q_rows + i * d_padded,
                d_padded,
                j > first);
          }
          if (grad_k.defined()) {
            // grad_k <- grad_k + grad_scores.T @ q
            load_right(q_data + i * d, d, q_right, d_padded, rows, d);
            product<U, T>(
                columns,
                d,
                ceil_div(rows, group),
                {right, 1, kBlockColumns},
                {q_right, d_padded},
                grad_k_rows,
                d_padded,
                i > 0);
          }
          if (grad_v.defined()) {
            // grad_v <- grad_v + attn.T @ grad_output
            load_right(attn_block, n, attn_right, kBlockColumns, rows, columns);
            load_right(
                grad_output_data + i * e, e, output_right, e_padded, rows, e);
            product<U, T>(
                columns,
                e,
                ceil_div(rows, group),
                {attn_right, 1, kBlockColumns},
                {output_right, e_padded},
                grad_v_rows,
                e_padded,
                i > 0);
          }
        }
        const auto store_rows =
            [&](const Tensor& grad, const T* rows, int64_t size) {
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
          for (int64_t c = 0; c < d_padded; c += Vectorized<T>::size()) {
            (Vectorized<T>::loadu(sum + c) + Vectorized<T>::loadu(other + c))
                .store(sum + c);
          }
        }
        narrow(sum, to + i * d, d);
      }
    });
  }
}

// Calls f with an element of type U, as the processor allows.
template <typename scalar_t, typename F>
void with_unit(const F& f) {
  if constexpr (std::is_same_v<scalar_t, BFloat16>) {
#if defined(CPU_CAPABILITY_AVX512) && defined(__GNUC__)
    if (has_pair_products()) {
      return f(Pair());
    }
#endif
  }
  f(at::opmath_type<scalar_t>());
}

void attn_kernel(
    const Tensor& output,
    const Tensor& attn,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      kHalf, kBFloat16, q.scalar_type(), "attn_cpu", [&] {
        with_unit<scalar_t>([&](auto unit) {
          attn_forward<scalar_t, decltype(unit)>(output, attn, q, k, v);
        });
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
        with_unit<scalar_t>([&](auto unit) {
          attn_backward<scalar_t, decltype(unit)>(
              grad_q, grad_k, grad_v, grad_output, grad_attn, q, k, v, attn);
        });
      });
}

} // namespace

ALSO_REGISTER_AVX512_DISPATCH(attn_stub, &attn_kernel)
ALSO_REGISTER_AVX512_DISPATCH(attn_backward_stub, &attn_backward_kernel)

} // namespace at::native
