/**
 * The protocol's Spin models: each holds, its temporal claim too, and Spin finds every bug seeded in it. A model that finds no
 * bug shows nothing: a third of them in the short form, drawn by the seed, all in the long one. Without Spin or a C compiler on the PATH the models are not run, and the conformance table says so.
 */
import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { run } from '../helpers/child.ts';
import { ROOT } from '../helpers/paths.ts';
import { seeded } from '../helpers/seed.ts';
import { tempDir } from '../helpers/temp.ts';

const FOLDER = join(ROOT, 'test/models');
const MODELS = readdirSync(FOLDER).filter((name) => name.endsWith('.pml'));
/** A search takes seconds; on a busy machine more. */
const LIMIT_MS = 240_000;

const starts = (command: string, flag: string) => spawnSync(command, [flag]).error === undefined;
const missing = [starts('spin', '-V') ? '' : 'spin', starts('cc', '--version') ? '' : 'a C compiler (cc)'].filter((name) => name !== '');
const unavailable = missing.length === 0 ? null : `${missing.join(' and ')} not on the PATH: the models were not run`;

interface Search {
  /** Compiles faster, searches slower. */
  short?: boolean;
  /** `-D` names for the model. */
  defines?: string[];
  /** A temporal claim, searched for acceptance cycles under weak fairness; without it, assertions and invalid end states. */
  claim?: string;
}

/** Translates, compiles and runs one search to its end; what the verifier printed. */
async function search(model: string, { defines = [], claim, short = false }: Search): Promise<string> {
  const cwd = tempDir('spin');
  const limit = { cwd, timeoutMs: LIMIT_MS };
  const translated = await run('spin', ['-a', ...defines.map((name) => `-D${name}`), join(FOLDER, model)], limit);
  expect(translated, translated.stdout).toMatchObject({ code: 0 });
  const mode = claim === undefined ? ['-DSAFETY', '-DNOCLAIM'] : ['-DNFAIR=3'];
  const compiled = await run('cc', [short ? '-O0' : '-O1', '-w', ...mode, '-o', 'pan', 'pan.c'], limit);
  expect(compiled, compiled.stderr).toMatchObject({ code: 0 });
  const searched = await run(join(cwd, 'pan'), ['-m200000', ...(claim === undefined ? [] : ['-a', '-f', '-N', claim])], limit);
  expect(searched.timedOut, searched.stdout).toBe(false);
  return searched.stdout;
}

/** The search was whole and found nothing. */
const clean = (output: string) => /errors: 0\b/.test(output) && !/max search depth too small|Search not completed|out of memory/.test(output);

describe.each(MODELS)('%s', (model) => {
  const source = readFileSync(join(FOLDER, model), 'utf8');
  const bugs = [...source.matchAll(/^ \* {3}([A-Z_]{4,}) +/gm)].map(([, name]) => name!);
  const claims = [...source.matchAll(/^ltl (\w+)/gm)].map(([, name]) => name!);

  test('its header names the bugs that are seeded in it', () => {
    const seeded = new Set([...source.matchAll(/\bBUG_([A-Z_]+)/g)].map(([, name]) => name!));
    expect([...seeded].sort()).toEqual([...bugs].sort());
    expect(bugs.length).toBeGreaterThan(3);
    expect(claims).toHaveLength(1);
  });

  test('holds', { timeout: LIMIT_MS }, async ({ skip }) => {
    skip(unavailable !== null, unavailable ?? '');
    const output = await search(model, {});
    expect(clean(output), output).toBe(true);
  });

  test.for(claims)('claim %s holds', { timeout: LIMIT_MS }, async (claim, { skip }) => {
    skip(unavailable !== null, unavailable ?? '');
    const output = await search(model, { defines: ['FEWER'], claim });
    expect(clean(output), output).toBe(true);
  });

  const random = seeded(`bugs of ${model}`);
  const tried = process.env.TIDEMARK_LONG === '1' ? bugs : bugs.filter(() => random.next() < 1 / 3);

  test.for(tried)('seeded bug %s is found', { timeout: LIMIT_MS }, async (bug, { skip }) => {
    skip(unavailable !== null, unavailable ?? '');
    expect(await search(model, { defines: [`BUG_${bug}`], short: true })).toMatch(/pan:1: (?:assertion violated|invalid end state)/);
  });
});
