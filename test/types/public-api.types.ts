/**
 * What an app may write against `tidemark`, and what must not compile. Read by tsc only, never run.
 */
import { type Completion, createEngine, type Engine, type ErrorCode, type MissReason, TidemarkError } from 'tidemark';

type Equal<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
function same<A, B>(_: Equal<A, B>): void {
  /* the types are the test */
}

export async function uses(signal: AbortSignal): Promise<void> {
  await using engine = await createEngine({ model: 'm', cache: { dir: 'c', maxBytes: 1e9 }, device: 'auto' });
  same<typeof engine, Engine>(true);
  for await (const chunk of engine.generate({ messages: [{ role: 'user', content: 'hi' }], maxTokens: 5, signal })) {
    same<typeof chunk.text, string>(true);
    same<typeof chunk.missReason, MissReason | null | undefined>(true);
  }
  const result = await engine.complete({ prompt: 'hi', stop: ['a'], temperature: 0 });
  same<typeof result, Completion>(true);
  same<typeof result.usage.cachedTokens, number>(true);
  await engine.prefill({ tokens: [1, 2] });
  await engine.prefill({ tokens: new Uint32Array(2) });
  same<Awaited<ReturnType<Engine['countTokens']>>, number>(true);
  engine.on('durable', ({ tokenCount }) => same<typeof tokenCount, number>(true)).on('miss', ({ reason }) => same<typeof reason, MissReason>(true));
  same<ReturnType<Engine['stats']>['boundaries']['durable'], number>(true);
  same<ReturnType<Engine['diagnose']>['text'], string>(true);
  await engine.close({ deadlineMs: 1000 });
  await createEngine({ model: 'm', cache: false });
}

export function errors(error: unknown): ErrorCode | null {
  return error instanceof TidemarkError ? error.code : null;
}

export async function wrong(engine: Engine): Promise<void> {
  // @ts-expect-error: a model is needed
  await createEngine({});
  // @ts-expect-error: no such device
  await createEngine({ model: 'm', device: 'tpu' });
  // @ts-expect-error: true is no cache
  await createEngine({ model: 'm', cache: true });
  // @ts-expect-error: no such event
  engine.on('finished', () => undefined);
  // @ts-expect-error: sampling values are numbers
  engine.generate({ prompt: 'hi', temperature: '0' });
  // @ts-expect-error: no such option
  engine.generate({ prompt: 'hi', temprature: 0 });
  // @ts-expect-error: an answer is no string
  const text: string = await engine.complete({ prompt: 'hi' });
  // @ts-expect-error: no such code
  new TidemarkError('NO_SUCH_CODE', text);
}
