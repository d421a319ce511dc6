/*
 * Cleanup against the writer (src/shared/session/cleanup.ts, publication.ts): one boundary is saved three times while
 * two cleanups forget it, each at any moment; a cleanup sweeps if it gets writerBusy before its deadline, otherwise the writer
 * does. An item in flight carries a cancel mark of its generation. A later save of the same boundary takes the registry record over.
 *
 * Shown: a save that was accepted after the last cleanup is written, whatever becomes of the earlier one; a cleanup that had
 * writerBusy leaves no file behind that nobody knows; in the end the file on disk is the one that the registry names, or there
 * is none; each boundary is counted once.
 *
 * Seeded bugs:
 *   MARK_WITHOUT_GENERATION     the cancel mark names the boundary: it hits the next save of it
 *   RECORD_WITHOUT_GENERATION   an item that ends takes the record of its successor with it
 *   OLD_FILE_FORGOTTEN          a cancelled item that would have replaced a file leaves that file to nobody
 *   SWEEP_WITHOUT_BUSY          a cleanup whose deadline passed sweeps all the same
 *   NOBODY_SWEEPS               a cleanup whose deadline passed leaves the files to nobody
 *   SWEPT_UNSEEN                after the removal the record goes, whoever has taken it over meanwhile
 *   RELEASED_EARLY              the writer lets writerBusy go before it removes what was cancelled
 */
#include "protocol-sync.inc"

#ifdef FEWER /* for the temporal claim, whose search is larger */
#define SAVES 2
#define CLEANUPS 1
#else
#define SAVES 3
#define CLEANUPS 2
#endif
#define ITEMS 2
#define isMine(i) (record == pendingFile && recordGeneration == itemGeneration[i])

mtype = { free, queued, taken, spent };
mtype = { waiting, publishing, cancelled };
mtype = { absent, pendingFile, file, condemned };

byte locks, busy;
mtype state[ITEMS] = free;
mtype decision[ITEMS];
byte itemGeneration[ITEMS], mark[ITEMS];
bool visible[ITEMS];
byte lastGeneration;
bool markOfBoundary;         /* of the seeded bug */

mtype record = absent;
byte recordGeneration;
bool oldFile;

byte disk;                   /* generation of the file's content, 0: no file */
bool temporary;

byte pendingCount, writtenCount, droppedCount, supersededCount, coalescedCount;
bool forgotten;
byte afterwards;             /* generation of the save accepted after the last cleanup */
bool saverEnded, stop;
byte cleanersEnded;

chan ring = [ITEMS] of { byte, byte };

inline condemn() {
  record = condemned; oldFile = false
}

proctype saver() {
  byte round, i, mine;
  do
  :: round < SAVES ->
     round++;
     take(locks);
     d_step {
       if
       :: visible[0] || visible[1] -> coalescedCount++; i = ITEMS
       :: else ->
          i = 0;
          do
          :: i < ITEMS && state[i] != free -> i++
          :: else -> break
          od;
          if
          :: i == ITEMS -> droppedCount++ /* no place */
          :: else ->
             lastGeneration++; mine = lastGeneration; pendingCount++;
             itemGeneration[i] = mine; mark[i] = 0; decision[i] = waiting;
             if
             :: record == absent -> oldFile = false
             :: record == file -> writtenCount--; supersededCount++; oldFile = true
             :: record == condemned -> oldFile = true
             fi;
             record = pendingFile; recordGeneration = mine;
             visible[i] = true; state[i] = queued;
             if
             :: forgotten -> afterwards = mine
             :: else -> skip
             fi
          fi
       fi
     }
     if
     :: i < ITEMS -> ring!i, mine
     :: else -> skip
     fi;
     drop(locks)
  :: else -> break
  od;
  saverEnded = true
}

/* `busy` is held, unless the seeded bug says otherwise. */
inline sweep() {
  take(locks);
  if
  :: record == condemned ->
     seen = recordGeneration;
     drop(locks);
     disk = 0;
     take(locks);
#ifdef BUG_SWEPT_UNSEEN
     record = absent
#else
     d_step {
       if
       :: record == condemned && recordGeneration == seen -> record = absent
       :: else -> skip
       fi
     }
#endif
  :: else -> skip
  fi;
  drop(locks)
}

