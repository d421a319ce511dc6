/**
 * One unit on the store worker: a block's key-value image from the arena and its staged state file become block files.
 *
 * Order: take the staged file (a rename inside the cache folder, so the state is written to the device once), write and sync
 * the image under a temporary name, rename both, sync their folder once, then the index, then `durable`. Whatever happens,
 * the unit's bytes and place are given back at the end, and no temporary file stays.
 */
import { readImageHeader, writeSynced } from '../shared/blocks/block-file.ts';
import { type ParsedImage, parseImageHeader, sealImage } from '../shared/blocks/image.ts';
import { headerLength } from '../shared/blocks/image-parse.ts';
import { continuesEarlier } from '../shared/blocks/layer-tree.ts';
import type { PagedBytes } from '../shared/blocks/paged-bytes.ts';
import { TidemarkError } from '../shared/errors.ts';
import type { StoreEvent } from '../shared/events.ts';
import { fillLeased, finishUnit, type Session, stagedState, takeStaged, type Unit, unitBytes } from '../shared/session/index.ts';
import type { BlockStore, ReadyFile } from './block-store.ts';
import type { Boundaries, Boundary } from './boundaries.ts';
import { makeRoom } from './eviction.ts';
import type { Persistence } from './persistence.ts';
import { rowOf } from './rebuild.ts';
import { physicalSize } from './walk.ts';

export interface UnitContext {
  readonly store: BlockStore;
  readonly persistence: Persistence;
  readonly boundaries: Boundaries;
  readonly emit: (event: StoreEvent) => void;
  /** Tips that are in use by sessions and restores. */
  readonly isProtected: (hash: string) => boolean;
  /** Makes temporary names of this life unique. */
  readonly unique: () => string;
}

export interface UnitOwner {
  readonly number: number;
  readonly session: Session;
}

/** What restoring at a block needs, as the image's layer list tells: it names every layer, the ones it holds no state of too. */
function needsOf(image: ParsedImage): { kv: boolean; state: boolean } {
  const layers = JSON.parse(image.layersJson) as { stored: string }[];
  return { kv: image.tensors.size > 0, state: layers.some((layer) => layer.stored === 'none') };
}

function readHeader(bytes: PagedBytes): ParsedImage {
  const length = headerLength(bytes.slice(0, Math.min(8, bytes.byteLength)), bytes.byteLength);
  const image = typeof length === 'number' ? parseImageHeader(bytes.slice(0, length), bytes.byteLength, { unsealed: true }) : length;
  if (!image.ok) throw new TidemarkError('FORMAT_INVALID', `the engine handed over a block image that is none: ${image.detail}`);
  return image;
}

/** A unit that a former worker had begun when it died. */
export interface Adopted {
  /** The staged file as far as that worker had taken it, or null. */
  readonly promoted: string | null;
}

/** Does the unit, or says that it must be set aside: its bytes or its staged file are still on their way. */
export function processUnit(context: UnitContext, owner: UnitOwner, unit: Unit, adopted: Adopted | null = null): 'done' | 'aside' {
  const { session } = owner;
  const bytes = unitBytes(session, unit);
  if (bytes === null || (unit.hasState && stagedState(session, unit.key, unit.tokenCount) === 'pending')) return 'aside';
  let over = true;
  try {
    fillLeased(session, unit);
  } catch (error) {
    failUnit(context, owner, unit, 'ECANCELED', error instanceof Error ? error.message : String(error));
    return 'done';
  }
  try {
    // Read first: of an image that is none, nothing is taken.
    const image = readHeader(bytes);
    const staged = adopted?.promoted ?? takeState(context, owner, unit);
    if (staged === BUSY) {
      over = false;
      return 'aside';
    }
    // The former worker may have come as far as publishing the state: then the boundary is still counted as written.
    const published = adopted !== null && unit.hasState && context.store.hasPart(unit.block, 'state');
    storeUnit(context, owner, unit, { image, bytes, staged, statePublished: published });
  } finally {
    if (over) finishUnit(session, unit);
  }
  return 'done';
}

