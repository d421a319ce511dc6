#include "groups.h"
#include "mlx/ops.h"

#define UNARY(name, op) b.def(name, [](const mx::array& a, mx::Stream s) { return mx::op(a, s); })
#define BINARY(name, op)                                           \
  b.def(name, [](Operand a, Operand c, mx::Stream s) {             \
    auto [x, y] = resolve(a, c);                                   \
    return mx::op(x, y, s);                                        \
  })

namespace tidemark {

void bindElementwise(Binder& b) {
  UNARY("neg", negative);
  UNARY("exp", exp);
  UNARY("expm1", expm1);
  UNARY("log", log);
  UNARY("log1p", log1p);
  UNARY("log2", log2);
  UNARY("sigmoid", sigmoid);
  UNARY("square", square);
  UNARY("sqrt", sqrt);
  UNARY("rsqrt", rsqrt);
  UNARY("reciprocal", reciprocal);
  UNARY("tanh", tanh);
  UNARY("erf", erf);
  UNARY("abs", abs);
  UNARY("sign", sign);
  UNARY("cos", cos);
  UNARY("sin", sin);
  UNARY("floor", floor);
  UNARY("ceil", ceil);
  UNARY("round", round);
  UNARY("logicalNot", logical_not);
  UNARY("isfinite", isfinite);
  UNARY("isnan", isnan);

  BINARY("add", add);
  BINARY("sub", subtract);
  BINARY("mul", multiply);
  BINARY("div", divide);
  BINARY("floorDivide", floor_divide);
  BINARY("remainder", remainder);
  BINARY("power", power);
  BINARY("logaddexp", logaddexp);
  BINARY("maximum", maximum);
  BINARY("minimum", minimum);
  BINARY("equal", equal);
  BINARY("notEqual", not_equal);
  BINARY("less", less);
  BINARY("lessEqual", less_equal);
  BINARY("greater", greater);
  BINARY("greaterEqual", greater_equal);
  BINARY("logicalAnd", logical_and);
  BINARY("logicalOr", logical_or);
  BINARY("bitwiseAnd", bitwise_and);
  BINARY("bitwiseOr", bitwise_or);
  BINARY("leftShift", left_shift);
  BINARY("rightShift", right_shift);

  b.def("where", [](const mx::array& condition, Operand a, Operand c, mx::Stream s) {
    auto [x, y] = resolve(a, c);
    return mx::where(condition, x, y, s);
  });
  b.def("clip", [](const mx::array& a, std::optional<double> low, std::optional<double> high, mx::Stream s) {
    std::optional<mx::array> lo, hi;
    if (low) lo = mx::array(*low, a.dtype());
    if (high) hi = mx::array(*high, a.dtype());
    return mx::clip(a, lo, hi, s);
  });
  b.def("silu", [](const mx::array& a, mx::Stream s) { return mx::multiply(a, mx::sigmoid(a, s), s); });
  b.def("softplus", [](const mx::array& a, mx::Stream s) { return mx::logaddexp(a, mx::array(0, a.dtype()), s); });
}

}  // namespace tidemark