proctype writer() {
  byte i, ref, seen;
  bool done, renamed;
  do
#ifdef BUG_NOBODY_SWEEPS
  :: nempty(ring) ->
     take(busy);
#else
  :: nempty(ring) || record == condemned ->
     take(busy);
     sweep();
#endif
     if
     :: atomic { nempty(ring) -> ring?i, ref }
     :: empty(ring) -> goto next
     fi;
     take(locks);
     d_step {
       done = false;
       if
       :: itemGeneration[i] == ref && state[i] == queued -> state[i] = taken; done = true
       :: itemGeneration[i] == ref && state[i] == spent -> state[i] = free
       :: else -> skip
       fi
     }
     drop(locks);
     if
     :: !done -> goto next
     :: else -> skip
     fi;
     renamed = false;
     if
     :: decision[i] != waiting -> goto giveUp
     :: else -> skip
     fi;
     temporary = true;
     cas(decision[i], waiting, publishing, done);
     if
     :: !done -> goto giveUp
     :: else -> skip
     fi;
     d_step { disk = ref; temporary = false; renamed = true }
     take(locks);
     if
#ifdef BUG_MARK_WITHOUT_GENERATION
     :: markOfBoundary -> drop(locks); goto giveUp
#else
     :: mark[i] == ref -> drop(locks); goto giveUp
#endif
     :: else -> skip
     fi;
     d_step {
       if
       :: isMine(i) -> record = file; oldFile = false
       :: else -> skip
       fi;
       assert(pendingCount > 0);
       pendingCount--; writtenCount++;
       visible[i] = false; state[i] = free
     }
     drop(locks);
     goto next;
giveUp:
#ifdef BUG_RELEASED_EARLY
     drop(busy);
#endif
     temporary = false;
     if
     :: renamed -> disk = 0
     :: else -> skip
     fi;
     take(locks);
     d_step {
       if
#ifdef BUG_RECORD_WITHOUT_GENERATION
       :: record == pendingFile -> record = absent
#else
       :: isMine(i) -> record = absent
#endif
       :: else -> skip
       fi;
       if
       :: visible[i] -> pendingCount--; droppedCount++
       :: else -> skip
       fi;
       visible[i] = false; state[i] = free
     }
     drop(locks);
#ifdef BUG_RELEASED_EARLY
     take(busy);
#endif
next:
     drop(busy)
#ifdef BUG_NOBODY_SWEEPS
  :: stop && empty(ring) -> break
#else
  :: stop && empty(ring) && record != condemned -> break
#endif
  od
}

proctype cleaner() {
  byte i, seen;
  bool done;
  take(locks);
  do
  :: i < ITEMS ->
     if
     :: visible[i] ->
        cas(decision[i], waiting, cancelled, done);
        d_step {
          mark[i] = itemGeneration[i]; markOfBoundary = true;
          if
#ifdef BUG_OLD_FILE_FORGOTTEN
          :: isMine(i) -> record = absent
#else
          :: isMine(i) && oldFile -> condemn()
          :: isMine(i) && !oldFile -> record = absent
#endif
          :: else -> skip
          fi;
          assert(pendingCount > 0);
          pendingCount--; droppedCount++;
          visible[i] = false;
          if
          :: state[i] == queued -> state[i] = spent
          :: else -> skip
          fi
        }
     :: else -> skip
     fi;
     i++
  :: else -> break
  od;
  atomic {
    if
    :: record == file -> condemn(); writtenCount--; droppedCount++
    :: else -> skip
    fi;
    forgotten = true; afterwards = 0; i = 0
  }
  drop(locks);
  if
  :: take(busy);
     sweep();
     /* With writerBusy, no file is there that nobody knows. */
     take(locks);
     assert(disk == 0 || record == file || record == condemned || (record == pendingFile && oldFile));
     drop(locks);
     drop(busy)
  :: skip /* the deadline passes */
#ifdef BUG_SWEEP_WITHOUT_BUSY
     ; sweep()
#endif
  fi;
  cleanersEnded++
}

init {
  atomic { run saver(); run writer(); run cleaner() }
#ifndef FEWER
  run cleaner();
#endif
  saverEnded && cleanersEnded == CLEANUPS;
  stop = true;
  _nr_pr == 1;
  assert(!temporary);
  assert((record == file && disk == recordGeneration) || (record == absent && disk == 0));
  assert(afterwards == 0 || (record == file && disk == afterwards));
  assert(pendingCount == 0 && writtenCount + droppedCount + supersededCount + coalescedCount == SAVES)
}

ltl what_is_condemned_goes { [] (record == condemned -> <> (record != condemned)) }
