// `npm run check:metal`: what a Mac owner runs to see whether Tidemark works there, one line of PASS or FAIL for each point; and
// `npm run check:cuda` the same for an installation over the CUDA wheel.
//
// Everything but `wheel has Metal`, `metallib loaded` and `Mac specifics` is free of platforms; `node scripts/check-metal.mjs --device cpu` runs
// those points on any machine, which shows that the points themselves work, and nothing about Metal.

import { backend, POINTS } from './check-device/points.mjs';

const USAGE = `usage: npm run check:metal | check:cuda [-- --device cpu] [--rounds N] [--only NAME]
points: ${POINTS.map(({ name }) => name).join(', ')}
exit code: 0 all passed, 1 something failed, 2 not run`;

function parse(args) {
  const given = { device: 'gpu', rounds: 5, only: null };
  for (let i = 0; i < args.length; i += 2) {
    const [flag, value] = [args[i], args[i + 1]];
    if (flag === '--device' && (value === 'cpu' || value === 'gpu')) given.device = value;
    else if (flag === '--rounds' && Number.isInteger(Number(value)) && Number(value) > 0) given.rounds = Number(value);
    else if (flag === '--only' && POINTS.some(({ name }) => name === value)) given.only = value;
    else return null;
  }
  return given;
}

const isMac = process.platform === 'darwin' && process.arch === 'arm64';
const options = parse(process.argv.slice(2));
if (options === null) {
  console.error(USAGE);
  process.exit(2);
}
if (options.device === 'gpu' && !isMac && backend() !== 'cuda') {
  console.error(
    `check:metal is for Macs with Apple Silicon, check:cuda for an installation with TIDEMARK_MLX=cuda; this is ${process.platform} ${process.arch} with backend ${backend()}, so nothing was checked.`,
  );
  console.error('The points that need no Mac run here with: npm run check:metal -- --device cpu');
  process.exit(2);
}

console.log(`check: device ${options.device}, backend ${backend()}, ${process.platform} ${process.arch}, node ${process.version}`);
const counts = { PASS: 0, FAIL: 0, SKIP: 0 };
for (const { name, metalOnly, run } of POINTS) {
  if (options.only !== null && options.only !== name) continue;
  let outcome = ['SKIP', 'for Metal only'];
  if ((options.device === 'gpu' && isMac) || !metalOnly) {
    try {
      outcome = ['PASS', await run(options)];
    } catch (error) {
      outcome = ['FAIL', error.message];
    }
  }
  counts[outcome[0]]++;
  console.log(`${outcome[0]} ${name}: ${outcome[1]}`);
}
console.log(`${counts.PASS} passed, ${counts.FAIL} failed, ${counts.SKIP} skipped`);
// A run that looked at nothing is no pass.
process.exitCode = counts.FAIL === 0 && counts.PASS > 0 ? 0 : 1;
