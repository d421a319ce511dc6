/**
 * What mutex and reentrant lock share: book-keeping in the lock's words, rank checks, errors that name lock, thread and site.
 *
 * Words beside STATE and PRIORITY are written by the owner while it holds the lock (so they need no order of their own) and
 * read by `diagnose()` at any moment. Waiters are counted from the thread table, not in a word: a waiter that dies would
 * leave a count behind.
 */
import { TidemarkError } from '../errors.ts';
import { now } from './clock.ts';
import type { Lives, Outcome } from './lock-word.ts';
import { ownerOf, release, take, takeFromDead, tryTake } from './lock-word.ts';
import type { LockSpec } from './ranks.ts';
import type { ThreadHandle } from './thread-table.ts';
import { slotOf } from './thread-table.ts';

export const DEPTH = 2;
export const SITE = 3;
export const SINCE = 4;
export const LONGEST_HOLD_US = 5;
export const LONGEST_WAIT_US = 6;
export const ID = 7;
export const NAME = 8;
export const RANK = 9;
export const KIND = 10; // 1 mutex, 2 reentrant, 3 condition
export const TIMEOUTS = 11;
export const TAKEOVERS = 12;
export const LOCK_WORDS = 16;

export const MUTEX = 1;
export const REENTRANT = 2;

export abstract class Lock {
  static readonly WORDS = LOCK_WORDS;

  readonly words: Int32Array;
  readonly at: number;
  readonly spec: LockSpec;
  readonly id: number;
  readonly self: ThreadHandle;
  protected readonly nameId: number;
  readonly #lives: Lives;
  #heldSince = 0;

  constructor(words: Int32Array, at: number, spec: LockSpec, self: ThreadHandle, kind: number) {
    this.words = words;
    this.at = at;
    this.spec = spec;
    this.self = self;
    this.nameId = self.table.strings.intern(spec.name);
    const { table } = self;
    const takesOver = spec.onOwnerDeath === 'takeover';
    this.#lives = { isDead: (token) => table.isDead(token), isLost: (token) => (takesOver ? table.isGone(token) : table.isDead(token)) };
    // Every thread that makes an object over these words writes the same values; only the id needs a race decided.
    words[at + NAME] = this.nameId;
    words[at + RANK] = spec.rank;
    words[at + KIND] = kind;
    if (Atomics.load(words, at + ID) === 0) Atomics.compareExchange(words, at + ID, 0, self.table.nextLockId());
    this.id = Atomics.load(words, at + ID);
  }

  get name(): string {
    return this.spec.name;
  }

  isHeldByMe(): boolean {
    return ownerOf(this.words, this.at) === this.self.token;
  }

  /** Checks, takes or waits. The caller has dealt with recursion. */
  protected take(timeoutMs: number, site: string): boolean {
    const { self, words, at } = this;
    this.#check(site);
    const siteId = self.table.strings.intern(site);
    if (!tryTake(words, at, self.token)) {
      const begin = now();
      self.beginWait('lock', this.id, this.nameId, siteId);
      let outcome: Outcome;
      try {
        outcome = take(words, at, self.token, timeoutMs, this.#lives);
        if (outcome === 'owner died' && this.spec.onOwnerDeath === 'takeover') outcome = this.#takeOver(begin + timeoutMs - now(), siteId);
      } finally {
        self.endWait();
      }
      raise(words, at + LONGEST_WAIT_US, (now() - begin) * 1000);
      if (outcome === 'owner died') throw this.#ownerDied(site, siteId);
      if (outcome === 'timed out') {
        Atomics.add(words, at + TIMEOUTS, 1);
        self.log('timed out', this.nameId, siteId);
        return false;
      }
    }
    this.#taken(siteId);
    return true;
  }

  #taken(siteId: number): void {
    const { self, words, at } = this;
    words[at + DEPTH] = 1;
    words[at + SITE] = siteId;
    const time = now();
    const ms = self.table.ms(time);
    words[at + SINCE] = ms;
    this.#heldSince = time;
    self.held.push(this);
    self.log('acquired', this.nameId, siteId, ms);
  }

