/**
 * A loop thread that does no work but keeps the contract of the entry modules, and misbehaves on command. Commands come
 * through a shared word, so that they reach it while it sleeps.
 */
import { openSync, readSync } from 'node:fs';
import { HubControl } from '../../../dist/shared/loop-control.js';
import { Mailbox } from '../../../dist/shared/mailbox.js';
import { attachSession } from '../../../dist/shared/session/index.js';
import { ITEM } from '../../../dist/shared/session/item-table.js';
import { ThreadTable } from '../../../dist/sync.js';

export const COMMAND = { throw: 1, exit: 2, dieWithLock: 3, sleepForever: 4, readForever: 5, degrade: 6, freeItems: 7 };

export function runLoop(name, kind, init) {
  const control = new HubControl(init.hub)[name];
  const command = new Int32Array(init.command ?? new SharedArrayBuffer(4));
  if (init.life <= (init.stillborn ?? 0)) process.exit(5);
  const self = new ThreadTable(init.shared.threads).enter(kind, kind);
  const mailbox = new Mailbox(init.mailbox);
  const post = (event) => init.events.postMessage(event);
  const note = (message, details = {}) => post({ type: 'note', code: 'CACHE_IO', message: `${name} ${message}`, details });
  const sessions = new Map();
  control.setState('running');
  post({ type: 'started', slot: self.slot, token: self.token });
  for (;;) {
    const seen = control.bell.seen();
    for (let message = mailbox.take(); message !== undefined; message = mailbox.take()) {
      if (message.type === 'attach') {
        sessions.set(message.session, attachSession(message.memory, self));
        post({ type: 'attached', session: message.session });
        note(`life ${init.life} attached ${message.session}`);
      } else if (message.type === 'detach') {
        if (init.deafToDetach) continue;
        sessions.delete(message.session);
        post({ type: 'detached', session: message.session });
      } else {
        note(`got buffer ${message.key} of ${message.buffer.byteLength} bytes`);
      }
    }
    switch (Atomics.exchange(command, 0, 0)) {
      case COMMAND.throw:
        throw new Error('told to throw');
      case COMMAND.exit:
        process.exit(5);
        break;
      case COMMAND.dieWithLock:
        sessions.get(1).locks.pending.acquire(1000, 'on purpose');
        process.exit(5);
        break;
      case COMMAND.sleepForever:
        self.activity('job', 'asleep', 1e9);
        Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);
        break;
      case COMMAND.readForever: {
        self.activity('file', `read ${init.fifo}`);
        // Opened for both directions, so that opening returns and reading never does.
        readSync(openSync(init.fifo, 'r+'), new Uint8Array(1));
        break;
      }
      case COMMAND.degrade:
        post({ type: 'degraded', code: 'CACHE_FULL', message: 'full on purpose', details: {} });
        break;
      case COMMAND.freeItems:
        for (const session of sessions.values()) for (let i = 0; i < session.items.count; i++) session.items.set(i, ITEM.state, 0);
        control.bumpProgress();
        break;
    }
    if (control.stop === 'now') break;
    const busy = [...sessions.values()].some((session) => session.itemsInFlight > 0);
    if (control.stop === 'drain' && !(init.drains && busy)) break;
    control.bell.wait(seen, 20_000);
  }
  self.leave();
  control.setState('returned');
  init.events.close();
  init.mailbox.close();
}