/** The session's locks are lost with their owner: what was handed over is stored all the same, as far as that needs no lock. */
export function processLostUnit(context: UnitContext, owner: UnitOwner, unit: Unit): void {
  const bytes = unitBytes(owner.session, unit);
  try {
    fillLeased(owner.session, unit);
  } catch (error) {
    context.emit({ type: 'note', code: 'LEASE_GONE', message: String(error), details: { block: unit.block } });
    return;
  }
  if (bytes !== null) storeUnit(context, owner, unit, { image: readHeader(bytes), bytes, staged: null, statePublished: false });
}

/** Ends a unit without storing it: shutdown, or persistence is down. */
export function failUnit(context: UnitContext, owner: UnitOwner, unit: Unit, errno: string, message: string): void {
  try {
    const bytes = unitBytes(owner.session, unit);
    const needs = bytes === null ? { kv: true, state: unit.hasState } : needsOf(readHeader(bytes));
    const taken = takeState(context, owner, unit);
    const staged = taken === BUSY ? null : taken;
    if (staged !== null) discardFile(context, staged);
    settleFailed(context, owner, unit, ledgerState(needs, staged), errno, message);
  } finally {
    finishUnit(owner.session, unit);
  }
}

/** Saved again between the look and the taking: the file that the unit needs is on its way once more. */
const BUSY = Symbol('busy');

/** The staged file as a path that is ours, or null: never saved, dropped, cleaned, or not to be had. */
function takeState({ store }: UnitContext, { session }: UnitOwner, unit: Unit): string | typeof BUSY | null {
  if (!unit.hasState) return null;
  const taken = takeStaged(session, store.files, unit.key, unit.tokenCount, 0);
  if (taken.ok) return taken.path;
  return taken.reason === 'busy' ? BUSY : null;
}

function discardFile({ store, emit }: UnitContext, path: string): void {
  try {
    store.files.removeFile(path);
  } catch (error) {
    // Left in the promotion folder, it goes with the next start's clearing of staging.
    emit({ type: 'note', code: 'CACHE_IO', message: `${path} could not be removed: ${String(error)}`, details: { path } });
  }
}

/** In which ledger state this boundary is while the unit holds it; null when it is none or was settled elsewhere. */
function ledgerState(needs: { kv: boolean; state: boolean }, staged: string | null): 'pending' | 'written' | null {
  if (staged !== null) return 'written';
  return needs.state ? null : 'pending';
}

function settleFailed(context: UnitContext, owner: UnitOwner, unit: Unit, from: 'pending' | 'written' | null, errno: string, message: string): void {
  // Settled elsewhere (dropped, failed or cleaned by the writer), or no boundary at all: nothing more to say.
  if (from === null) return;
  owner.session.ledger.move(from, 'failed');
  context.emit({ type: 'failed', session: owner.number, requestNo: unit.requestNo, tokenCount: unit.tokenCount, errno, message });
}

interface UnitContent {
  readonly image: ParsedImage;
  readonly bytes: PagedBytes;
  /** The staged state as a path that is ours. */
  readonly staged: string | null;
  /** A former worker has published the state already. */
  readonly statePublished: boolean;
}

function storeUnit(context: UnitContext, owner: UnitOwner, unit: Unit, content: UnitContent): void {
  const { store, persistence } = context;
  const { image, bytes, staged, statePublished } = content;
  const needs = needsOf(image);
  const from = statePublished ? 'written' : ledgerState(needs, staged);
  const leftOver = new Set<string>(staged === null ? [] : [staged]);
  try {
    if (!persistence.mayTry) {
      const { errno, message } = persistence.failure!;
      settleFailed(context, owner, unit, from, errno, message);
      return;
    }
    if (persistence.failure !== null) store.revive();
    const { ready, continues } = collectParts(context, image, bytes, staged, leftOver);
    const chained = store.publish(rowOf(image), ready);
    for (const file of ready) leftOver.delete(file.path);
    persistence.succeeded();
    announce(context, owner, unit, { ...needs, earlierStates: continues }, from);
    context.boundaries.chained(chained);
    if (ready.some(({ part }) => part === 'state')) context.boundaries.statesArrived();
  } catch (error) {
    const { errno, message } = persistence.failed(error);
    if (errno === 'ENOSPC' || errno === 'SQLITE_FULL') store.space.invalidate();
    settleFailed(context, owner, unit, from, errno, message);
  } finally {
    for (const path of leftOver) discardFile(context, path);
  }
}

