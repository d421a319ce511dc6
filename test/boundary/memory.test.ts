/**
 * The parts of the session memory by themselves: pages, ledger, registry, names, limits, doorbells of a new life.
 * Must not happen: an admitted item without pages, a sum that is off, a record found under another name.
 */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { HubControl } from '../../dist/shared/loop-control.js';
import { createProcessShared } from '../../dist/shared/process-shared.js';
import { ITEM, KIND } from '../../dist/shared/session/item-table.js';
import { Ledger, sumOfStates } from '../../dist/shared/session/ledger.js';
import { resolveLimits } from '../../dist/shared/session/limits.js';
import { Registry } from '../../dist/shared/session/registry.js';
import { isTokenCount, keyToHex, requestKey } from '../../dist/shared/session/request-key.js';
import { attachSession, createSessionMemory } from '../../dist/shared/session/session.js';
import { ThreadTable } from '../../dist/shared/sync/thread-table.js';
import { watchLeaks } from '../helpers/leaks.ts';
import { startStore, until } from './fixture.ts';
// @ts-expect-error plain JavaScript, shared with the threads
import { block, toLayers } from './layers.mjs';

watchLeaks();

describe('session memory', () => {
  it('[C46] whatever is admitted has pages: any mix of queue items, units, the express item and reservations', () => {
    const shared = createProcessShared();
    const self = new ThreadTable(shared.threads).enter('engine', 'test', { mayBlock: true });
    fc.assert(
      fc.property(fc.array(fc.record({ what: fc.integer({ min: 0, max: 4 }), bytes: fc.integer({ min: 1, max: 50_000 }) }), { maxLength: 200 }), (steps) => {
        const memory = createSessionMemory({
          stagingRoot: '/nowhere',
          hub: HubControl.create(),
          number: 1,
          limits: { pendingMaxBytes: 50_000, pageBytes: 4096, queueCapacity: 4, unitCapacity: 3 },
        });
        const session = attachSession(memory, self);
        const { space, pending } = session;
        const live: { item: number }[] = [];
        const reservations: { release(): void }[] = [];
        for (const { what, bytes } of steps) {
          session.underPending('test', () => {
            const got =
              what === 0
                ? space.admit(KIND.state, bytes, null)
                : what === 1
                  ? space.admit(KIND.unit, bytes, null)
                  : what === 2
                    ? space.admitExpress(bytes)
                    : null;
            if (got !== null && typeof got !== 'string') {
              live.push(got);
              expect(space.bytesOf(got.item)!.byteLength).toBe(bytes);
            }
            if (what === 3 && live.length > 0) {
              const { item } = live.splice(bytes % live.length, 1)[0]!;
              space.dropBytes(item);
              space.free(item);
            }
          });
          if (what === 4) {
            const reservation = pending.tryReserve(bytes);
            if (reservation !== null) reservations.push(reservation);
            if (bytes % 2 === 0) reservations.shift()?.release();
          }
          expect(pending.held).toBeLessThanOrEqual(50_000);
        }
        for (const reservation of reservations) reservation.release();
        session.underPending('test', () => {
          for (const { item } of live) {
            space.dropBytes(item);
            space.free(item);
          }
        });
        expect([pending.held, session.pages.inUse, session.itemsInFlight]).toEqual([0, 0, 0]);
      }),
      { numRuns: 200 },
    );
    self.leave();
  });

  it('pages are used again newest first, so that few pages ever get memory', () => {
    const shared = createProcessShared();
    const self = new ThreadTable(shared.threads).enter('engine', 'test', { mayBlock: true });
    const session = attachSession(createSessionMemory({ stagingRoot: '/nowhere', hub: HubControl.create(), number: 1, limits: { pageBytes: 4096 } }), self);
    const used = new Set<number>();
    for (let round = 0; round < 50; round++) {
      const head = session.pages.take(4);
      for (const page of session.pages.chain(head, 4)) used.add(page);
      session.pages.give(head, 4);
    }
    expect(used.size).toBe(4);
    self.leave();
  });

  it('the ledger’s sum over states equals what was captured, whatever moves', () => {
    const moves = fc.constantFrom('written', 'failed', 'dropped:backpressure', 'dropped:cancelled', 'durable');
    fc.assert(
      fc.property(fc.array(fc.tuple(fc.boolean(), moves)), (steps) => {
        const ledger = new Ledger(new Int32Array(new SharedArrayBuffer(Ledger.WORDS * 4)));
        let pending = 0;
        for (const [capture, to] of steps) {
          if (capture) {
            ledger.capture();
            pending++;
          } else if (pending > 0) {
            ledger.move('pending', to as 'written');
            pending--;
          } else ledger.coalesce(false);
          const figures = ledger.read();
          expect(sumOfStates(figures)).toBe(figures.captured);
          expect(figures.pending).toBe(pending);
        }
        expect(ledger.failPending()).toBe(pending);
        // What was given up as failed and turns out to be stored is found among the failed.
        if (pending > 0) ledger.move('pending', 'durable');
        expect(sumOfStates(ledger.read())).toBe(ledger.read().captured);
        expect(ledger.get('pending')).toBe(0);
      }),
    );
  });

  it('the registry finds each record under its own name only, refuses more than its capacity, and shrinks', () => {
    fc.assert(
      fc.property(fc.array(fc.tuple(fc.integer({ min: 0, max: 5 }), fc.integer({ min: 1, max: 4 }), fc.boolean())), (steps) => {
        const registry = new Registry(new Int32Array(new SharedArrayBuffer(Registry.wordsFor(8) * 4)), 8);
        const model = new Map<string, number>();
        for (const [request, count, insert] of steps) {
          const key = requestKey(`r${request}`)!;
          const name = `${request}/${count}`;
          const index = registry.find(key, count);
          expect(index >= 0).toBe(model.has(name));
          if (insert && index < 0) {
            const at = registry.insert(key, count, model.size + 1, request);
            expect(at >= 0).toBe(model.size < 8);
            if (at >= 0) model.set(name, at);
          } else if (!insert && index >= 0) {
            expect(registry.read(index)).toMatchObject({ tokenCount: count, requestNo: request, key });
            registry.remove(index);
            model.delete(name);
          }
          expect(registry.live).toBe(model.size);
          expect(registry.recordsOf(key)).toHaveLength([...model.keys()].filter((other) => other.startsWith(`${request}/`)).length);
        }
      }),
    );
  });

  it('a full registry is a counted drop', async () => {
    const f = await startStore({ registryCapacity: 2 });
    for (const count of [1, 2]) f.store.save('r', count, toLayers(block(1)));
    await f.settled();
    expect(f.store.save('r', 3, toLayers(block(1)))).toMatchObject({ ok: false, reason: 'registry' });
    expect(f.session.ledger.read()).toMatchObject({ captured: 3, written: 2, dropped: { registry: 1 } });
    f.store.takeStagedFile('r', 1);
    expect(f.store.save('r', 3, toLayers(block(1)))).toEqual({ ok: true, how: 'queued' });
    await f.settled();
    await f.close();
  });

  it('limits are checked by name, and names of boundaries by kind', () => {
    expect(() => resolveLimits({ queueCapacity: 0 })).toThrow(/queueCapacity/);
    expect(() => resolveLimits({ pendingMaxBytes: 1.5 })).toThrow(/pendingMaxBytes/);
    expect(() => resolveLimits({ overflow: 'spill' as never })).toThrow(/overflow/);
    expect([1, 256, 2 ** 31 - 1].every(isTokenCount)).toBe(true);
    expect(keyToHex(requestKey('abc')!)).toBe('ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad');
    expect(() => createSessionMemory({ stagingRoot: '/x', hub: HubControl.create(), number: 1, id: '../up' })).toThrow(/session id/);
  });

  it('a new life of the writer goes on with the queue; oversize items whose buffer went with the old one are dropped, counted', async () => {
    const f = await startStore({ pendingMaxBytes: 2000, queueCapacity: 4 });
    f.gate.hold('create');
    f.store.save('r', 1, toLayers(block(1)));
    await f.gate.arrived('create');
    f.gate.release('create');
    await f.settled();
    await f.stop();
    f.session.underPending('test', () => undefined);
    expect(f.store.save('r', 2, toLayers(block(2, 3000)))).toEqual({ ok: true, how: 'queued' });
    const item = f.session.items.findVisible(requestKey('r')!, 2);
    expect(f.session.items.get(item, ITEM.tokenCount)).toBe(2);
    await f.startWriter(2);
    await until(() => f.session.ledger.read().dropped.worker === 1, 'oversize item dropped');
    f.store.save('r', 3, toLayers(block(3)));
    await f.event('written', 3);
    await f.settled();
    await f.close();
  });
});
