/*
 * From staging into the block store (src/shared/session/staged-files.ts, units.ts; src/store-worker/): the engine saves a
 * boundary's state, hands its unit over and saves the same boundary again, the writer writes the files, the store worker takes
 * one away in two phases and publishes it, a cleanup forgets the request at any moment. Restores are served before each unit.
 *
 * Shown: a restore is served although the writer stands still for ever; no wake-up of the store worker is lost; the boundary
 * goes through its states in order and ends in one; what a unit has claimed before the cleanup is not cleaned under it; in the
 * end, whichever of the disk's calls failed, nothing lies in staging or in the promotion folder.
 *
 * Seeded bugs:
 *   DRAIN_WAITS             the drain loop waits for the writer instead of setting the unit aside
 *   BELL_AFTER_LOOK         the bell is read after the rings were looked at
 *   SEQUENCE_AFTER_LOOK     the sequence of staged files is read after the unit was looked at
 *   CLEANUP_TAKES_DETACHING a cleanup condemns a file that is being renamed away
 *   DETACH_UNMARKED         the file is renamed away before anybody is told
 *   LOOK_THEN_TAKE          a unit whose boundary is saved again between the look and the taking ends without its state
 *   NO_CLAIM                a cleanup condemns a file that a unit still needs
 *   REVIVED                 a file that could not be renamed away is known again although its request was forgotten meanwhile
 *   NO_FINALLY              a unit that ends does not look whether its request has ended
 *   RENAME_UNDER_LOCK       a file operation under the locks: a disk that hangs keeps save() from returning
 */
#include "protocol-sync.inc"

mtype = { absent, pendingFile, file, detaching, condemned };                         /* record */
mtype = { uncounted, pendingState, written, durable, superseded, dropped, failed };  /* ledger, of each item's boundary */
mtype = { free, queued, taken };                                                     /* unit */

byte locks, busy;
mtype record = absent;
mtype ledger[3] = uncounted;
mtype unit = free;
byte visible;               /* the item that is the boundary's pending entry */
byte recordItem;            /* the item that published the record */
bool oldFile;               /* which will replace a file */
bool mark[3];               /* cancel marks of items */
bool requestEnded;           /* a mark of the unit */
bool forgottenMeanwhile;     /* a mark of the record, while it is being detached */

byte staged;                /* the item whose bytes the staged file has */
bool promoted, stored;

byte bell, stagedSequence;
chan ring = [2] of { byte };
bool asked, served;         /* the restore */
bool writerHangs, diskHangs;
bool renameFailed, cleaned, writerEnded, unitEnded, engineReturned;
bool looked;                /* the unit has taken its file, or found none */
byte claimed;               /* the item that the unit still needs when its request is cleaned */

inline move(i, from, to) {
  d_step { assert(ledger[i] == from); ledger[i] = to }
}

/* `locks` are held. */
inline forget() {
  if
  :: unit != free && (visible || record == file) ->
#ifdef BUG_NO_CLAIM
     skip
#else
     requestEnded = true; goto forgotten
#endif
  :: else -> skip
  fi;
  if
  :: visible ->
     mark[visible] = true;
     move(visible, pendingState, dropped);
     visible = 0;
     if
     :: oldFile -> record = condemned
     :: else -> record = absent
     fi
#ifdef BUG_CLEANUP_TAKES_DETACHING
  :: record == file || record == detaching ->
#else
  :: record == detaching -> forgottenMeanwhile = true
  :: record == file ->
#endif
     record = condemned;
     move(recordItem, written, dropped)
  :: else -> skip
  fi;
forgotten:
  skip
}

proctype engine() {
  take(locks);
  d_step { ledger[1] = pendingState; visible = 1; record = pendingFile; recordItem = 1; ring!1 }
  drop(locks);
  take(locks);
  unit = queued;
  drop(locks);
  bell++;
  asked = true;
  bell++;
#ifndef FEWER /* left out for the temporal claim, whose search is larger */
  /* The same boundary again, unless it coalesces with what is under way. */
  take(locks);
  if
  :: !cleaned && !visible && record != detaching ->
     d_step {
       if
       :: record == file -> assert(ledger[recordItem] == written); ledger[recordItem] = superseded; oldFile = true
       :: else -> oldFile = false
       fi;
       ledger[2] = pendingState; visible = 2; record = pendingFile; recordItem = 2; ring!2
     }
  :: else -> skip
  fi;
  drop(locks);
#endif
  engineReturned = true
}

