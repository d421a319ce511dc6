/**
 * Child of the process life tests: an app that ends in the way that argv names. Says what it does as JSON lines.
 * argv: { scenario, model, dir }
 */
import { createEngine } from '../../dist/index.js';

const { scenario, model, dir } = JSON.parse(process.argv[2]);
const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
const ids = (count) => Array.from({ length: count }, (_, i) => 3 + ((i * 37 + Math.floor(i / 5)) % 300));
const greedy = { temperature: 0, repetitionPenalty: 1, ignoreEos: true };

const open = () => createEngine({ model, threads: 1, cache: dir === undefined ? false : { dir, blockSize: 16, maxBytes: 1_000_000_000 } });
const engine = await open();
engine.on('durable', ({ tokenCount }) => say({ durable: tokenCount }));
engine.on('degraded', ({ code, message }) => say({ degraded: code, message }));
const answer = (options = {}) => engine.complete({ tokens: ids(100), ...greedy, maxTokens: 20, ...options });

const scenarios = {
  /** Nothing asked, nothing closed. */
  async idle() {
    say({ idle: true });
  },
  /** Answered, not closed. */
  async answered() {
    const { tokenIds } = await answer();
    say({ tokens: tokenIds.length });
  },
  /** The answer is pending when the main module ends. */
  async pending() {
    void answer({ maxTokens: 300 }).then(({ tokenIds }) => say({ tokens: tokenIds.length }));
  },
  /** A reader in the middle of its loop is the only thing left. */
  async reading() {
    void (async () => {
      let tokens = 0;
      for await (const chunk of engine.generate({ tokens: ids(100), ...greedy, maxTokens: 300 })) tokens += chunk.tokenIds.length;
      say({ tokens });
    })();
  },
  /** countTokens alone is pending. */
  async counting() {
    void engine.countTokens({ tokens: ids(9) }).then((count) => say({ count }));
  },
  /** Bytes are on their way to the disk when nothing else is left to do. */
  async undrained() {
    await engine.prefill({ tokens: ids(3_000) });
    const { captured, durable } = engine.stats().boundaries;
    say({ captured, durableAtOnce: durable });
    process.on('exit', () => say({ durableAtExit: engine.stats().boundaries.durable }));
  },
  async 'exit in prefill'() {
    engine.on('progress', ({ tokens }) => {
      if (tokens >= 1_000) process.exit(3);
    });
    await answer({ tokens: ids(4_000) });
  },
  async 'exit in decode'() {
    for await (const chunk of engine.generate({ tokens: ids(100), ...greedy, maxTokens: 3_000 })) if (chunk.index === 20) process.exit(4);
  },
  async 'exit at once after submit'() {
    void answer();
    process.exit(5);
  },
  async 'exit code set'() {
    process.exitCode = 6;
    await answer();
  },
  async 'uncaught error in decode'() {
    for await (const chunk of engine.generate({ tokens: ids(100), ...greedy, maxTokens: 3_000 })) if (chunk.index === 20) throw new Error('the app failed');
  },
  async 'uncaught error in a listener'() {
    engine.on('progress', () => {
      throw new Error('the listener failed');
    });
    await answer({ tokens: ids(4_000) });
  },
  async 'unhandled rejection of an answer'() {
    void engine.complete({ tokens: [] });
  },
  async 'close then exit'() {
    await answer();
    say({ report: await engine.close() });
    process.exit(0);
  },
  async 'close then natural end'() {
    await answer();
    say({ report: await engine.close() });
  },
  async 'close not awaited'() {
    await answer();
    void engine.close().then((report) => say({ report }));
  },
  async 'close with an answer pending'() {
    const failed = answer({ maxTokens: 3_000 }).catch((error) => say({ rejected: error.code }));
    const report = await engine.close();
    await failed;
    say({ report });
  },
  async 'close and open again'() {
    for (let i = 0; i < 5; i++) {
      const next = await open();
      await next.complete({ tokens: ids(60), ...greedy, maxTokens: 5 });
      await next.close();
    }
    say({ again: true });
  },
};

await scenarios[scenario]();
say({ main: 'over' });
