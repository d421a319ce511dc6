/*
 * The express slot and who ends an item (src/engine-thread/boundary/overflow.ts, src/snapshot-writer/write-item.ts,
 * src/shared/session/publication.ts): two savers share the slot one after the other and leave when their limit passes, the
 * writer writes, a cleanup cancels the first saver's request. `waiting → abandoned | cancelled` stands against the writer's
 * `waiting → publishing` right before its rename; a mark that comes later is seen under the locks after it.
 *
 * Shown: a saver is told 'written' only of a file that is there or that a cleanup has removed since; nobody reads or frees a
 * record that has another user; each boundary is counted once; in the end no temporary file, no file that nobody knows, no
 * bytes, no slot in use.
 *
 * Seeded bugs:
 *   CHECK_THEN_RENAME   the writer looks at the decision and renames, without the compare-and-swap
 *   NO_LAST_LOOK        after the rename the cancel mark is not looked at
 *   FREED_UNREAD        the writer frees a record whose saver has not read how it ended
 *   LEAVER_FREES        a saver that leaves frees a record that the writer holds
 *   ABANDON_BY_FORCE    a saver whose limit passed withdraws the item although the writer is publishing it
 *   TEMPORARY_STAYS     an abandoned temporary file is left to nobody
 */
#include "protocol-sync.inc"

#define SAVERS 2

mtype = { free, filling, queued, taken, spent };                /* state of the item */
mtype = { waiting, publishing, abandoned, cancelled };          /* decision */
mtype = { none, written, dropped, failed };                     /* result */
mtype = { absent, pendingFile, file, condemned };               /* record in the registry */

byte locks;             /* pending → registry → cancelled, always taken together here */
byte busy;              /* writerBusy */

mtype state = free;
byte generation, lastGeneration, cancelledGeneration;
mtype decision, result;
bool visible, awaited, bytes;
byte owner;

mtype record[SAVERS] = absent;
byte recordGeneration[SAVERS];
bool temporary[SAVERS], final[SAVERS], cleaned[SAVERS];

byte pendingCount, writtenCount, droppedCount, failedCount, ended;
bool cleanerEnded, stop;

inline withdraw(how) {
  cas(decision, waiting, how, done);
  if
  :: how == cancelled -> cancelledGeneration = generation
  :: else -> skip
  fi;
  d_step {
    if
    :: record[owner] == pendingFile && recordGeneration[owner] == generation -> record[owner] = absent
    :: else -> skip
    fi;
    assert(pendingCount > 0);
    pendingCount--; droppedCount++;
    visible = false;
    if
    :: state == queued -> state = spent; result = dropped; bytes = false
    :: else -> skip
    fi
  }
}

/* Under the locks, by the writer: the item has ended. */
inline endItem(how) {
  d_step {
    visible = false; result = how; state = spent; bytes = false;
    if
#ifdef BUG_FREED_UNREAD
    :: true -> state = free
#else
    :: !awaited -> state = free
    :: else -> skip
#endif
    fi
  }
}

proctype saver(byte me) {
  byte mine;
  bool done, left;
  mtype told;
  pendingCount++;
  /* Room in the slot, or its limit passes (protocol-reservation.pml has that wait). */
  if
  :: atomic { locks == 0 && state == free -> locks = _pid + 1 }
  :: state != free -> d_step { pendingCount--; droppedCount++ }; goto out
  fi;
  d_step {
    lastGeneration++;
    generation = lastGeneration; mine = generation;
    decision = waiting; result = none; visible = false; awaited = false; owner = me; cancelledGeneration = 0;
    state = filling
  }
  drop(locks);
  bytes = true;
  take(locks);
  d_step {
    state = queued; visible = true; awaited = true;
    record[me] = pendingFile; recordGeneration[me] = mine
  }
  drop(locks);
  if
  :: result != none -> goto collect
  :: true -> skip /* the limit passes */
  fi;
  take(locks);
  assert(generation == mine);
  if
  :: visible ->
#ifdef BUG_ABANDON_BY_FORCE
     done = true;
#else
     cas(decision, waiting, abandoned, done);
#endif
     if
     :: done -> withdraw(abandoned); left = true
     :: else -> skip
     fi
  :: else -> left = true
  fi;
  drop(locks);
  if
  :: left -> skip
  :: !left && result != none -> skip
  :: !left -> skip /* the grace passes as well */
  fi;
collect:
  take(locks);
  assert(generation == mine);
  d_step {
    told = result;
    if
#ifdef BUG_LEAVER_FREES
    :: true -> state = free
#else
    :: state == spent -> state = free
    :: else -> awaited = false
#endif
    fi
  }
  drop(locks);
  assert(told != written || final[me] || cleaned[me]);
out:
  ended++
}

