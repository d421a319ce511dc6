/**
 * Seeded randomness for tests. `npm test` prints the seed; `TIDEMARK_SEED=<n> npm test` repeats a run.
 */

/** The seed of this run, an unsigned 32-bit integer. */
export const runSeed: number = Number(process.env.TIDEMARK_SEED ?? '1') >>> 0;

export interface Random {
  /** In [0, 1). */
  next(): number;
  /** Integer in [from, to], both included. */
  integer(from: number, to: number): number;
  pick<T>(items: readonly T[]): T;
  bytes(length: number): Uint8Array;
}

/** A generator of its own for each purpose, so that adding a draw in one test does not change another's. */
export function seeded(purpose: string, seed: number = runSeed): Random {
  // FNV-1a over the purpose keeps streams of one seed apart.
  let state = (seed ^ 0x811c9dc5) >>> 0;
  for (let i = 0; i < purpose.length; i++) state = Math.imul(state ^ purpose.charCodeAt(i), 0x01000193) >>> 0;
  const next = (): number => {
    // mulberry32
    state = (state + 0x6d2b79f5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4_294_967_296;
  };
  const integer = (from: number, to: number): number => from + Math.floor(next() * (to - from + 1));
  return {
    next,
    integer,
    pick: (items) => items[integer(0, items.length - 1)]!,
    bytes: (length) => Uint8Array.from({ length }, () => integer(0, 255)),
  };
}
