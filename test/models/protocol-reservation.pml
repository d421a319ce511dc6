/*
 * Bytes that wait for the disk (src/shared/session/pending.ts): three savers of 2, 1 and 3 bytes under a cap of 2, a thread that
 * waits on the same condition for a file, the writer that gives bytes back, and an aborter that takes no lock.
 *
 * Shown: the cap holds for what is counted and for what lies in the buffer, with one item above it when nothing is held; every
 * waiter goes on, also when the disk hangs and the session is closed; in the end nothing is held.
 *
 * Seeded bugs:
 *   NOTIFY_ONE       giving bytes back wakes one waiter: the saver or the taker, whichever cannot use it, sleeps on
 *   LATE_TICKET      the sequence is read after the lock was released
 *   NO_RECHECK       a waiter that was woken takes its bytes without looking
 *   EARLY_RELEASE    bytes go back before the writer has let go of the buffer
 *   SILENT_ABORT     the aborter writes its word and wakes nobody
 *   TEST_BEFORE_TICKET  the closed word is read before the ticket is: a lock-free abort in between is missed
 */
#include "protocol-sync.inc"

#define CAP 2
#ifdef FEWER /* for the temporal claim, whose search is larger */
#define SAVERS 2
#else
#define SAVERS 3
#endif
#define fits(bytes) (held == 0 || held + bytes <= CAP)

byte pending;            /* the lock */
byte held;               /* what is counted */
byte inBuffer;           /* what lies there */
bool closed;
bool filePending;        /* the first saver's boundary has a record, and no file yet */
bool mayHang, hangs;     /* the disk stands still for ever */
bool aborts;
byte ended;              /* savers and taker */

chan queue = [SAVERS] of { byte };

proctype saver(byte bytes; bool named) {
  byte ticket;
  bool admitted;
  take(pending);
  do
  :: true ->
#ifdef BUG_TEST_BEFORE_TICKET
     if
     :: closed -> break
     :: else -> ticket = sequence
     fi;
#else
     ticket = sequence;
     if
     :: closed -> break
     :: else -> skip
     fi;
#endif
     if
     :: fits(bytes) -> admitted = true; break
     :: else -> skip
     fi;
#ifdef BUG_LATE_TICKET
     drop(pending); ticket = sequence; take(pending);
#endif
     waitFor(pending, ticket)
#ifdef BUG_NO_RECHECK
     ; if
     :: closed -> break
     :: else -> admitted = true; break
     fi
#endif
  od;
  if
  :: admitted ->
     atomic {
       held = held + bytes;
       assert(held <= CAP || held == bytes)
     }
     atomic {
       assert(inBuffer == 0 || inBuffer + bytes <= CAP);
       inBuffer = inBuffer + bytes;
       if
       :: named -> filePending = true
       :: else -> skip
       fi;
       queue!bytes
     }
  :: else -> skip
  fi;
  drop(pending);
  ended++
}

/* takeStagedFile: waits while the file is being written. With a disk that hangs its own deadline ends it. */
proctype taker() {
  byte ticket;
  take(pending);
  do
  :: true ->
     ticket = sequence;
     if
     :: !filePending -> break
     :: else -> skip
     fi;
     drop(pending);
     atomic {
       if
       :: sequence == ticket -> asleep[_pid] = true
       :: else -> skip
       fi
     }
     if
     :: !asleep[_pid] -> take(pending)
     :: hangs -> take(pending); break
     fi
  od;
  drop(pending);
  ended++
}

proctype writer() {
  byte bytes;
end_idle:
  do
  :: queue?bytes ->
     if
     :: bytes == 0 -> break
     :: else -> skip
     fi;
     if
     :: mayHang -> hangs = true; goto hung
     :: true -> skip
     fi;
#ifdef BUG_EARLY_RELEASE
     take(pending); held = held - bytes; broadcast(); drop(pending);
     take(pending); inBuffer = inBuffer - bytes; filePending = false; broadcast(); drop(pending)
#else
     take(pending);
     inBuffer = inBuffer - bytes;
     if
     :: bytes == 2 -> filePending = false
     :: else -> skip
     fi;
     held = held - bytes;
#ifdef BUG_NOTIFY_ONE
     wakeOne();
#else
     broadcast();
#endif
     drop(pending)
#endif
  od;
  goto over;
hung:
end_hung:
  false;
over:
  skip
}

/* The app's main thread: close() or an abort word. It takes no lock. */
proctype aborter() {
  closed = true;
#ifndef BUG_SILENT_ABORT
  broadcast()
#endif
}

init {
  if
  :: mayHang = true; aborts = true
  :: aborts = true
  :: skip
  fi;
  atomic {
    run saver(2, true); run saver(3, false); run taker(); run writer();
#ifndef FEWER
    run saver(1, false);
#endif
    if
    :: aborts -> run aborter()
    :: else -> skip
    fi
  }
  ended == SAVERS + 1;
  if
  :: hangs -> skip
  :: !hangs && empty(queue) -> queue!0
  fi;
  (_nr_pr == 1 || hangs);
  assert(hangs || (held == 0 && inBuffer == 0))
}

/* Whoever waits when the session is closed is told. */
ltl closed_ends_every_wait { [] (closed -> <> (ended == SAVERS + 1)) }
