import { workerData } from 'node:worker_threads';
import { runLoop } from './loop.mjs';

runLoop('writer', 'snapshot-writer', workerData);
