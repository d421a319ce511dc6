/**
 * The product's code of a session, boundary store and snapshot writer as steps, and what stands in for the rest: the layout of
 * images (a stamp instead of tensors), the thread table, and what tells the host.
 *
 * Words under a lock are no points of their own. Instead every use of them is checked to be under that lock, so that a use
 * without it is found in any schedule.
 */
import { createHash } from 'node:crypto';
import { dirname, join } from 'node:path';
import { PagedBytes as Paged } from '../../../src/shared/blocks/paged-bytes.ts';
import { DROP_REASONS, TidemarkError } from '../../../src/shared/errors.ts';
import { errnoOf, temporaryPathFor } from '../../../src/shared/files.ts';
import { ITEM, STATE } from '../../../src/shared/session/item-table.ts';
import * as layout from '../../../src/shared/session/layout.ts';
import { Ledger, sumOfStates } from '../../../src/shared/session/ledger.ts';
import { MAX_RESERVATIONS, resolveLimits } from '../../../src/shared/session/limits.ts';
import { PagePool } from '../../../src/shared/session/page-pool.ts';
import { FILE_STATE, RECORD, Registry } from '../../../src/shared/session/registry.ts';
import * as requestKeys from '../../../src/shared/session/request-key.ts';
import * as staging from '../../../src/shared/staging.ts';
import { FILE_STEPS, hashOf, MemoryFiles, stamp } from './memory-files.ts';
import type { Step, World } from './scheduler.ts';
import { loadSteps, type Mutation } from './transform.ts';
import { OWN, type Steps, SYNC_MODULES } from './world.ts';

/** What the stand-ins need to know of the session. */
export interface Host {
  readonly world: World;
  readonly firstUnit: number;
  /** Faults unless the running thread holds the lock. */
  requireLock(lock: string, what: string): void;
  /** A stamp for an image of this boundary. */
  nextImage(boundary: string): number;
}

const MODULES = [
  ...SYNC_MODULES,
  'shared/sync/with-lock',
  'shared/sync/lock-table',
  'shared/loop-control',
  'shared/session/item-table',
  'shared/session/oversize',
  'shared/session/pending',
  'shared/session/item-space',
  'shared/session/session',
  'shared/session/leases',
  'shared/session/publication',
  'shared/session/cleanup',
  'shared/session/staged-files',
  'shared/session/units',
  'snapshot-writer/write-item',
  'snapshot-writer/session-queue',
  'snapshot-writer/loop',
  'engine-thread/boundary/overflow',
  'engine-thread/boundary/save',
  'engine-thread/boundary/snapshot-store',
];

/** What is used under a lock only, as is checked: their users are never stopped in between. */
const WHOLE = [...OWN, 'get', 'set', 'has', 'raise', 'clear', 'is', 'isAccepted', 'isCancelled', 'claim'];

/** Copying out takes time: others may run before. */
class PagedBytes extends Paged {
  static override of(bytes: Uint8Array): PagedBytes {
    return new PagedBytes([bytes], Math.max(bytes.length, 1), bytes.length);
  }

  // @ts-expect-error a step, where the product has a copy
  override *slice(from: number, to: number): Step {
    yield;
    return super.slice(from, to);
  }
}

/** Sites under a lock whose functions leave something behind in variables of their callers. */
const KEEPING = ['save.express', 'save.wait'];

