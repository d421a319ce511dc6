/** Hubs of the tests: opened with short times, closed after the test, their events kept. */
import { fileURLToPath } from 'node:url';
import { afterEach } from 'vitest';
import type { KeeperTuning } from '../../dist/host/keeper-protocol.js';
import { processRegistry } from '../../dist/host/process-registry.js';
import type { HubOpening, StoreHub } from '../../dist/host/store-hub.js';
import { openStoreHub } from '../../dist/host/store-hub.js';
import type { StoreEvent } from '../../dist/shared/events.js';
import type { SessionMemory } from '../../dist/shared/session/index.js';
import { createSessionMemory } from '../../dist/shared/session/index.js';

const file = (name: string) => fileURLToPath(new URL(`./workers/${name}`, import.meta.url));

export const QUICK: Partial<KeeperTuning> = { backOffMs: [0, 10], stopMs: 5_000, terminateMs: 2_000, noProgressMs: 10_000, absoluteMs: 30_000 };
export const COMMAND = { throw: 1, exit: 2, dieWithLock: 3, sleepForever: 4, readForever: 5, degrade: 6, freeItems: 7 } as const;

/** Sessions of a megabyte: the tests move no data. */
export const SMALL = { pendingMaxBytes: 1024 * 1024, queueCapacity: 4, unitCapacity: 4, registryCapacity: 16 };

export interface Commands {
  readonly tuning: Partial<KeeperTuning>;
  give(hub: StoreHub, loop: 'writer' | 'store', command: number): void;
}

/** Loops that do nothing but what they are told. */
export function obedient(init: { writer?: Record<string, unknown>; store?: Record<string, unknown> } = {}): Commands {
  const words = { writer: new SharedArrayBuffer(4), store: new SharedArrayBuffer(4) };
  return {
    tuning: {
      ...QUICK,
      writerEntry: file('writer.mjs'),
      storeEntry: file('store.mjs'),
      writerInit: { command: words.writer, ...init.writer },
      storeInit: { command: words.store, ...init.store },
    },
    give(hub, loop, command) {
      Atomics.store(new Int32Array(words[loop]), 0, command);
      hub.control[loop].bell.ring();
    },
  };
}

const open = new Set<StoreHub>();

/** Closes what a test left open. Called after `watchLeaks()`, whose look at leftovers comes last then. */
export function closeHubsAfterEach(): void {
  afterEach(async () => {
    for (const hub of open) while ((await hub.release(10_000)) && hub.closing === null);
    open.clear();
  });
}

export async function openHub(dir: string, tuning: Partial<KeeperTuning> = QUICK): Promise<HubOpening> {
  const opening = await openStoreHub(processRegistry(), { dir, maxBytes: 1e9, blockSize: 256, tuning });
  if (opening.hub !== null) open.add(opening.hub);
  return opening;
}

export function newSession(hub: StoreHub): SessionMemory {
  return createSessionMemory({ stagingRoot: hub.stagingRoot, hub: hub.words, number: hub.nextSessionNumber(), limits: SMALL });
}

/** Every event of a hub from now on, with a wait for the one that is looked for. */
export function listen(hub: StoreHub) {
  const events: StoreEvent[] = [];
  const waiting = new Set<() => void>();
  hub.on('store', (event) => {
    events.push(event);
    for (const look of waiting) look();
  });
  return {
    events,
    codes: () => events.filter((e) => e.type === 'degraded' || e.type === 'recovered').map((e) => `${e.type} ${e.code}`),
    next(test: (event: StoreEvent) => boolean, timeoutMs = 15_000): Promise<StoreEvent> {
      return new Promise((resolve, reject) => {
        const timer = setTimeout(() => {
          waiting.delete(look);
          reject(new Error(`that event did not come; there were ${JSON.stringify(events)}`));
        }, timeoutMs);
        const look = () => {
          const found = events.find(test);
          if (found === undefined) return;
          clearTimeout(timer);
          waiting.delete(look);
          resolve(found);
        };
        waiting.add(look);
        look();
      });
    },
  };
}

export const isNote = (text: RegExp) => (event: StoreEvent) => event.type === 'note' && text.test(event.message);
export const is = (type: string, code: string) => (event: StoreEvent) => event.type === type && 'code' in event && event.code === code;
