import * as mx from '../../dist/engine-thread/mlx/ops.js';
import { deltaChunks, deltaStep, invertUnitLower } from '../../dist/engine-thread/models/gated-delta.js';

const tensor = (values, shape) => mx.fromBytes(new Uint8Array(Float32Array.from(values).buffer), shape, 'float32');

/** Deterministic numbers from -1 to 1. */
function numbers(seed) {
  let state = seed >>> 0 || 1;
  return () => {
    state = (Math.imul(state ^ (state >>> 15), 0x2c1b3c6d) + 0x9e3779b9) >>> 0;
    return (state / 2 ** 32) * 2 - 1;
  };
}

/** Inputs of one case: unit keys, scaled queries, gates and betas of the given character. */
function inputs({ batch, keyHeads, valueHeads, keyDim, valueDim, length, gate, beta, similar, seed }) {
  const next = numbers(seed);
  const common = Array.from({ length: keyDim }, next);
  const unit = (scale) => {
    const v = common.map((c) => similar * c + (1 - similar) * next());
    const norm = Math.hypot(...v) || 1;
    return v.map((x) => Math.fround((x / norm) * scale));
  };
  const vectors = (count, scale) => Array.from({ length: count }, () => unit(scale)).flat();
  return {
    q: vectors(batch * keyHeads * length, keyDim ** -0.5),
    k: vectors(batch * keyHeads * length, 1),
    v: Array.from({ length: batch * valueHeads * length * valueDim }, () => Math.fround(next())),
    g: Array.from({ length: batch * valueHeads * length }, () => Math.fround(-gate * Math.abs(next()))),
    beta: Array.from({ length: batch * valueHeads * length }, () => Math.fround(beta + (1 - beta) * Math.abs(next()))),
    state: Array.from({ length: batch * valueHeads * valueDim * keyDim }, () => Math.fround(next())),
  };
}

/** The rule as it is defined, token by token in float64. */
function loop({ q, k, v, g, beta, state }, { batch, keyHeads, valueHeads, keyDim, valueDim, length }) {
  const S = Float64Array.from(state);
  const out = new Float64Array(batch * valueHeads * length * valueDim);
  for (let b = 0; b < batch; b++) {
    for (let h = 0; h < valueHeads; h++) {
      const head = b * valueHeads + h;
      const keyHead = b * keyHeads + Math.floor(h / (valueHeads / keyHeads));
      for (let t = 0; t < length; t++) {
        const decay = Math.exp(g[head * length + t]);
        const key = (j) => k[(keyHead * length + t) * keyDim + j];
        for (let i = 0; i < valueDim; i++) {
          const row = (head * valueDim + i) * keyDim;
          let known = 0;
          for (let j = 0; j < keyDim; j++) {
            S[row + j] *= decay;
            known += S[row + j] * key(j);
          }
          const write = (v[(head * length + t) * valueDim + i] - known) * beta[head * length + t];
          let answer = 0;
          for (let j = 0; j < keyDim; j++) {
            S[row + j] += write * key(j);
            answer += S[row + j] * q[(keyHead * length + t) * keyDim + j];
          }
          out[(head * length + t) * valueDim + i] = answer;
        }
      }
    }
  }
  return { out, state: S };
}

const worst = (a, b) =>
  a.reduce((max, x, i) => Math.max(max, Math.abs(x - b[i])), 0) /
  Math.max(
    1,
    b.reduce((max, x) => Math.max(max, Math.abs(x)), 0),
  );

/** Relative errors of the chunked form and of single steps against the loop. */
export function compare(s, cases) {
  return cases.map((c) => {
    const { batch, keyHeads, valueHeads, keyDim, valueDim, length, chunk } = c;
    const values = inputs(c);
    const expected = loop(values, c);
    const shape = {
      q: [batch, keyHeads, length, keyDim],
      v: [batch, valueHeads, length, valueDim],
      g: [batch, valueHeads, length],
      state: [batch, valueHeads, valueDim, keyDim],
    };
    return mx.scope(() => {
      const q = tensor(values.q, shape.q);
      const k = tensor(values.k, shape.q);
      const v = tensor(values.v, shape.v);
      const g = tensor(values.g, shape.g);
      const beta = tensor(values.beta, shape.g);
      const start = tensor(values.state, shape.state);
      const chunked = deltaChunks(q, k, v, g, beta, start, batch, length, chunk, c, s);
      let state = start;
      const outs = [];
      for (let t = 0; t < length; t++) {
        const at = (x, [b, h, , d]) => mx.squeeze(mx.slice(x, [0, 0, t, 0], [b, h, t + 1, d], s), 2, s);
        const gate = (x) => mx.squeeze(mx.slice(x, [0, 0, t], [batch, valueHeads, t + 1], s), 2, s);
        const next = deltaStep(at(q, shape.q), at(k, shape.q), at(v, shape.v), mx.exp(gate(g), s), gate(beta), state, batch, c, s);
        outs.push(next.out);
        state = next.state;
      }
      const stepped = mx.contiguous(mx.stack(outs, 2, s), s);
      mx.evaluate([chunked.out, chunked.state, stepped, state]);
      return {
        chunkedOut: worst([...mx.toFloat32Array(chunked.out)], expected.out),
        chunkedState: worst([...mx.toFloat32Array(chunked.state)], expected.state),
        steppedOut: worst([...mx.toFloat32Array(stepped)], expected.out),
        steppedState: worst([...mx.toFloat32Array(state)], expected.state),
      };
    });
  });
}

/** Largest element of (I + A) X - I for X the inverse that was built. */
export function inverseResidual(s, { n, value, seed }) {
  const next = numbers(seed ?? 1);
  const a = Float32Array.from({ length: n * n }, (_, i) => (i % n < Math.floor(i / n) ? (value ?? next()) : 0));
  return mx.scope(() => {
    const inverse = invertUnitLower(tensor(a, [1, n, n]), [1], n, s);
    mx.evaluate([inverse]);
    const x = mx.toFloat32Array(inverse);
    let residual = 0;
    for (let i = 0; i < n; i++) {
      for (let j = 0; j < n; j++) {
        let sum = x[i * n + j];
        for (let k = 0; k < i; k++) sum += a[i * n + k] * x[k * n + j];
        residual = Math.max(residual, Math.abs(sum - (i === j ? 1 : 0)));
      }
    }
    return residual;
  });
}
