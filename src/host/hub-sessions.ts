/** The sessions of one cache folder on the main thread: their memory, their staging folders and locks, what they have pending. */
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { Files } from '../shared/files.ts';
import { loadNativeCore } from '../shared/native-core.ts';
import type { Session, SessionMemory } from '../shared/session/index.ts';
import { attachSession } from '../shared/session/index.ts';
import { ensureStagingRoot, openSessionStaging, removeSessionStaging } from '../shared/staging.ts';
import type { ThreadHandle, ThreadTable } from '../shared/sync/thread-table.ts';
import type { LostSession } from './keeper-protocol.ts';

interface Attached {
  readonly memory: SessionMemory;
  readonly session: Session;
  /** Descriptor of the staging lock; null when nothing is staged. */
  readonly stagingLock: number | null;
}

export class HubSessions {
  readonly #stagingRoot: string;
  readonly #self: ThreadHandle;
  readonly #files = new Files();
  readonly #sessions = new Map<number, Attached>();

  constructor(stagingRoot: string, self: ThreadHandle) {
    this.#stagingRoot = stagingRoot;
    this.#self = self;
  }

  get(number: number): Session | undefined {
    return this.#sessions.get(number)?.session;
  }

  get all(): Session[] {
    return [...this.#sessions.values()].map(({ session }) => session);
  }

  /** Whether any session has accepted items that have not reached their end. */
  get pending(): boolean {
    return this.all.some((session) => session.state !== 'failed' && session.itemsInFlight > 0);
  }

  /**
   * Adds a session. With `stages`, its staging lock and folder are made here: descriptors of a Worker close with the Worker.
   * @throws the file error that kept staging from being made; the session is added all the same.
   */
  add(memory: SessionMemory, stages: boolean): void {
    const session = attachSession(memory, this.#self);
    let stagingLock: number | null = null;
    try {
      if (stages) stagingLock = this.#openStaging(memory);
    } finally {
      this.#sessions.set(memory.number, { memory, session, stagingLock });
    }
  }

  #openStaging(memory: SessionMemory): number | null {
    const core = loadNativeCore();
    if (core === null) return null;
    ensureStagingRoot(this.#stagingRoot, this.#files);
    const lock = openSessionStaging(this.#stagingRoot, memory.id, this.#files, core);
    if (typeof lock !== 'number') throw new Error(lock.message);
    return lock;
  }

  /**
   * Forgets a session that no thread uses any more and removes what it staged. Gives back the error that kept a file from being
   * removed: without the session's lock, which is given up in any case, the next start of a writer removes the rest.
   */
  async remove(number: number): Promise<Error | null> {
    const attached = this.#sessions.get(number);
    this.#sessions.delete(number);
    const core = loadNativeCore();
    if (attached === undefined || attached.stagingLock === null || core === null) return null;
    const { memory, stagingLock } = attached;
    try {
      // The bulk off the main thread; what is left for the synchronous part is a lock file and, rarely, a taken file.
      await rm(join(this.#stagingRoot, memory.id), { recursive: true, force: true });
      removeSessionStaging(this.#stagingRoot, memory.id, this.#files, null);
      return null;
    } catch (error) {
      return error as Error;
    } finally {
      core.flockRelease(stagingLock);
    }
  }

  /** Forgets all, leaving folders and locks as they are: a thread that could not be ended may still use them. */
  abandon(): void {
    this.#sessions.clear();
  }

  /** After the death of both loops: sessions of which a lock was lost are failed and returned. */
  failLost(threads: ThreadTable): LostSession[] {
    const lost: LostSession[] = [];
    for (const session of this.all) {
      const found = lostLock(session, threads);
      if (found !== null) lost.push(found);
    }
    return lost;
  }
}

/** Fails a session of which a dead thread holds a lock; null when there is none. `token` names the thread, default: any. */
export function lostLock(session: Session, threads: ThreadTable, token?: number): LostSession | null {
  const lock = session.readLocks(threads).find((l) => l.ownerDead && (token === undefined || l.ownerToken === token));
  if (lock === undefined) return null;
  return { session: session.number, lock: lock.name, thread: lock.owner ?? '', site: lock.site, failed: session.fail() };
}
