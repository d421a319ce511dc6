/**
 * `tidemark/store` as an app uses it, by the types that the package exports. Read by tsc only.
 */
import {
  attachStore,
  type Dtype,
  type GetResult,
  type NamedArray,
  openStore,
  type PutResult,
  type Store,
  type StoreClient,
  type StoreTicket,
  TidemarkError,
} from 'tidemark/store';

type Equal<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
function same<A, B>(_: Equal<A, B>): void {
  /* the types are the test */
}

export async function main(post: (ticket: StoreTicket, transfer: readonly object[]) => void): Promise<void> {
  const store = await openStore({ dir: 'cache', fingerprint: 'my-model-v1', blockSize: 16, maxBytes: 1e9, extraKeys: ['tenant-1'] });
  same<typeof store, Store>(true);
  same<typeof store.mode, 'writer' | 'read-only'>(true);
  store.on('durable', ({ tokenCount, block }) => same<[typeof tokenCount, typeof block], [number, string]>(true));
  store.on('degraded', ({ code, message }) => same<[typeof code extends string ? true : false, typeof message], [true, string]>(true));
  const { ticket, transfer } = store.ticket();
  post(ticket, transfer);
  await store.flush({ deadlineMs: 1000 });
  same<keyof Awaited<ReturnType<Store['close']>>, 'durable' | 'lost'>(true);
  await store.close({ deadlineMs: 1000 });
  // @ts-expect-error: what the blocks belong to must be said
  await openStore({ dir: 'cache', blockSize: 16 });
  // @ts-expect-error: a folder must be said
  await openStore({ fingerprint: 'my-model-v1' });
  // @ts-expect-error: no such event
  store.on('written', () => undefined);
  // @ts-expect-error: an engine's option is no store's
  await openStore({ dir: 'cache', fingerprint: 'x', persist: 'off' });
}

export function worker(ticket: StoreTicket, tokens: Uint32Array, bytes: Uint8Array): number {
  const client = attachStore(ticket);
  same<typeof client, StoreClient>(true);
  const keys: NamedArray = { dtype: 'F32', shape: [16, 8], bytes };
  const put: PutResult = client.put({ requestId: 'chat-1', tokens, rows: { keys }, state: { memory: keys } });
  // The reason is there only when it was refused.
  if (!put.ok) same<typeof put.detail, string>(true);
  // @ts-expect-error: it may have been accepted
  put.reason;
  // @ts-expect-error: no such type of element
  client.put({ requestId: 'chat-1', tokens, rows: { keys: { dtype: 'float32', shape: [16, 8], bytes } } });
  // @ts-expect-error: tokens are 32-bit numbers, so that a block's identity is the same everywhere
  client.put({ requestId: 'chat-1', tokens: [1, 2], rows: { keys } });
  // @ts-expect-error: a request has a name
  client.put({ tokens, rows: { keys } });
  const found: GetResult = client.get(tokens, { needsState: false, deadlineMs: 100, maxTokens: 39 });
  if ('rows' in found) {
    same<typeof found.rows, Record<string, NamedArray>[]>(true);
    same<NamedArray['dtype'], Dtype>(true);
    return found.state?.memory?.bytes.length ?? found.tokenCount;
  }
  same<typeof found.detail, string>(true);
  client.end('chat-1');
  client.close();
  return found.tokenCount;
}

export function refused(error: unknown): string {
  return error instanceof TidemarkError ? error.code : '';
}