interface Parts {
  readonly ready: ReadyFile[];
  /** The state, this one or the one that is stored already, holds rows that continue those of the block before. */
  readonly continues: boolean;
}

/** Synced files of the parts that are not stored yet. Everything made here is in `leftOver` until it is published. */
function collectParts(context: UnitContext, image: ParsedImage, bytes: PagedBytes, staged: string | null, leftOver: Set<string>): Parts {
  const { store } = context;
  const ready: ReadyFile[] = [];
  const hash = image.blockHash;
  const wantsKv = image.tensors.size > 0 && !store.hasPart(hash, 'kv');
  const wantsState = staged !== null && !store.hasPart(hash, 'state');
  const stateBytes = wantsState ? (physicalSize(staged)?.bytes ?? 0) : 0;
  makeRoom(store, (wantsKv ? bytes.byteLength : 0) + stateBytes, (tip) => tip === hash || tip === image.parentHash || context.isProtected(tip));
  store.prepareFolder(hash);
  const statePath = staged ?? (store.hasPart(hash, 'state') ? store.paths.block(hash, 'state') : null);
  const state = statePath === null ? null : readImageHeader(store.files, statePath);
  if (wantsState && state !== null) {
    if (state.ok && state.blockHash === hash && state.part === 'state') ready.push({ part: 'state', path: staged });
    else
      context.emit({
        type: 'note',
        code: 'FORMAT_INVALID',
        message: `the staged state of block ${hash} is not usable (${state.ok ? 'another block' : state.detail})`,
        details: { block: hash },
      });
  }
  if (wantsKv) {
    const path = store.paths.temporary(hash, context.unique());
    sealImage(bytes);
    writeSynced(store.files, path, bytes);
    leftOver.add(path);
    ready.push({ part: 'kv', path });
  }
  return { ready, continues: state?.ok === true && continuesEarlier(state.layersJson) };
}

interface RestoreNeeds {
  readonly kv: boolean;
  readonly state: boolean;
  /** Also the states of the blocks before. */
  readonly earlierStates: boolean;
}

/** Says `durable` now, or when the parents have come. A block that nobody could resume at is no boundary. */
function announce(context: UnitContext, owner: UnitOwner, unit: Unit, needs: RestoreNeeds, from: 'pending' | 'written' | null): void {
  const row = context.store.row(unit.block);
  const restorable = row !== null && (!needs.kv || row.kvBytes > 0) && (!needs.state || row.stateBytes > 0);
  if (!restorable) {
    if (from !== null) settleFailed(context, owner, unit, from, 'EINVAL', 'the block is stored without what a restore at its end needs');
    return;
  }
  const boundary: Boundary = {
    session: owner.number,
    requestNo: unit.requestNo,
    tokenCount: unit.tokenCount,
    ledger: from === null ? null : { session: owner.session, state: from },
  };
  const { store, boundaries } = context;
  const chained = () => !needs.kv || store.row(unit.block)?.chain === 1;
  if (!needs.earlierStates) {
    if (chained()) boundaries.durable(unit.block, boundary);
    else boundaries.wait(unit.block, boundary);
    return;
  }
  const whole = () => chained() && store.statesWhole(unit.block);
  if (whole()) boundaries.durable(unit.block, boundary);
  else boundaries.wait(unit.block, { ...boundary, whole });
}
