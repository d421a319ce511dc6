/**
 * `tidemark/store` over an app's own arrays, without MLX: what was put comes back byte for byte, also in a second life,
 * and a prefix is never longer than what is stored.
 */
import type { Worker } from 'node:worker_threads';
import { describe, expect, test } from 'vitest';
import { attachStore, type GetResult, type NamedArray, openStore, type Store, type StoreTicket } from '../../dist/store.js';
import { watchLeaks } from '../helpers/leaks.ts';
import { seeded } from '../helpers/seed.ts';
import { tempDir } from '../helpers/temp.ts';
import { nextMessage, startWorker } from '../helpers/worker.ts';

watchLeaks();
const BLOCK = 16;

type Found = Extract<GetResult, { rows: unknown }>;

/** What the worker answers: `value` is what the call returned. */
interface Answer {
  ok: boolean;
  value?: unknown;
  code?: string;
  message?: string;
}

async function call(worker: Worker, name: string, ...args: unknown[]): Promise<Answer> {
  const answer = nextMessage<Answer>(worker);
  worker.postMessage({ call: name, args });
  return answer;
}

async function attached(store: Store): Promise<Worker> {
  const worker = startWorker(new URL('./client-worker.mjs', import.meta.url));
  const { ticket, transfer } = store.ticket();
  const answer = nextMessage(worker);
  worker.postMessage({ call: 'attach', args: [ticket] }, transfer);
  await answer;
  return worker;
}

function array(seed: string, shape: number[], dtype: NamedArray['dtype'] = 'F32'): NamedArray {
  const bytes = seeded(seed).bytes(shape.reduce((a, b) => a * b, 4));
  return { dtype, shape, bytes };
}

describe('rows and state by name', () => {
  test('blocks come back after the folder was closed and opened again', async () => {
    const dir = tempDir();
    const options = { dir, fingerprint: 'test-v1', blockSize: BLOCK };
    const tokens = Uint32Array.from({ length: 40 }, (_, i) => i * 3);
    const first = await openStore(options);
    const durable: number[] = [];
    first.on('durable', ({ tokenCount }) => durable.push(tokenCount));
    const writer = await attached(first);
    for (const end of [16, 32, 40]) {
      const rows = { keys: array(`k${end}`, [end === 40 ? 8 : BLOCK, 4]), values: array(`v${end}`, [2, end === 40 ? 8 : BLOCK, 2]) };
      expect(await call(writer, 'put', { requestId: 'a', tokens: tokens.slice(0, end), rows, state: { memory: array(`s${end}`, [3, 5]) } })).toMatchObject({
        value: { ok: true },
      });
    }
    await first.flush();
    expect(durable).toEqual([16, 32, 40]);
    await call(writer, 'close');
    expect(await first.close()).toEqual({ durable: 0, lost: 0 });
    await writer.terminate();

    const second = await openStore(options);
    const reader = await attached(second);
    const value = (await call(reader, 'get', Uint32Array.from([...tokens, 1, 2, 3]))).value as Found;
    expect(value).toMatchObject({ tokenCount: 40, missReason: null });
    expect(value.rows).toHaveLength(3);
    expect(value.rows[1]!.keys).toEqual(array('k32', [BLOCK, 4]));
    expect(value.rows[2]!.values).toEqual(array('v40', [2, 8, 2]));
    expect(value.state!.memory).toEqual(array('s40', [3, 5]));

    const shorter = await call(reader, 'get', tokens, { maxTokens: 39 });
    expect(shorter.value).toMatchObject({ tokenCount: 32 });
    const other = await call(
      reader,
      'get',
      tokens.map((t) => t + 1),
    );
    expect(other.value).toMatchObject({ tokenCount: 0, missReason: 'absent' });
    await call(reader, 'close');
    await second.close();
    await reader.terminate();
  });

  test('rows alone are enough where no state is needed', async () => {
    const store = await openStore({ dir: tempDir(), fingerprint: 'rows', blockSize: BLOCK });
    const worker = await attached(store);
    const tokens = Uint32Array.from({ length: BLOCK }, (_, i) => i);
    await call(worker, 'put', { requestId: 'b', tokens, rows: { keys: array('only', [BLOCK, 2]) } });
    await store.flush();
    expect((await call(worker, 'get', tokens, { needsState: false })).value).toMatchObject({ tokenCount: BLOCK, state: null });
    expect((await call(worker, 'get', tokens)).value).toMatchObject({ tokenCount: 0 });
    await call(worker, 'close');
    await store.close();
    await worker.terminate();
  });
});

describe('wrong use is refused with a code', () => {
  test('a byte count that does not fit the shape', async () => {
    const store = await openStore({ dir: tempDir(), fingerprint: 'x', blockSize: BLOCK });
    const worker = await attached(store);
    const answer = await call(worker, 'put', {
      requestId: 'c',
      tokens: Uint32Array.of(1),
      rows: { keys: { dtype: 'F32', shape: [1, 2], bytes: new Uint8Array(7) } },
    });
    expect(answer).toMatchObject({ ok: false, code: 'INVALID_ARGUMENT' });
    await call(worker, 'close');
    await store.close();
    await worker.terminate();
  });

  test('attachStore on the main thread, a second ticket, a folder that is a file', async () => {
    const store = await openStore({ dir: tempDir(), fingerprint: 'x' });
    const { ticket } = store.ticket();
    expect(() => attachStore(ticket as StoreTicket)).toThrow(expect.objectContaining({ code: 'LOCK_ON_MAIN_THREAD' }));
    expect(() => store.ticket()).toThrow(expect.objectContaining({ code: 'INVALID_ARGUMENT' }));
    ticket.hubPort.close();
    await store.close();
    await expect(openStore({ dir: new URL(import.meta.url).pathname, fingerprint: 'x' })).rejects.toMatchObject({ code: 'CACHE_DIR_UNUSABLE' });
  });
});
