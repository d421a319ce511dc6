/** The descriptor ring. What must not happen: a descriptor lost, doubled, torn or out of order; a consumer that sleeps on work. */
import { once } from 'node:events';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { Doorbell } from '../../dist/shared/doorbell.js';
import { DescriptorRing } from '../../dist/shared/ring.js';
import { startWorker } from '../helpers/worker.ts';

function make(capacity: number, start = 0) {
  const words = new Int32Array(new SharedArrayBuffer((1 + DescriptorRing.wordsFor(capacity)) * 4));
  words[1] = start;
  words[2] = start;
  return { words, bell: new Doorbell(words, 0), ring: new DescriptorRing(words, 1, capacity, new Doorbell(words, 0)) };
}

test('behaves as a bounded queue, also where its counters wrap', () => {
  const operations = fc.array(fc.oneof(fc.record({ push: fc.integer() }), fc.constant('pop' as const)), { maxLength: 200 });
  fc.assert(
    fc.property(operations, fc.constantFrom(1, 2, 8, 64), fc.constantFrom(0, 0x7fffffff - 5, -6), (ops, capacity, start) => {
      const { ring } = make(capacity, start);
      const model: number[] = [];
      for (const op of ops) {
        if (op === 'pop') {
          const got = ring.pop();
          const wanted = model.shift();
          expect(got).toEqual(wanted === undefined ? null : [wanted, wanted ^ 1, wanted ^ 2, wanted ^ 3]);
        } else if (ring.push(op.push, op.push ^ 1, op.push ^ 2, op.push ^ 3)) model.push(op.push);
        else expect(model).toHaveLength(capacity);
        expect(ring.length).toBe(model.length);
      }
    }),
  );
});

test('a capacity that is no power of two is refused', () => {
  for (const capacity of [0, 3, -4, 1.5]) expect(() => make(capacity)).toThrow(RangeError);
});

test.each([1, 4, 128])('two real threads, capacity %i: 50,000 descriptors in order, then quiet', async (capacity) => {
  const { words } = make(capacity);
  const space = new Int32Array(new SharedArrayBuffer(4));
  const source = `
    const { parentPort, workerData } = await import('node:worker_threads');
    const { Doorbell } = await import(workerData.doorbell);
    const { DescriptorRing } = await import(workerData.ring);
    const { words, space, capacity, total } = workerData;
    const bell = new Doorbell(words, 0);
    const room = new Doorbell(space, 0);
    if (workerData.role === 'producer') {
      const ring = new DescriptorRing(words, 1, capacity, bell);
      for (let i = 1; i <= total; ) {
        const seen = room.seen();
        if (ring.push(i, -i, i * 2, 7)) i++;
        else if (!room.wait(seen, 15000)) throw new Error('no room came');
      }
    } else {
      const ring = new DescriptorRing(words, 1, capacity);
      for (let next = 1; next <= total; ) {
        const seen = bell.seen();
        const got = ring.pop();
        if (got === null) {
          if (!bell.wait(seen, 15000)) throw new Error('slept on work, at ' + next);
          continue;
        }
        if (got[0] !== next || got[1] !== -next || got[2] !== next * 2 || got[3] !== 7) throw new Error('got ' + got + ' for ' + next);
        next++;
        room.ring();
      }
      if (ring.pop() !== null) throw new Error('more than was sent');
    }
    parentPort.postMessage('done');`;
  const url = (path: string) => new URL(`../../dist/shared/${path}.js`, import.meta.url).href;
  const start = (role: string) =>
    startWorker(new URL(`data:text/javascript,${encodeURIComponent(source)}`), {
      workerData: { role, words, space, capacity, total: 50_000, doorbell: url('doorbell'), ring: url('ring') },
    });
  const done = [start('consumer'), start('producer')].map((worker) => once(worker, 'message'));
  expect((await Promise.all(done)).map(([message]) => message)).toEqual(['done', 'done']);
});

test('messages reach a thread that never turns its event loop', async () => {
  const source = `
    const { parentPort, workerData } = await import('node:worker_threads');
    const { Doorbell } = await import(workerData.doorbell);
    const { Mailbox } = await import(workerData.mailbox);
    const bell = new Doorbell(workerData.words, 0);
    const mailbox = new Mailbox(workerData.port);
    const got = [];
    while (got.length < 3) {
      const seen = bell.seen();
      let found = false;
      for (let m = mailbox.take(); m !== undefined; m = mailbox.take()) { got.push(m.buffer.byteLength); found = true; }
      if (!found && !bell.wait(seen, 15000)) throw new Error('nothing came');
    }
    parentPort.postMessage(got);
    workerData.port.close();`;
  const { MailboxSender } = await import('../../dist/shared/mailbox.js');
  const url = (path: string) => new URL(`../../dist/shared/${path}.js`, import.meta.url).href;
  const words = new Int32Array(new SharedArrayBuffer(4));
  const { port1, port2 } = new MessageChannel();
  const worker = startWorker(new URL(`data:text/javascript,${encodeURIComponent(source)}`), {
    workerData: { words, port: port2, doorbell: url('doorbell'), mailbox: url('mailbox') },
    transferList: [port2] as never,
  });
  const sender = new MailboxSender<{ buffer: SharedArrayBuffer }>(port1 as never, new Doorbell(words, 0));
  const answer = once(worker, 'message');
  for (const size of [8, 16, 32]) {
    sender.post({ buffer: new SharedArrayBuffer(size) });
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  expect((await answer)[0]).toEqual([8, 16, 32]);
  sender.close();
});
