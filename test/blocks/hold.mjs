/** File hooks that hold the thread, for good, before the first operation of a kind on a path that matches. */
export default function hold({ words, operation, match }) {
  return {
    before(now, path) {
      if (now !== operation || !path.includes(match) || Atomics.compareExchange(words, 0, 0, 1) !== 0) return;
      while (Atomics.load(words, 0) === 1) Atomics.wait(words, 0, 1, 50);
    },
  };
}
