/**
 * Entry of the snapshot writer's Worker, one per cache folder. Made and replaced by the keeper.
 *
 * Removes the staging of dead sessions first, then serves living ones until it is told to stop. In read-only mode it stages
 * and removes nothing; sessions that attach are served all the same (they never submit).
 */
import { workerData } from 'node:worker_threads';
import { leaseAccess } from '../engine-thread/mlx/lease-access.ts';
import { type FileHooks, Files } from '../shared/files.ts';
import { HubControl } from '../shared/loop-control.ts';
import { Mailbox } from '../shared/mailbox.ts';
import { loadNativeCore } from '../shared/native-core.ts';
import { ensureStagingRoot, removeDeadStaging } from '../shared/staging.ts';
import { useDeathWords } from '../shared/sync/death-word.ts';
import { ThreadTable } from '../shared/sync/thread-table.ts';
import type { LoopMessage, LoopPost, WriterInit } from '../shared/worker-init.ts';
import { WriterLoop } from './loop.ts';

/** What tests add: a module whose default export makes `FileHooks` from `data`. */
export interface WriterFaults {
  module: string;
  data: unknown;
}

const init = workerData as WriterInit & { faults?: WriterFaults };
const control = new HubControl(init.hub).writer;
const core = loadNativeCore();
core?.setThreadName('tm-writer');
useDeathWords(core);
const self = new ThreadTable(init.shared.threads).enter('snapshot-writer', 'boundary-snapshot-writer');
const post = (event: LoopPost) => init.events.postMessage(event);
const files = new Files(await faultHooks());

async function faultHooks(): Promise<FileHooks> {
  if (init.faults === undefined) return {};
  const made = (await import(init.faults.module)) as { default: (data: unknown) => FileHooks };
  return made.default(init.faults.data);
}

function cleanStart(): void {
  if (init.mode !== 'writer' || core === null) return;
  try {
    self.activity('file', init.stagingRoot, 60_000);
    ensureStagingRoot(init.stagingRoot, files);
    removeDeadStaging(init.stagingRoot, files, core);
  } catch (error) {
    const message = `staging could not be prepared: ${(error as Error).message}`;
    // Not a degradation by itself: what cannot be written will say so with the first boundary that fails.
    post({ type: 'note', code: 'CACHE_IO', message, details: { path: init.stagingRoot } });
  } finally {
    self.idle();
  }
}

control.setState('running');
post({ type: 'started', slot: self.slot, token: self.token });
cleanStart();
new WriterLoop({ control, mailbox: new Mailbox<LoopMessage>(init.mailbox), self, files, leases: leaseAccess(init.shared, self), life: init.life, post }).run();
self.leave();
control.setState('returned');
init.events.close();
init.mailbox.close();
