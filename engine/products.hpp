// Products of small matrices, the same bits with every instruction set.
//
// Every entry of A B is summed over k in ascending order, product by product; vectors run over the columns of B only. B is
// packed in *panels* of as many columns as the inner loop keeps in registers, four rows of A at a time.
#pragma once

#include "lanes.hpp"

namespace engine {

/// Numbers of a row of a matrix that products write: the columns, filled up to whole panels.
constexpr Index padded(Index columns) { return (columns + 7) / 8 * 8; }

/// A matrix (rows × columns) in panels, the last one filled up with zeros.
class Panels {
  public:
    static constexpr Index WIDTH = 2 * N_DOUBLES;

    Panels() = default;
    Panels(Index rows, Index columns) : rows_(rows), columns_(columns), entries_((columns + WIDTH - 1) / WIDTH * WIDTH * rows) {}

    /// Set every entry (k, j) to entry(k, j).
    template <class Entry> void fill(Entry&& entry) {
        for (Index first = 0; first < columns_; first += WIDTH) {
            double* panel = entries_.data() + first * rows_;
            const Index width = std::min(WIDTH, columns_ - first);
            for (Index k = 0; k < rows_; ++k)
                for (Index j = 0; j < width; ++j) panel[k * WIDTH + j] = entry(k, first + j);
        }
    }

    Index rows() const { return rows_; }
    Index columns() const { return columns_; }
    const double* panel(Index first) const { return entries_.data() + first * rows_; }

  private:
    Index rows_ = 0, columns_ = 0;
    std::vector<double> entries_;
};

/// The left factor of a product: entry (i, k) is entries[i * down + k * along].
struct Left {
    const double* entries;
    Index down, along;
};

/// One panel of R rows of A B, which are added to `out` or replace it.
template <int R> ALWAYS_INLINE void multiply_tile(Left A, const double* panel, Index depth, double* out, Index stride, bool add) {
    Doubles one[R], two[R];
    for (int r = 0; r < R; ++r) {
        one[r] = add ? doubles_at(out + r * stride) : Doubles{};
        two[r] = add ? doubles_at(out + r * stride + N_DOUBLES) : Doubles{};
    }
    const double* a = A.entries;
    for (Index k = 0; k < depth; ++k, panel += Panels::WIDTH, a += A.along) {
        const Doubles left = doubles_at(panel), right = doubles_at(panel + N_DOUBLES);
        for (int r = 0; r < R; ++r) {
            const double factor = a[r * A.down];
            one[r] += factor * left;
            two[r] += factor * right;
        }
    }
    for (int r = 0; r < R; ++r) {
        Register::store(out + r * stride, one[r]);
        Register::store(out + r * stride + N_DOUBLES, two[r]);
    }
}

/// out (rows × padded columns, `stride` numbers from row to row) = A B, or out += A B. Of every panel only the first
/// rows_of(its first column) rows are computed.
template <class RowsOf> ALWAYS_INLINE void multiply_rows(Left A, RowsOf&& rows_of, const Panels& B, double* out, Index stride, bool add) {
    for (Index first = 0; first < B.columns(); first += Panels::WIDTH) {
        const double* panel = B.panel(first);
        const Index rows = rows_of(first);
        const auto from = [&](Index i) { return Left{A.entries + i * A.down, A.down, A.along}; };
        Index i = 0;
        for (; i + 4 <= rows; i += 4) multiply_tile<4>(from(i), panel, B.rows(), out + i * stride + first, stride, add);
        for (; i < rows; ++i) multiply_tile<1>(from(i), panel, B.rows(), out + i * stride + first, stride, add);
    }
}

/// out = A B, or out += A B; see multiply_rows.
inline void multiply(Left A, Index rows, const Panels& B, double* out, Index stride, bool add = false) {
    multiply_rows(A, [=](Index) { return rows; }, B, out, stride, add);
}

/// The upper triangle of a square product.
inline void multiply_upper(Left A, const Panels& B, double* out, Index stride) {
    multiply_rows(A, [&](Index first) { return std::min(first + Panels::WIDTH, B.columns()); }, B, out, stride, false);
}

}  // namespace engine
