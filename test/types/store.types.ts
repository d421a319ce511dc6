/**
 * `tidemark/store` as an app uses it. Read by tsc only.
 */
import { attachStore, openStore, type StoreTicket } from 'tidemark/store';

export async function main(post: (ticket: StoreTicket) => void): Promise<void> {
  const store = await openStore({ dir: 'cache', fingerprint: 'my-model-v1', blockSize: 16 });
  store.on('durable', ({ tokenCount }) => tokenCount + 1);
  post(store.ticket().ticket);
  // @ts-expect-error: what the blocks belong to must be said
  await openStore({ dir: 'cache', blockSize: 16 });
}

export function worker(ticket: StoreTicket, tokens: Uint32Array, bytes: Uint8Array): number {
  const client = attachStore(ticket);
  client.put({ requestId: 'chat-1', tokens, rows: { keys: { dtype: 'F32', shape: [16, 8], bytes } } });
  // @ts-expect-error: no such type of element
  client.put({ requestId: 'chat-1', tokens, rows: { keys: { dtype: 'float32', shape: [16, 8], bytes } } });
  return client.get(tokens, { needsState: false }).tokenCount;
}