  protected drop(): void {
    const { self, words, at } = this;
    if (!this.isHeldByMe()) {
      throw new TidemarkError('LOCK_NOT_OWNER', `Lock '${this.name}' is not held by this thread, so it cannot release it.`, { details: { lock: this.name } });
    }
    const { held } = self;
    if (held[held.length - 1] === this) held.pop();
    else if (held.includes(this)) held.splice(held.lastIndexOf(this), 1);
    const time = now();
    raise(words, at + LONGEST_HOLD_US, (time - this.#heldSince) * 1000);
    self.log('released', this.nameId, words[at + SITE]!, self.table.ms(time));
    words[at + DEPTH] = 0;
    release(words, at);
  }

  /** Frees the lock whatever its depth, for a condition's wait. Returns the depth for `restore`. */
  releaseAll(): number {
    const depth = this.words[this.at + DEPTH]!;
    this.drop();
    return depth;
  }

  /** Sets the depth again after the lock was retaken. */
  restore(depth: number): void {
    this.words[this.at + DEPTH] = depth;
  }

  /** The dead owner's environment is gone, and with it whatever the lock kept others from. */
  #takeOver(timeoutMs: number, siteId: number): Outcome {
    const { self, words, at } = this;
    const end = now() + timeoutMs;
    for (;;) {
      if (takeFromDead(words, at, self.token, this.#lives)) {
        Atomics.add(words, at + TAKEOVERS, 1);
        self.log('took over', this.nameId, siteId);
        return 'acquired';
      }
      const outcome = take(words, at, self.token, Math.max(0, end - now()), this.#lives);
      if (outcome !== 'owner died') return outcome;
    }
  }

  /** Ranks only rise; the app's main thread takes no lock. */
  #check(site: string): void {
    const { self, spec } = this;
    if (!self.mayBlock) {
      throw new TidemarkError(
        'LOCK_ON_MAIN_THREAD',
        `Lock '${spec.name}' (at ${site}) must not be taken on the app's main thread: it would stop its event loop. Use a Worker.`,
        {
          details: { lock: spec.name, site },
        },
      );
    }
    for (const { spec: held } of self.held) {
      if (held.rank < spec.rank && held.rank <= (spec.maxUnder ?? spec.rank)) continue;
      // Waiting for oneself is wrong in production too: it could only end by timeout.
      const itself = this.isHeldByMe();
      if (!self.strict && !itself) {
        self.table.countRankViolation();
        return;
      }
      const message = itself
        ? `Lock '${spec.name}' is not reentrant and already held by this thread`
        : `Lock '${spec.name}' (rank ${spec.rank}) must not be taken while '${held.name}' (rank ${held.rank}) is held`;
      throw new TidemarkError('LOCK_RANK', `${message} (at ${site}). Acquire locks in rising rank.`, { details: { lock: spec.name, held: held.name, site } });
    }
  }

  #ownerDied(site: string, siteId: number): TidemarkError {
    const { self, words, at } = this;
    const owner = ownerOf(words, at);
    const thread = self.table.nameOf(owner);
    const ownerSite = self.table.strings.read(words[at + SITE]!);
    self.log('owner died', this.nameId, siteId);
    return new TidemarkError(
      'LOCK_OWNER_DIED',
      `Thread '${thread}' died while it held lock '${this.name}' (taken at ${ownerSite}; wanted at ${site}). What the lock guards may be half changed: close this session and make a new one.`,
      {
        details: { lock: this.name, thread, site: ownerSite, slot: slotOf(owner), wantedAt: site },
      },
    );
  }

  /** The error for a wait that ran out, naming the owner of that moment. */
  timeoutError(timeoutMs: number, site: string): TidemarkError {
    const { table } = this.self;
    const owner = ownerOf(this.words, this.at);
    const thread = owner === 0 ? 'nobody any more' : table.nameOf(owner);
    const ownerSite = table.strings.read(this.words[this.at + SITE]!);
    return new TidemarkError('LOCK_TIMEOUT', `Lock '${this.name}' was not had within ${timeoutMs} ms (at ${site}); held by ${thread}, taken at ${ownerSite}.`, {
      details: { lock: this.name, thread, site: ownerSite, wantedAt: site, timeoutMs },
    });
  }
}

/** Raises a maximum, saturating. Racing maxima may lose one update: it is a statistic. */
export function raise(words: Int32Array, at: number, value: number): void {
  const rounded = value >= 0x7fffffff ? 0x7fffffff : Math.round(value);
  if (rounded > words[at]!) words[at] = rounded;
}
