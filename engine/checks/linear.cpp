// Dense linear systems: the residual of the solution, and that panels and threads change no bit.
#include "../linear.hpp"

#include <cmath>
#include <cstring>

#include "checks.hpp"

namespace {

using engine::Index;

/// Elimination one column at a time.
bool plain(std::vector<double>& A, std::vector<double>& B, Index n, Index m) {
    for (Index k = 0; k < n; ++k) {
        Index pivot = k;
        for (Index i = k + 1; i < n; ++i)
            if (std::abs(A[i * n + k]) > std::abs(A[pivot * n + k])) pivot = i;
        if (A[pivot * n + k] == 0.0) return false;
        for (Index j = 0; j < n; ++j) std::swap(A[k * n + j], A[pivot * n + j]);
        for (Index j = 0; j < m; ++j) std::swap(B[k * m + j], B[pivot * m + j]);
        for (Index i = k + 1; i < n; ++i) {
            const double factor = A[i * n + k] /= A[k * n + k];
            for (Index j = k + 1; j < n; ++j) A[i * n + j] -= factor * A[k * n + j];
            for (Index j = 0; j < m; ++j) B[i * m + j] -= factor * B[k * m + j];
        }
    }
    for (Index i = n - 1; i >= 0; --i)
        for (Index j = 0; j < m; ++j) {
            for (Index k = n - 1; k > i; --k) B[i * m + j] -= A[i * n + k] * B[k * m + j];
            B[i * m + j] /= A[i * n + i];
        }
    return true;
}

}  // namespace

bool check_linear(std::mt19937_64& random) {
    const Index n = 1 + Index(random() % 120), m = 1 + Index(random() % 6);
    std::normal_distribution<double> normal;
    std::vector<double> A(n * n), B(n * m);
    for (double& a : A) a = normal(random);
    for (double& b : B) b = normal(random);
    if (random() % 10 == 0) std::fill(A.begin(), A.begin() + n, 0.0);
    std::vector<double> lu = A, X = B, other = A, wanted = B;
    engine::Team team(1 + int(random() % 3));
    const bool solved = engine::solve_dense({lu, X, n, m}, team);
    if (solved != plain(other, wanted, n, m)) return false;
    if (!solved) return true;
    double worst = 0.0, largest = 0.0;
    for (Index i = 0; i < n; ++i)
        for (Index j = 0; j < m; ++j) {
            double left = B[i * m + j];
            for (Index k = 0; k < n; ++k) left -= A[i * n + k] * X[k * m + j];
            worst = std::max(worst, std::abs(left)), largest = std::max(largest, std::abs(X[i * m + j]));
        }
    return worst <= 1e-12 * double(n) * (1.0 + largest) && std::memcmp(X.data(), wanted.data(), X.size() * sizeof(double)) == 0;
}
