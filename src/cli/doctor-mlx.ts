/**
 * What `doctor` finds out about MLX: what the install script recorded, and what a thread that loads the addon sees. MLX is
 * used on worker threads only, so the probe is one.
 */
import { existsSync, readFileSync } from 'node:fs';
import { Worker } from 'node:worker_threads';
import type { Finding } from './doctor.ts';
import type { MlxProbe } from './doctor-probe.ts';

/** The install script's record, as far as it is shown here. */
interface MlxRecord {
  mlx: { root: string; version: string; backend: string; source: string } | null;
  blas: { library: string; path?: string } | null;
  notes: string[];
}

const RECORD = new URL('../../build/mlx-build.json', import.meta.url);
const INSTALL = 'run `npm rebuild tidemark` (in the repository: `node scripts/install.mjs`) and read what it says';

export async function checkMlx(): Promise<Finding[]> {
  const record = existsSync(RECORD) ? (JSON.parse(readFileSync(RECORD, 'utf8')) as MlxRecord) : null;
  if (record === null) return [{ name: 'MLX', status: 'missing', found: 'the install script has not run', advice: INSTALL }];
  if (record.mlx === null) {
    const advice = `${record.notes.join(' ')} Install Python 3 with pip, CMake and a C++20 compiler, or set MLX_ROOT; then ${INSTALL}`.trim();
    return [{ name: 'MLX', status: 'missing', found: 'not found when installing', advice, details: { notes: record.notes } }];
  }
  const { version, backend, source, root } = record.mlx;
  const probe = await probeMlx();
  if ('error' in probe) {
    return [
      { name: 'MLX', status: 'missing', found: `${version} (${backend}) does not work`, advice: `${probe.error}; ${INSTALL}`, details: { ...probe, root } },
    ];
  }
  const findings: Finding[] = [
    { name: 'MLX', status: 'ok', found: `${probe.version} (${backend}), from ${source}`, details: { root, backend, source, notes: record.notes } },
  ];
  findings.push({
    name: 'device',
    status: 'ok',
    found: `${probe.device}${probe.deviceName === '' ? '' : `: ${probe.deviceName}`}`,
    details: { ...probe.deviceInfo },
  });
  const { library, threads, config } = probe.blas;
  const slow = library === 'reference' && probe.device === 'cpu';
  findings.push({
    name: 'BLAS',
    status: slow ? 'warning' : 'ok',
    found: `${library}, ${threads} thread${threads === 1 ? '' : 's'}${config === undefined ? '' : ` (${config})`}`,
    ...(slow ? { advice: `matrix products on CPU run on MLX's reference BLAS, which is slow. ${record.notes.join(' ')}`.trim() } : {}),
    details: { ...probe.blas },
  });
  return findings;
}

/** Runs the probe in a Worker, with a bound: a library that hangs while it loads must not hang `doctor`. */
function probeMlx(limitMs = 60_000): Promise<MlxProbe | { error: string }> {
  const worker = new Worker(new URL('./doctor-probe.js', import.meta.url));
  return new Promise((resolve) => {
    const timer = setTimeout(() => settle({ error: `loading MLX took longer than ${limitMs / 1000} s` }), limitMs);
    const settle = (result: MlxProbe | { error: string }): void => {
      clearTimeout(timer);
      resolve(result);
    };
    worker.once('message', (probe: MlxProbe) => settle(probe));
    worker.once('error', (error: Error) => settle({ error: error.message }));
    worker.once('exit', (code) => settle({ error: `the thread that loaded MLX ended with code ${code}` }));
  });
}
