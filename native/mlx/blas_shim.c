/* scipy-openblas32 exports its functions with a prefix only. libmlx looks for the plain names, in this addon first: it is what loaded libmlx.
 * LAPACK stays the wheel's own. */

#define EXPORT __attribute__((visibility("default")))

#define GEMM(name, SCALAR, ELEMENT)                                                                                                     \
  void scipy_##name(int, int, int, int, int, int, SCALAR, const ELEMENT*, int, const ELEMENT*, int, SCALAR, ELEMENT*, int);             \
  EXPORT void name(int order, int ta, int tb, int m, int n, int k, SCALAR alpha, const ELEMENT* a, int lda, const ELEMENT* b, int ldb,  \
                   SCALAR beta, ELEMENT* c, int ldc) {                                                                                  \
    scipy_##name(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);                                                          \
  }

typedef const void* Complex;

GEMM(cblas_sgemm, float, float)
GEMM(cblas_dgemm, double, double)
GEMM(cblas_cgemm, Complex, void)
