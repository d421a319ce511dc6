/** Holds a cache folder open until it is killed. argv: { model, dir } */
import { createEngine } from '../../dist/index.js';

const { model, dir } = JSON.parse(process.argv[2]);
const engine = await createEngine({ model, threads: 1, cache: { dir, blockSize: 16, maxBytes: 1_000_000_000 } });
process.stdout.write(`${JSON.stringify({ ready: engine.health().persistence === 'on' })}\n`);
setInterval(() => undefined, 1_000);
