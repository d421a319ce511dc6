/** Child of the fault tests: an engine with a fault (faults.mjs) in it. Says what it sees as JSON lines. argv: { scenario, model, dir } */
import { createEngine } from '../../dist/index.js';

const { scenario, model, dir } = JSON.parse(process.argv[2]);
const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
const ids = (count, step = 37) => Array.from({ length: count }, (_, i) => 3 + ((i * step + Math.floor(i / 5)) % 300));
const greedy = { temperature: 0, repetitionPenalty: 1, ignoreEos: true };

const engine = await createEngine({
  model,
  threads: 1,
  maxNumSeqs: 2,
  maxUnreadChunks: 4,
  cache: dir === undefined ? false : { dir, blockSize: 16, maxBytes: 1e9 },
});
engine.on('degraded', ({ code }) => say({ degraded: code }));
process.on('unhandledRejection', (error) => say({ unhandled: String(error) }));
const codeOf = (promise) =>
  promise.then(
    () => 'answered',
    (error) => error.code,
  );
const answer = (step, maxTokens = 100) => codeOf(engine.complete({ tokens: ids(60, step), ...greedy, maxTokens }));

const scenarios = {
  async lost() {
    say({ answers: await Promise.all([answer(1), answer(2), answer(3)]) });
    say({ later: await answer(4), health: engine.health().status, running: engine.stats().requests.running, queued: engine.stats().requests.queued });
    const report = await engine.close();
    say({ report });
  },
  async blocks() {
    const pending = answer(1);
    await new Promise((resolve) => setTimeout(resolve, 300));
    const begin = performance.now();
    await engine.close({ deadlineMs: 200 });
    say({ closed: performance.now() - begin, pending: await pending });
  },
  async failsInFlight() {
    const answered = await answer(1, 5);
    const begin = performance.now();
    await engine.close({ deadlineMs: 10_000 });
    say({ answered, closed: performance.now() - begin });
  },
};
await scenarios[scenario]();
