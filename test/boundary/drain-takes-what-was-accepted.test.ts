/**
 * A snapshot is accepted, and the stop asked for, between the writer's look into its queues and its look at the stop word.
 * What must not happen: the writer drains nothing and ends, and the accepted snapshot is dropped.
 */
import { expect, test } from 'vitest';
import { BoundarySnapshotStore } from '../../dist/engine-thread/boundary/snapshot-store.js';
import { Files } from '../../dist/shared/files.js';
import { HubControl } from '../../dist/shared/loop-control.js';
import { createProcessShared } from '../../dist/shared/process-shared.js';
import { attachSession, createSessionMemory } from '../../dist/shared/session/session.js';
import { ensureStagingRoot, stagingRootOf } from '../../dist/shared/staging.js';
import { ThreadTable } from '../../dist/shared/sync/thread-table.js';
import { WriterLoop } from '../../dist/snapshot-writer/loop.js';
import { tempDir } from '../helpers/temp.ts';

const bytes = new Uint8Array(64).fill(7);
const layers = [
  {
    className: 'ArraysCache',
    stored: 'whole' as const,
    meta: [256],
    elements: [
      {
        dtype: 'U8' as const,
        shape: [64],
        byteLength: 64,
        copyTo: (target: Uint8Array, from: number) => target.set(bytes.subarray(from, from + target.length)),
      },
    ],
  },
];

test('[L125] what was accepted before the stop was seen is written', () => {
  const root = stagingRootOf(tempDir('drain'));
  ensureStagingRoot(root, new Files());
  const threads = new ThreadTable(createProcessShared().threads);
  // Everything runs on the test's thread, which blocks nowhere: the fake bell never sleeps.
  const self = threads.enter('other', 'test', { mayBlock: true });
  const memory = createSessionMemory({ stagingRoot: root, hub: HubControl.create(), number: 1, limits: { pendingMaxBytes: 1024 * 1024, pageBytes: 4096 } });
  const session = attachSession(memory, self);
  const store = new BoundarySnapshotStore(session);

  let reads = 0;
  let turns = 0;
  let saved: unknown = null;
  const inbox = [{ type: 'attach' as const, session: 1, memory }];
  const control = {
    bell: {
      seen: () => 0,
      wait: () => {
        turns++;
        if (turns > 50) throw new Error('the loop does not end');
        return true;
      },
    },
    get stop(): 'none' | 'drain' {
      reads++;
      // Behind the first look into the queues: the saver and the stop come in between.
      if (reads === 2) saved = store.save('r', 256, layers);
      return reads >= 2 ? 'drain' : 'none';
    },
    bumpProgress: () => undefined,
  };
  const events: { type: string }[] = [];
  new WriterLoop({
    control: control as never,
    mailbox: { take: () => inbox.shift() } as never,
    self,
    files: new Files(),
    life: 1,
    post: (event) => events.push(event),
  }).run();

  expect(saved).toMatchObject({ ok: true });
  expect(events.map((event) => event.type)).toContain('written');
  expect(session.ledger.read()).toMatchObject({ captured: 1, written: 1, pending: 0, dropped: {} });
});
