/** Worker of the store tests: takes a ticket, then does what it is told, one command a message. */
import { parentPort } from 'node:worker_threads';
import { attachStore } from '../../dist/store.js';

let client;
parentPort.on('message', ({ call, args }) => {
  try {
    if (call === 'attach') {
      client = attachStore(args[0]);
      parentPort.postMessage({ ok: true });
    } else {
      parentPort.postMessage({ ok: true, value: client[call](...args) });
    }
  } catch (error) {
    parentPort.postMessage({ ok: false, code: error.code, message: error.message });
  }
});
