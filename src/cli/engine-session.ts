/**
 * An engine for the length of one verb: progress while it loads, its events as JSON lines or notes, and a close that
 * happens however the verb ends.
 */
import type { Engine, EngineOptions, LoadProgress } from '../host/api.ts';
import { SIGNAL_EXIT_CODES } from './interrupts.ts';
import { formatBytes } from './units.ts';
import type { Context } from './verb.ts';

export async function withEngine<R>(options: EngineOptions, context: Context, use: (engine: Engine) => Promise<R>): Promise<R> {
  const { out, interrupts, deps } = context;
  const onProgress = (progress: LoadProgress): void => {
    const { phase, bytes, totalBytes } = progress;
    void out.event({ type: 'load', phase, bytes, totalBytes });
    const share = totalBytes > 0 ? `: ${Math.floor((100 * bytes) / totalBytes)} % of ${formatBytes(totalBytes)}` : '';
    out.progress(`loading ${phase}${share}`);
  };
  // Loading cannot be stopped half-way; no request is in flight, so there is nothing to take back: leave at once.
  const engine = await interrupts.during(
    (signal) => context.exitNow(SIGNAL_EXIT_CODES[signal]),
    () => deps.createEngine({ ...options, onProgress }),
  );
  out.clearProgress();
  try {
    forwardEvents(engine, context);
    await out.event({ type: 'ready', model: engine.model, cacheDir: engine.cacheDir });
    return await use(engine);
  } finally {
    out.clearProgress();
    const report = await engine.close();
    await out.event({ type: 'closed', ...report });
    if (report.lost > 0) out.note(`tidemark: ${report.lost} computed prefix(es) did not reach the disk in time and will be computed again`);
  }
}

function forwardEvents(engine: Engine, { out }: Context): void {
  engine.on('durable', (event) => void out.event({ type: 'durable', ...event }));
  engine.on('miss', (event) => void out.event({ type: 'miss', ...event }));
  engine.on('progress', (event) => {
    void out.event({ type: 'progress', ...event });
    const { phase, tokens, totalTokens } = event;
    if (tokens < totalTokens) out.progress(`${phase === 'restore' ? 'reading the cache' : 'reading the prompt'}: ${tokens} of ${totalTokens} tokens`);
    else out.clearProgress();
  });
  engine.on('degraded', (event) => {
    void out.event({ type: 'degraded', ...event });
    out.note(`tidemark: warning: ${event.message} (${event.code})`);
  });
  engine.on('recovered', (event) => {
    void out.event({ type: 'recovered', ...event });
    out.note(`tidemark: ${event.message} (${event.code})`);
  });
  engine.on('warning', (event) => {
    void out.event({ type: 'warning', ...event });
    out.note(`tidemark: warning: ${event.message} (${event.code})`);
  });
  engine.on('stall', (event) => {
    void out.event({ type: 'stall', ...event });
    out.note(`tidemark: ${event.thread} has been waiting for ${Math.round(event.sinceMs)} ms\n${event.diagnosis}`);
  });
}
