/** `engine.diagnose()`: the threads and locks of the whole process, whichever engine asks. Takes no lock. */
import { processLocks } from '../shared/process-shared.ts';
import { diagnose } from '../shared/sync/diagnose.ts';
import type { Diagnosis } from './api.ts';
import type { ProcessRegistry } from './process-registry.ts';

export function diagnoseProcess(registry: ProcessRegistry): Diagnosis {
  return diagnose(registry.threads, [processLocks(registry.shared), ...[...registry.running].flatMap((hub) => hub.sessions)]);
}
