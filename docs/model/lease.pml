/*
 * One election: a lease, a fence, a few candidates, and one etcd. The argument
 * that it checks is that of docs/guarantees.md, promises 1 and 2. README.md in
 * this folder says what is left out, and `make model` checks all of it.
 *
 * Nothing here forces a process to take its next step. So a candidate may be
 * paused between any two of its steps for any time, and so may etcd.
 *
 * The network is a set of messages that only grows: what was sent once can
 * arrive at any later time, in any order, again and again, or never. One bit is
 * enough for each. The exception is what a candidate waits for at this moment:
 * the answer may be late or lost, but with an attempt the candidate gives up the
 * stream, and reads no answer to an older one.
 *
 * Time goes by in ticks of etcd's clock. A candidate's clock advances by one in
 * each of them, but may lose one tick in PERIOD. A clock that is fast only makes
 * limits come early, and here a candidate may give up at any time anyway.
 *
 * With TIMELESS there is no clock at all: leases end at any time, however
 * often they were renewed, keys are deleted by strangers, and whoever has had a
 * term may believe in it for ever.
 */

#ifndef CANDIDATES
#define CANDIDATES 2
#endif
#ifndef LEASES
#define LEASES 2 /* that are granted in one run */
#endif
#ifndef TERMS
#define TERMS 2  /* that begin in one run */
#endif
#ifndef TTL
#define TTL 3
#endif
#ifndef MARGIN
#define MARGIN 1
#endif
#ifndef PERIOD
#define PERIOD TTL /* one tick is lost in a TTL: just what a margin of 1 allows */
#endif

/* What a candidate waits for. */
#define NOTHING  0
#define GRANT    1 /* that etcd grants its lease */
#define GRANTED  2 /* the answer to that */
#define RENEWAL  3 /* that etcd acknowledges a renewal */
#define READ     4 /* the read that was sent after the acknowledgement */
#define DOUBTED  5 /* the same, but etcd's leader has changed since the acknowledgement */

/* ---- etcd ---- */

bool alive[LEASES + 1];    /* the lease is granted and not yet revoked */
byte remain[LEASES + 1];   /* ticks until it is due to be */
byte revision;             /* of the last creation of the key */
byte held;                 /* create revision of the key, which is the epoch; 0: no key */
byte leaseOf[TERMS + 1];   /* on which the key of each epoch was created */
bool deposed;              /* etcd has changed its leader; once is enough */

/* ---- candidates ---- */

byte lease[CANDIDATES];    /* 0: none */
byte epoch[CANDIDATES];    /* of the term; 0: none */
byte left[CANDIDATES];     /* ticks of the own clock until the limit */
byte waits[CANDIDATES];    /* for what */
byte since[CANDIDATES];    /* ticks of the own clock since that was sent */
byte steady[CANDIDATES];   /* ticks until the own clock may lose one again */
byte leases;               /* handed out */

/* ---- messages that were sent ---- */

bool createSent[LEASES + 1];
bool deleteSent[TERMS + 1], writeSent[TERMS + 1];

/* ---- what was accepted ---- */

byte written;              /* the highest epoch of a guarded write in etcd */
byte gate;                 /* the highest epoch that a gate elsewhere has seen */
bool stale;                /* one of the two accepted a lower epoch after a higher one */
bool outside;              /* a guarded write was committed while its term did not hold */

/* A term is valid by the own clock alone, at the moment when it is asked. */
#define valid(c) (epoch[c] != 0 && left[c] > 0)
#if CANDIDATES == 2
#define leaders (valid(0) + valid(1))
#elif CANDIDATES == 3
#define leaders (valid(0) + valid(1) + valid(2))
#else
#error CANDIDATES must be 2 or 3
#endif

ltl exclusive { [] (leaders <= 1) }
ltl fenced    { [] (!stale && !outside) }
/* Must fail: if no second term ever began, the others would say nothing. */
ltl barren    { [] !(held == 2 && leaders == 1 && epoch[0] != 1 && epoch[1] != 1) }

/* What is left of a TTL, counted from the sending, or, wrongly, from the answer. */
#ifdef FROM_ANSWER
#define fresh(c) (TTL - MARGIN)
#else
#define fresh(c) (since[c] < TTL - MARGIN -> TTL - MARGIN - since[c] : 0)
#endif

inline wait(c, what) { waits[c] = what; since[c] = 0 }
inline forget(c) { lease[c] = 0; epoch[c] = 0; left[c] = 0; wait(c, NOTHING) }

