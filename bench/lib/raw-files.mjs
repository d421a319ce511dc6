/**
 * The same files written plainly: temporary name, write, fsync, rename, as fast as a loop can. One burst per message. Each file
 * of a burst has bytes of its own in memory, as each boundary has: none comes out of the cache because the one before did.
 */
import { closeSync, fsyncSync, mkdirSync, openSync, renameSync, rmSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { parentPort, workerData } from 'node:worker_threads';

const { dir } = workerData;
let bursts = 0;
let contents = [];

parentPort.on('message', ({ count, bytes }) => {
  if (contents.length !== count || contents[0].length !== bytes)
    contents = Array.from({ length: count }, () => new Uint8Array(new SharedArrayBuffer(bytes)).fill(1));
  const folder = join(dir, `raw-${++bursts}`);
  mkdirSync(folder);
  const begin = performance.now();
  for (let i = 0; i < count; i++) {
    const temporary = join(folder, `.${i}.tmp`);
    const fd = openSync(temporary, 'wx');
    for (let done = 0; done < bytes; ) done += writeSync(fd, contents[i], done, bytes - done, done);
    fsyncSync(fd);
    closeSync(fd);
    renameSync(temporary, join(folder, `${i}.safetensors`));
  }
  const took = performance.now() - begin;
  rmSync(folder, { recursive: true });
  parentPort.postMessage(took);
});