proctype writer() {
  byte item;
end_idle:
  do
  :: atomic { nempty(ring) && busy == 0 -> busy = _pid + 1 }
     ring?item;
     if
     :: mark[item] -> goto settled
     :: writerHangs = true; goto hung
     :: goto gone /* the disk refuses it */
     :: skip
     fi;
     staged = item;
     take(locks);
     if
     :: mark[item] -> drop(locks); goto gone
     :: else -> skip
     fi;
     d_step {
       if
       :: record == pendingFile && recordItem == item -> record = file; oldFile = false
       :: else -> skip
       fi;
       visible = 0
     }
     move(item, pendingState, written);
     drop(locks);
     goto settled;
gone:
     staged = 0;
     take(locks);
     if
     :: visible == item -> record = absent; visible = 0; move(item, pendingState, failed)
     :: else -> skip
     fi;
     drop(locks);
settled:
     drop(busy);
     stagedSequence++;
     bell++
  :: atomic { record == condemned && busy == 0 -> busy = _pid + 1 }
     staged = 0;
     take(locks); record = absent; drop(locks);
     drop(busy)
  :: unitEnded && cleaned && engineReturned && empty(ring) && record != condemned -> break
  od;
  writerEnded = true;
  goto over;
hung:
end_hung:
  false;
over:
  skip
}

proctype storeWorker() {
  byte seen, sequenceSeen;
  byte detached;
  bool worked, aside, again, have;
  do
  :: true ->
#ifndef BUG_BELL_AFTER_LOOK
     seen = bell;
#endif
     worked = false;
     if
     :: asked && !served -> served = true; worked = true
     :: else -> skip
     fi;
#ifndef BUG_SEQUENCE_AFTER_LOOK
     if
     :: sequenceSeen != stagedSequence -> sequenceSeen = stagedSequence; again = aside; aside = false
     :: else -> skip
     fi;
#endif
     if
     :: again || unit == queued ->
        again = false; worked = true;
        unit = taken;
#ifdef BUG_DRAIN_WAITS
        record != pendingFile;
#endif
        if
        :: record == pendingFile -> aside = true
        :: else ->
           take(locks);
#ifdef BUG_DETACH_UNMARKED
           have = (record == file); detached = recordItem;
#else
           if
           :: record == file -> record = detaching; detached = recordItem; have = true
#ifndef BUG_LOOK_THEN_TAKE
           :: record == pendingFile -> aside = true; drop(locks); goto setAside /* saved again meanwhile */
#endif
           :: else -> have = false
           fi;
#endif
           looked = true;
#ifndef BUG_RENAME_UNDER_LOCK
           drop(locks);
#endif
           if
           :: have ->
              if
              :: diskHangs = true; goto hung
              :: staged = 0; promoted = true; /* the rename */
#ifndef BUG_RENAME_UNDER_LOCK
                 take(locks);
#endif
                 record = absent;
                 drop(locks);
                 if
                 :: promoted = false; stored = true; move(detached, written, durable)
                 :: promoted = false; move(detached, written, failed) /* publishing fails: the file is discarded */
                 fi
              :: renameFailed = true; /* it cannot be renamed: known again until it is cleaned */
#ifndef BUG_RENAME_UNDER_LOCK
                 take(locks);
#endif
                 if
#ifndef BUG_REVIVED
                 :: forgottenMeanwhile -> record = condemned; move(detached, written, dropped)
#endif
                 :: else -> record = file
                 fi;
                 drop(locks)
              fi
           :: else -> skip
#ifdef BUG_RENAME_UNDER_LOCK
              ; drop(locks)
#endif
           fi;
           /* finishUnit, in a `finally`. */
           take(locks);
           unit = free;
#ifndef BUG_NO_FINALLY
           if
           :: requestEnded -> forget()
           :: else -> skip
           fi;
#endif
           drop(locks);
           unitEnded = true
        fi
     :: else -> skip
     fi;
setAside:
#ifdef BUG_SEQUENCE_AFTER_LOOK
     if
     :: sequenceSeen != stagedSequence -> sequenceSeen = stagedSequence; again = aside && record != pendingFile && have
     :: else -> skip
     fi;
#endif
     skip;
     if
     :: worked -> skip
     :: else ->
#ifdef BUG_BELL_AFTER_LOOK
        seen = bell;
#endif
end_idle:
        bell != seen
     fi
  od;
hung:
end_hung:
  false
}

/* The request ends after its save, with or without the unit. Any thread; the writer sweeps. */
proctype cleaner() {
  ledger[1] != uncounted;
  take(locks);
  if
  :: unit != free && !looked -> claimed = visible; if :: record == file -> claimed = recordItem :: else -> skip fi
  :: else -> skip
  fi;
  forget();
  cleaned = true;
  drop(locks)
}

init {
  atomic { run engine(); run writer(); run storeWorker(); run cleaner() }
  engineReturned && cleaned;
  if
  :: writerHangs || diskHangs
  :: unitEnded && writerEnded && served ->
     assert(staged == 0 && !promoted && record == absent);
     assert(ledger[1] != pendingState && ledger[1] != written && ledger[2] != pendingState && ledger[2] != written);
     assert(stored == (ledger[1] == durable || ledger[2] == durable));
     /* Unless the disk refused something: a unit that meets a failed save ends without its state. */
     assert(claimed == 0 || ledger[claimed] != dropped || renameFailed || ledger[1] == failed)
  fi
}

ltl restores_are_served { [] (asked -> <> (served || diskHangs)) }
