#!/usr/bin/env node
/** `npm run bench -- NAME [--check]`: runs bench/NAME.mjs, prints one JSON object, writes reports/bench-NAME.json. */
import { existsSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { cpus } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

const here = dirname(fileURLToPath(import.meta.url));
const args = process.argv.slice(2);
const check = args.includes('--check');
const name = args.find((arg) => !arg.startsWith('-'));
const known = readdirSync(here)
  .filter((file) => file.endsWith('.mjs') && file !== 'run.mjs')
  .map((file) => file.slice(0, -4));

if (name === undefined || args.includes('--help') || !existsSync(join(here, `${name}.mjs`))) {
  console.error(
    `usage: npm run bench -- NAME [--check] [--pairs N] [--device cpu|gpu] [--model DIR]\nnames: ${known.join(', ')}\n--device and --model are for those that docs/benchmarks.md says it of\n--check exits with 1 when a whole interval is beyond its floor`,
  );
  process.exit(name === undefined || !args.includes('--help') ? 2 : 0);
}

/** The value of an option, or undefined: then the benchmark's own default holds. */
const option = (flag) => (args.includes(flag) ? args[args.indexOf(flag) + 1] : undefined);
const device = option('--device');
if (device !== undefined && device !== 'cpu' && device !== 'gpu') {
  console.error(`--device must be cpu or gpu, it is '${device}'`);
  process.exit(2);
}
const pairs = option('--pairs');
const { run } = await import(pathToFileURL(join(here, `${name}.mjs`)).href);
const report = await run({ pairs: pairs === undefined ? null : Number(pairs), log: (line) => console.error(line), device, model: option('--model') });
const out = { bench: name, date: new Date().toISOString(), cpu: cpus()[0]?.model ?? 'unknown', cores: cpus().length, node: process.version, ...report };
out.ok = out.results.every((result) => result.ok !== false);
mkdirSync(join(here, '..', 'reports'), { recursive: true });
writeFileSync(join(here, '..', 'reports', `bench-${name}.json`), `${JSON.stringify(out, null, 1)}\n`);
console.log(JSON.stringify(out, null, 1));
process.exitCode = check && !out.ok ? 1 : 0;
