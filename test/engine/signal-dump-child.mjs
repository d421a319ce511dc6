/**
 * Child of the signal dump tests: an engine that computes, with or without the option. JSON lines on standard output.
 * argv: { scenario, model, option }
 */
import { createEngine } from '../../dist/index.js';

const { scenario, model, option } = JSON.parse(process.argv[2]);
const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
const SIGNAL = 'SIGUSR2';
const more = option === undefined ? {} : { diagnoseOnSignal: option };
const open = () => createEngine({ model, threads: 1, cache: false, ...more });
const handlers = () => process.listenerCount(SIGNAL);
const tokens = Array.from({ length: 100 }, (_, i) => 3 + ((i * 37) % 300));
const greedy = { tokens, temperature: 0, repetitionPenalty: 1, ignoreEos: true };

const scenarios = {
  /** Says that it computes, and goes on until it has been told to stop. */
  async computing() {
    const engine = await open();
    let going = true;
    process.stdin.once('data', () => {
      going = false;
    });
    let answers = 0;
    while (going) {
      for await (const chunk of engine.generate({ ...greedy, maxTokens: 500 })) {
        if (chunk.index === 5) {
          answers += 1;
          say({ computing: answers });
        }
        if (!going) break;
      }
    }
    await engine.close();
    say({ closed: handlers() });
    process.stdin.destroy();
  },
  /** Engines come and go; how many handlers there are meanwhile. */
  async several() {
    const counts = [handlers()];
    const [first, second] = [await open(), await open()];
    counts.push(handlers());
    await first.close();
    await first.close();
    counts.push(handlers());
    await second.close();
    counts.push(handlers());
    const third = await open();
    counts.push(handlers());
    await third.close();
    counts.push(handlers());
    say({ counts });
  },
  /** A model that does not load leaves no handler. */
  async refused() {
    const code = await createEngine({ model: `${model}/no-model`, cache: false, ...more }).catch((error) => error.code);
    say({ code, handlers: handlers() });
  },
  /** Nothing is asked and nothing closed: the handler does not keep the process. */
  async idle() {
    await open();
    say({ handlers: handlers() });
  },
};

await scenarios[scenario]();
