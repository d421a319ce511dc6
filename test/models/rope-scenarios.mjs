import * as mx from '../../dist/engine-thread/mlx/ops.js';
import { Loader } from '../../dist/engine-thread/models/parameters.js';
import { Rope } from '../../dist/engine-thread/models/rope.js';

/** Largest difference of the CPU rotation to MLX's own, for rows at different positions. */
export function differences(s, cases) {
  return cases.map(({ offsets, length, headDim, dims, base, scale }) => {
    const loader = new Loader({ stream: s, device: 'cpu', compute: 'float32' }, 0);
    try {
      return mx.scope(() => {
        const rope = new Rope({ dims, base, scale }, headDim, 'float32', loader);
        const rows = offsets.length;
        const x = mx.random.uniform(-1, 1, [rows, 3, length, headDim], 'float32', mx.random.key(1), s);
        const ours = rope.prepare(offsets, { s, device: 'cpu', batch: rows, length, rows: rows * length })(x);
        const theirs = mx.rope(x, dims, false, base, scale, mx.fromInts(Int32Array.from(offsets), [rows]), null, s);
        const worst = mx.max(mx.abs(mx.sub(ours, theirs, s), s), null, false, s);
        mx.evaluate([worst]);
        return mx.itemNumber(worst);
      });
    } finally {
      loader.release();
    }
  });
}
