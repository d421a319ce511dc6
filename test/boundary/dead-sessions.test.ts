/**
 * Staging of the dead goes at the writer's start, that of the living stays, and the lock decides, not a process id.
 * Must not happen: a living session's folder removed, or a path outside staging touched because of a strange name.
 */
import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { Files } from '../../dist/shared/files.js';
import { loadNativeCore } from '../../dist/shared/native-core.js';
import { ensureStagingRoot, openSessionStaging, removeDeadStaging, removeSessionStaging } from '../../dist/shared/staging.js';
import { watchLeaks } from '../helpers/leaks.ts';
import { dist } from '../helpers/paths.ts';
import { tempDir } from '../helpers/temp.ts';
import { StoreFixture } from './fixture.ts';
// @ts-expect-error plain JavaScript, shared with the threads
import { block, toLayers } from './layers.mjs';

watchLeaks();

const files = new Files();
const core = loadNativeCore()!;

function stagingRoot(): string {
  const root = join(tempDir('staging'), '_boundary_snapshots');
  ensureStagingRoot(root, files);
  return root;
}

function fill(root: string, session: string): void {
  mkdirSync(join(root, session, 'ab'), { recursive: true });
  writeFileSync(join(root, session, 'ab', '1024.safetensors'), 'x');
  writeFileSync(join(root, session, 'ab', '.2048-0-1.tmp'), 'x');
  writeFileSync(join(root, '_promote', `${session}.00-1024-1.safetensors`), 'x');
}

/** A process that opens a session, says so, and waits to be killed. */
async function living(root: string, session: string): Promise<{ kill(): Promise<void> }> {
  const source = `
    const { Files } = await import(${JSON.stringify(dist('shared/files'))});
    const { loadNativeCore } = await import(${JSON.stringify(dist('shared/native-core'))});
    const { openSessionStaging } = await import(${JSON.stringify(dist('shared/staging'))});
    const fd = openSessionStaging(${JSON.stringify(root)}, ${JSON.stringify(session)}, new Files(), loadNativeCore());
    process.stdout.write(typeof fd === 'number' ? 'ready' : 'refused');
    setInterval(() => {}, 1000);
  `;
  const child = spawn(process.execPath, ['--input-type=module', '-e', source], { stdio: ['ignore', 'pipe', 'inherit'] });
  const said = await new Promise<string>((resolve) => child.stdout.once('data', (data) => resolve(String(data))));
  expect(said).toBe('ready');
  return {
    kill: () =>
      new Promise((resolve) => {
        child.once('exit', () => resolve());
        child.kill('SIGKILL');
      }),
  };
}

describe('staging of sessions', () => {
  it('[A14] staging of a killed process is removed, taken files included, and that of a living one kept', async () => {
    const root = stagingRoot();
    const [dead, alive] = [await living(root, 'dead'), await living(root, 'alive')];
    for (const session of ['dead', 'alive', 'older']) fill(root, session); // 'older' has no lock file at all
    expect(removeDeadStaging(root, files, core)).toEqual(['older']);
    await dead.kill();
    expect(removeDeadStaging(root, files, core)).toEqual(['dead']);
    expect(readdirSync(root)).toEqual(['_promote', 'alive', 'alive.lock']);
    expect(readdirSync(join(root, '_promote'))).toEqual(['alive.00-1024-1.safetensors']);
    await alive.kill();
    expect(removeDeadStaging(root, files, core)).toEqual(['alive']);
    expect(readdirSync(root)).toEqual(['_promote']);
    expect(readdirSync(join(root, '_promote'))).toEqual([]);
  });

  it('[A14] the lock of a session of this very process counts as alive', () => {
    const root = stagingRoot();
    const fd = openSessionStaging(root, 'mine', files, core) as number;
    expect(removeDeadStaging(root, files, core)).toEqual([]);
    expect(existsSync(join(root, 'mine'))).toBe(true);
    expect(openSessionStaging(root, 'mine', files, core)).toMatchObject({ held: true });
    removeSessionStaging(root, 'mine', files, { fd, locks: core });
    expect(readdirSync(root)).toEqual(['_promote']);
  });

  it('[A14] the writer removes dead staging before it serves', async () => {
    const f = new StoreFixture();
    fill(f.stagingRoot, 'dead');
    const { store } = f.open();
    await f.startWriter();
    store.save('r', 1024, toLayers(block(1)));
    await f.event('written', 1024);
    expect(existsSync(join(f.stagingRoot, 'dead'))).toBe(false);
    expect(readdirSync(join(f.stagingRoot, '_promote'))).toEqual([]);
    expect(f.files()).toHaveLength(2);
    await f.close();
  });

  it('names that are no session ids are left alone', () => {
    const root = stagingRoot();
    for (const name of ['..lock', '.lock', 'a b', 'x.y', '_promote.lock']) writeFileSync(join(root, name), '');
    writeFileSync(join(root, '_promote', '.hidden'), '');
    expect(removeDeadStaging(root, files, core)).toEqual([]);
    expect(readdirSync(root).sort()).toEqual(['..lock', '.lock', '_promote', '_promote.lock', 'a b', 'x.y']);
  });
});