proctype writer() {
  byte ref, key, i;
  bool done, renamed, fault;
  do
  :: (state == queued && awaited) || record[0] == condemned ->
     take(busy);
     if
     :: record[0] == condemned -> final[0] = false; take(locks); record[0] = absent; drop(locks)
     :: else -> skip
     fi;
     atomic { ref = generation; key = owner }
     take(locks);
     d_step {
       done = false;
       if
       :: generation == ref && state == queued && decision == waiting -> state = taken; done = true
       :: generation == ref && state == spent && !awaited -> state = free
       :: else -> skip
       fi
     }
     drop(locks);
     if
     :: done ->
        renamed = false; fault = false;
        if
        :: decision != waiting -> goto giveUp
        :: else -> skip
        fi;
        temporary[key] = true;
        assert(generation == ref && owner == key && bytes); /* reading the bytes */
        if
        :: fault = true; goto giveUp /* the disk refuses it */
        :: skip
        fi;
#ifdef BUG_CHECK_THEN_RENAME
        if
        :: decision == waiting -> done = true
        :: else -> done = false
        fi;
#else
        cas(decision, waiting, publishing, done);
#endif
        if
        :: !done -> goto giveUp
        :: else -> skip
        fi;
        d_step { final[key] = true; temporary[key] = false; renamed = true }
        take(locks);
#ifndef BUG_NO_LAST_LOOK
        if
        :: cancelledGeneration == ref -> drop(locks); goto giveUp
        :: else -> skip
        fi;
#endif
        d_step {
          if
          :: record[key] == pendingFile && recordGeneration[key] == ref -> record[key] = file
          :: else -> skip
          fi;
          assert(pendingCount > 0);
          pendingCount--; writtenCount++
        }
        endItem(written);
        drop(locks);
        goto next;
giveUp:
#ifndef BUG_TEMPORARY_STAYS
        temporary[key] = false;
#endif
        if
        :: renamed -> final[key] = false
        :: else -> skip
        fi;
        take(locks);
        d_step {
          assert(generation == ref);
          if
          :: record[key] == pendingFile && recordGeneration[key] == ref -> record[key] = absent
          :: else -> skip
          fi;
          if
          :: visible && fault -> pendingCount--; failedCount++
          :: visible && !fault -> pendingCount--; droppedCount++
          :: else -> skip
          fi
        }
        if
        :: fault -> endItem(failed)
        :: else -> endItem(dropped)
        fi;
        drop(locks)
     :: else -> skip
     fi;
next:
     drop(busy)
  :: stop && !(state == queued && awaited) && record[0] != condemned -> break
  od
}

/* Forgets the first saver's request; whoever holds writerBusy next removes the file. */
proctype cleaner() {
  bool done;
  take(locks);
  if
  :: visible && owner == 0 -> withdraw(cancelled)
  :: else -> skip
  fi;
  d_step {
    cleaned[0] = true;
    if
    :: record[0] == file -> record[0] = condemned; writtenCount--; droppedCount++
    :: else -> skip
    fi
  }
  drop(locks);
  cleanerEnded = true
}

init {
  atomic { run saver(0); run saver(1); run writer(); run cleaner() }
  ended == SAVERS && cleanerEnded;
  stop = true;
  _nr_pr == 1;
  assert(!temporary[0] && !temporary[1]);
  assert(final[0] == (record[0] == file) && final[1] == (record[1] == file));
  assert(state == free && !bytes && !visible);
  assert(pendingCount == 0 && writtenCount + droppedCount + failedCount == SAVERS)
}

ltl every_saver_returns { <> (ended == SAVERS) }
