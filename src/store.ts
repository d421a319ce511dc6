/**
 * `tidemark/store`: the block store over an app's own named byte arrays. No MLX is needed.
 *
 * The main thread opens the folder; a Worker puts and gets, because both may wait.
 *
 * @example
 * ```ts
 * // main.js
 * import { openStore } from 'tidemark/store';
 * const store = await openStore({ dir: 'cache', fingerprint: 'my-model-v1', blockSize: 16 });
 * store.on('durable', ({ tokenCount }) => console.log('on disk up to', tokenCount));
 * const { ticket, transfer } = store.ticket();
 * worker.postMessage(ticket, transfer);
 *
 * // worker.js
 * import { attachStore } from 'tidemark/store';
 * const client = attachStore(ticket);
 * client.put({ requestId: 'chat-1', tokens, rows: { keys: { dtype: 'F32', shape: [16, 8], bytes } } });
 * const found = client.get(tokens, { needsState: false }); // { tokenCount, rows, state } or { tokenCount: 0, missReason }
 * ```
 */
export { openStore, Store, type StoreEvents, type StoreOptions } from './host/open-store.ts';
export { TidemarkError } from './shared/errors.ts';
export type { Dtype } from './shared/layer-state.ts';
export type { NamedArray, NamedArrays } from './store-client/named-arrays.ts';
export { type BlockToPut, type GetResult, type PutResult, StoreClient, type StoreTicket } from './store-client/store-client.ts';

import { StoreClient, type StoreTicket } from './store-client/store-client.ts';

/** Takes a ticket over in a Worker. Throws LOCK_ON_MAIN_THREAD on the main thread. */
export function attachStore(ticket: StoreTicket): StoreClient {
  return new StoreClient(ticket);
}