proctype Candidate(byte c) {
	do
	/* A lease, new each time. */
	:: d_step { lease[c] == 0 && leases < LEASES -> leases++; lease[c] = leases; wait(c, GRANT) }
	:: d_step { waits[c] == GRANTED -> left[c] = fresh(c); wait(c, NOTHING) }

	/* Acquire; and learn from the answer, or from the watch, that the key was
	 * created on our lease, perhaps long ago. */
	:: d_step { left[c] > 0 && epoch[c] == 0 && !createSent[lease[c]] -> createSent[lease[c]] = true }
	:: d_step { left[c] > 0 && epoch[c] == 0 && leaseOf[1] == lease[c] -> epoch[c] = 1 }
	:: d_step { left[c] > 0 && epoch[c] == 0 && leaseOf[2] == lease[c] -> epoch[c] = 2 }
#if TERMS > 2
	:: d_step { left[c] > 0 && epoch[c] == 0 && leaseOf[3] == lease[c] -> epoch[c] = 3 }
#endif

#ifdef TIMELESS
	/* Work: a guarded write. Nobody looks at a clock before. */
	:: d_step { epoch[c] != 0 && !writeSent[epoch[c]] -> writeSent[epoch[c]] = true }
#else
	/* Renew. */
	:: d_step { waits[c] == NOTHING && left[c] > 0 -> wait(c, RENEWAL) }

	/* The answer of the read. It counts only if the limit has not passed: what
	 * was lost stays lost. And only if it comes from the Raft term of the
	 * acknowledgement. */
	:: d_step { waits[c] == READ && left[c] > 0 ->
		left[c] = (fresh(c) > left[c] -> fresh(c) : left[c]); wait(c, NOTHING) }
#ifdef NO_READ
	:: d_step { waits[c] == DOUBTED && left[c] > 0 ->
		left[c] = (fresh(c) > left[c] -> fresh(c) : left[c]); wait(c, NOTHING) }
#endif

	/* No answer in time. */
#ifdef OLD_ANSWERS
	/* The acknowledgement of the old attempt is taken for one of the new. */
	:: d_step { waits[c] == READ && left[c] > 0 -> since[c] = 0 }
#endif
	:: d_step { waits[c] >= RENEWAL -> wait(c, NOTHING) }
#endif

	/* Resign: the validity ends, and then the delete is sent. */
#ifdef DELETE_FIRST
	:: d_step { epoch[c] != 0 && !deleteSent[epoch[c]] -> deleteSent[epoch[c]] = true }
#else
	:: d_step { epoch[c] != 0 -> deleteSent[epoch[c]] = true; forget(c) }
#endif

	/* Expire: noticed at any time after the limit, or earlier than need be. Then
	 * contest, with a new lease. */
	:: d_step { lease[c] != 0 -> forget(c) }
	od
}

/* ---- etcd: every step is one that consensus has given its place ---- */

proctype Lease(byte l) {
	do
	/* Acquire: create the key if there is none. */
	:: d_step { createSent[l] && alive[l] && held == 0 && revision < TERMS ->
		revision++; held = revision; leaseOf[revision] = l }

	/* Expire: the key goes with its lease. */
#ifdef TIMELESS
	:: d_step { alive[l] ->
#else
	:: d_step { alive[l] && remain[l] == 0 ->
#endif
		alive[l] = false; held = (held != 0 && leaseOf[held] == l -> 0 : held) }

#ifndef TIMELESS
	/* A renewal that comes late, or again; one that is due is not renewed. */
	:: d_step { alive[l] && remain[l] > 0 && remain[l] < TTL -> remain[l] = TTL }
#endif
	od
}

/* The answers to what a candidate waits for. */
proctype Answer(byte c) {
	do
	:: d_step { waits[c] == GRANT -> alive[lease[c]] = true; remain[lease[c]] = TTL; waits[c] = GRANTED }
#ifndef TIMELESS
	:: d_step { waits[c] == RENEWAL && alive[lease[c]] && remain[lease[c]] > 0 -> remain[lease[c]] = TTL; waits[c] = READ }

	/* A deposed leader of etcd acknowledges what its successor knows nothing of. */
	:: d_step { waits[c] == RENEWAL && deposed -> waits[c] = DOUBTED }
#endif
	od
}

inline accept(e, highest) { stale = (stale || e < highest); highest = (e > highest -> e : highest) }

proctype Epoch(byte e) {
	do
	/* However often a guarded write arrives, it is committed if the key has its epoch. */
#ifdef NO_COMPARE
	:: d_step { writeSent[e] -> outside = (outside || held != e); accept(e, written) }
#else
	:: d_step { writeSent[e] && held == e -> outside = (outside || held != e); accept(e, written) }
#endif

	/* The same at a gate, which knows only what it has seen. */
#ifdef NO_MEMORY
	:: d_step { writeSent[e] -> accept(e, gate) }
#else
	:: d_step { writeSent[e] && e >= gate -> accept(e, gate) }
#endif

	/* The delete of a resignation is guarded, too. */
	:: d_step { deleteSent[e] && held == e -> held = 0 }

#ifdef TIMELESS
	/* An operator deletes the key, or evicts by force. */
	:: d_step { held == e -> held = 0 }
#endif
	od
}

#ifndef TIMELESS

/* A new leader of etcd gives every lease a full TTL. */
proctype Raft() {
	byte i;
	d_step {
		deposed = true;
		for (i : 1 .. LEASES) { remain[i] = (alive[i] -> TTL : 0) }
		for (i : 0 .. CANDIDATES - 1) { waits[i] = (waits[i] == READ -> DOUBTED : waits[i]) }
		i = 0
	}
}

proctype Clock() {
	byte i;
	do
	:: atomic {
		for (i : 1 .. LEASES) { remain[i] = (remain[i] > 0 -> remain[i] - 1 : 0) }
		for (i : 0 .. CANDIDATES - 1) {
			if
			:: lease[i] != 0 && steady[i] == 0 -> steady[i] = PERIOD - 1 /* lost */
			:: true ->
				left[i] = (left[i] > 0 -> left[i] - 1 : 0);
				since[i] = (waits[i] != NOTHING && since[i] < TTL - MARGIN -> since[i] + 1 : since[i]);
				steady[i] = (steady[i] > 0 -> steady[i] - 1 : 0)
			fi
		}
		i = 0 }
	od
}

#endif

init {
	byte i;
	atomic {
		for (i : 0 .. CANDIDATES - 1) { run Candidate(i); run Answer(i) }
		for (i : 1 .. LEASES) { run Lease(i) }
		for (i : 1 .. TERMS) { run Epoch(i) }
#ifndef TIMELESS
		run Raft(); run Clock();
#endif
		i = 0
	}
}
