/**
 * `tidemark doctor`: what Tidemark needs here, what there is, and what to do where something is missing.
 */
import { resolve } from 'node:path';
import { defaultCacheDir } from '../host/default-cache-dir.ts';
import { checkCacheDir } from './doctor-cache.ts';
import { checkMlx } from './doctor-mlx.ts';
import { checkCore, checkEnvironment, checkNode, checkPlatform } from './doctor-system.ts';
import { CACHE_DIR_OPTION } from './shared-options.ts';
import { table } from './units.ts';
import { defineVerb } from './verb.ts';

/** One thing that was looked at. 'missing' means that answers cannot be had; 'warning' that something works less well. */
export interface Finding {
  name: string;
  status: 'ok' | 'warning' | 'missing';
  /** What there is, in a line. */
  found: string;
  /** What to do about it. */
  advice?: string;
  details?: Record<string, unknown>;
}

export const doctor = defineVerb({
  name: 'doctor',
  summary: 'Checks what Tidemark needs here, and says what to do where something is missing.',
  options: { ...CACHE_DIR_OPTION },
  notes: ['Loads MLX in a thread of its own and computes one sum with it. Makes no folder; in an existing cache folder it makes and removes one small file.'],
  exitCodes: { 0: 'everything needed is there', 1: 'something needed is missing' },
  examples: ['tidemark doctor'],
  run: async (values, _positionals, { out, env }) => {
    const findings: Finding[] = [
      checkNode(process.versions.node),
      checkPlatform(process.platform, process.arch),
      checkCore(),
      ...(await checkMlx()),
      ...checkCacheDir(resolve(values.cache ?? defaultCacheDir())),
      ...checkEnvironment(env),
    ];
    const ok = findings.every(({ status }) => status !== 'missing');
    if (out.json) await out.event({ ok, findings });
    else {
      await out.line(table(findings.map(({ name, status, found }) => [status, name, found])));
      for (const { name, advice } of findings) if (advice !== undefined) await out.line(`\n${name}: ${advice}`);
    }
    return ok ? 0 : 1;
  },
});