export function loadSession(host: Host, mutations: readonly Mutation[]): Steps {
  const { world } = host;
  const constants: Mutation[] = [
    { path: 'shared/sync/lock-word', find: /const FAIR_AFTER_MS = 1;/, replace: 'const FAIR_AFTER_MS = Infinity;' },
    { path: 'shared/sync/waits', find: /const SLICE_MS = 50;/, replace: 'const SLICE_MS = Infinity;' },
    { path: 'shared/sync/condition', find: /const REACQUIRE_MS = 10_000;/, replace: 'const REACQUIRE_MS = Infinity;' },
    { path: 'shared/session/session', find: /const SETTLE_MS = 30_000;/, replace: 'const SETTLE_MS = Infinity;' },
    { path: 'shared/session/staged-files', find: /Math\.min\(left, 50\)/, replace: 'left' },
    { path: 'snapshot-writer/session-queue', find: /const BUSY_WAIT_MS = 20;/, replace: 'const BUSY_WAIT_MS = Infinity;' },
    // Pages are memory, not protocol.
    { path: 'snapshot-writer/loop', find: /if \(this\.#touchAhead\(\)\)\s+continue;/, replace: '' },
  ];
  const known = underLock(host, 'pending', PagePool, ['view', 'touch', 'chain', 'pagesFor', 'touchedFree', 'inUse']);
  const records = underLock(host, 'registry', Registry, []);
  const image = {
    PagedBytes,
    layoutImage: (spec: { end: number; layers: { bytes: number }[]; blockHash: string }) => {
      return { totalBytes: spec.layers[0]!.bytes, number: host.nextImage(`${spec.blockHash}/${spec.end}.safetensors`) };
    },
    fillImage: (made: { number: number }, target: PagedBytes) => {
      for (const part of target.segments(0, target.byteLength)) stamp(part, made.number);
    },
    // A file here is one number: all of it is payload.
    headerBytesOf: () => 0,
    sealImage: () => undefined,
    parseImageHeader: (bytes: Uint8Array) => ({ ok: true, number: new DataView(bytes.buffer, bytes.byteOffset).getInt32(0, true) }),
    verifyImage: (bytes: PagedBytes) => {
      const first = new Uint8Array(4);
      bytes.read(0, first);
      return { ok: true, number: new DataView(first.buffer).getInt32(0, true) };
    },
    layersFromImage: ({ number }: { number: number }) => [number],
  };
  const modules = {
    'node:crypto': { createHash },
    'node:path': { dirname, join },
    'shared/sync/clock': { now: world.now },
    'shared/sync/thread-table': { slotOf: (token: number) => token },
    'shared/errors': { TidemarkError, DROP_REASONS },
    'shared/files': { errnoOf, temporaryPathFor, Files: MemoryFiles },
    'shared/staging': staging,
    'shared/session/limits': { MAX_RESERVATIONS, resolveLimits },
    'shared/session/request-key': requestKeys,
    'shared/session/registry': { FILE_STATE, RECORD, Registry: records },
    'shared/session/page-pool': { PagePool: known },
    'shared/session/layout': layout,
    'shared/session/ledger': { Ledger, sumOfStates },
    'shared/blocks/image': image,
    'shared/blocks/paged-bytes': { PagedBytes },
    'shared/blocks/copy-plan': {
      CopyPlan: class {
        add(made: { number: number }, target: PagedBytes) {
          image.fillImage(made, target);
        }
        run() {
          // made at once
        }
      },
    },
    'shared/blocks/restore-channel': { createRestoreMemory: () => new SharedArrayBuffer(8) },
    'store-worker/persistence': {
      Persistence: class {
        succeeded() {
          // told to the host
        }
        failed() {
          // told to the host
        }
      },
    },
    'engine-thread/boundary/prepare': { prepareState: (layers: unknown) => layers },
    'engine-thread/boundary/state-codec/decode': { decodeStates: (layers: unknown) => layers },
    'engine-thread/boundary/state-codec/encode': { StateEncoder: class {} },
  };
  return loadSteps(MODULES, { modules, steps: [...FILE_STEPS, 'slice'], whole: WHOLE, loaded: (path, e) => loaded(host, path, e) }, world.operations, [
    ...mutations,
    ...constants,
  ]);
}

function loaded(host: Host, path: string, exports: Record<string, Steps>): void {
  if (path === 'shared/sync/lock') forgetting(host.world, exports.Lock.prototype, 'take');
  else if (path === 'shared/sync/condition') forgetting(host.world, exports.Condition.prototype, 'wait');
  else if (path === 'shared/sync/with-lock') forgetting(host.world, exports, 'withLock', (_lock, _timeout, site) => !KEEPING.includes(site));
  else if (path === 'shared/session/item-table') watchItems(host, exports);
}

/** How a call came to its result is of no meaning to what its caller does next, so states that differ in it alone are one. */
export function forgetting(
  world: World,
  owner: Record<string, Steps>,
  name: string,
  applies: (...args: string[]) => boolean = () => true,
  since?: number,
): void {
  const call = owner[name];
  owner[name] = function* (this: unknown, ...args: string[]): Step {
    const before = world.current.history;
    const result = yield* call.apply(this, args);
    if (applies(...args)) world.forgetSince(since ?? before, hashOf(JSON.stringify(result) ?? ''));
    return result;
  };
}

/** Uses of the table are what a thread has seen; changes are made under `pending`. */
function watchItems(host: Host, exports: Record<string, Steps>): void {
  const { world, firstUnit } = host;
  const requireLock = () => host.requireLock('pending', 'an item');
  exports.ItemTable = class extends (exports.ItemTable as { new (...args: never[]): Steps }) {
    get(item: number, field: number): number {
      const value: number = super.get(item, field);
      world.observe(value);
      return value;
    }
    set(item: number, field: number, value: number): void {
      // A unit is taken by its one consumer, and a lease ended by whoever has filled the item, without the lock.
      if ((item < firstUnit || field !== ITEM.state || value !== STATE.taken) && field !== ITEM.lease) requireLock();
      super.set(item, field, value);
    }
    getBytes(item: number, field: number): number {
      const value: number = super.getBytes(item, field);
      world.observe(value);
      return value;
    }
    claim(...args: never[]): number {
      requireLock();
      const item: number = super.claim(...args);
      world.observe(item);
      return item;
    }
    findVisible(...args: never[]): number {
      requireLock();
      const item: number = super.findVisible(...args);
      world.observe(item);
      return item;
    }
  };
}

/** The class with every use checked to be under `lock`, and noted as seen; but for `free` methods, which need none. */
// biome-ignore lint/suspicious/noExplicitAny: methods are taken as they come
function underLock(host: Host, lock: string, Base: any, free: readonly string[]): any {
  const { world } = host;
  const guard = () => host.requireLock(lock, Base.name);
  const Guarded = class extends Base {};
  for (const [name, { value }] of Object.entries(Object.getOwnPropertyDescriptors(Base.prototype))) {
    if (typeof value !== 'function' || name === 'constructor' || free.includes(name)) continue;
    Guarded.prototype[name] = function (...args: never[]) {
      guard();
      const result = value.apply(this, args);
      if (typeof result === 'number') world.observe(result);
      else if (Array.isArray(result)) for (const entry of result) world.observe(entry);
      else if (typeof result === 'object') for (const field of [result.index, result.state, result.generation, result.tokenCount]) world.observe(field);
      return result;
    };
  }
  return Guarded;
}
