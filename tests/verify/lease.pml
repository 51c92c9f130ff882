/* A lease's life: LEASE, RELEASE, the end of a connection, the engine's death between any two steps, restart, adoption,
 * expiry. Two users, two slots, up to two deaths. Checked exhaustively by spin.sh.
 *
 * What one block `atomic` does is what the real thing does in one piece: a transaction of nftables, a reply, a device
 * that is made. Between blocks the engine may die (DEATH), and users go on at any time. A slip (spin.sh lists them) puts in a slip, an order
 * or a check that would be easy to get wrong in helper/engine.c or helper/verbs.c; each has to be found.
 */
#define USERS 2
#define SLOTS 2
#ifndef DEATHS
#define DEATHS 2
#endif
#ifndef LEASES
#define LEASES 1 /* a user asks for so many */
#endif
#define NO_SLOT SLOTS
#define GENERATIONS (USERS * LEASES + DEATHS + 2)

mtype = { none, live, reserved };
mtype = { lease, adopt, release, granted, refused, released };

/* ---- the kernel: survives the engine ---- */
mtype rules[SLOTS] = none;
byte rules_owner[SLOTS], rules_generation[SLOTS];
bool has_device[SLOTS];
byte device_generation[SLOTS];
byte high_water;

/* ---- the engine's memory: gone when it dies ---- */
bool is_up, is_idle;
mtype hold[SLOTS] = none;
byte hold_owner[SLOTS], hold_generation[SLOTS];
byte last_generation;
byte bound_slot[USERS] = NO_SLOT; /* the connection of this user has this lease */
byte bound_serial[USERS];
byte deaths;

/* ---- users: what they were told ---- */
bool is_connected[USERS];
byte serial[USERS]; /* tells a connection from the one before */
byte held_slot[USERS] = NO_SLOT;
byte held_generation[USERS];
bool is_holding[USERS]; /* was granted it on this connection and has not asked to end it */
bool is_ended[GENERATIONS]; /* its user was told that it is over */

chan ask[USERS] = [1] of { mtype, byte, byte, byte };    /* verb, slot, generation, serial */
chan answer[USERS] = [1] of { mtype, byte, byte, byte }; /* outcome, slot, generation, serial */

/* The engine dies, and with it its memory and all connections. What is in the kernel stays. */
inline die()
{
    atomic {
        deaths++;
        is_up = false;
        is_idle = false;
        last_generation = 0;
        for (i : 0 .. SLOTS - 1) {
            hold[i] = none;
            hold_owner[i] = 0;
            hold_generation[i] = 0;
        }
        for (i : 0 .. USERS - 1) {
            bound_slot[i] = NO_SLOT;
            bound_serial[i] = 0;
            is_connected[i] = false;
            is_holding[i] = false;
            do
            :: nempty(ask[i]) -> ask[i]?_, _, _, _
            :: nempty(answer[i]) -> answer[i]?_, _, _, _
            :: empty(ask[i]) && empty(answer[i]) -> break
            od
        }
        i = 0
    }
}
#define DEATH                                                                                                  \
    if                                                                                                         \
    :: deaths < DEATHS -> die(); goto down                                                                     \
    :: true                                                                                                    \
    fi

inline reply(outcome, slot, generation)
{
    atomic {
        if
        :: is_connected[u] && serial[u] == request_serial -> answer[u]!outcome, slot, generation, request_serial
        :: else /* closed meanwhile: the end of the connection gives a lease back */
        fi
    }
}

inline forget(slot)
{
    hold[slot] = none;
    hold_owner[slot] = 0;
    hold_generation[slot] = 0
}

inline take_rules_out(slot)
{
    atomic {
        rules[slot] = none;
        rules_owner[slot] = 0;
        rules_generation[slot] = 0
    }
}

inline put_rules_in(slot, user, generation)
{
    atomic {
        rules[slot] = live;
        rules_owner[slot] = user;
        rules_generation[slot] = generation;
        high_water = (generation > high_water -> generation : high_water)
    }
}

inline remember(slot, user, generation, connection)
{
    atomic {
        hold[slot] = live;
        hold_owner[slot] = user;
        hold_generation[slot] = generation;
        bound_slot[user] = slot;
        bound_serial[user] = connection
    }
}

#ifdef MUTANT_REUSED_DEVICE
#define IS_LEASABLE(slot) (hold[slot] == none)
#else
#define IS_LEASABLE(slot) (hold[slot] == none && rules[slot] == none && !has_device[slot])
#endif

inline answer_lease()
{
    s = NO_SLOT;
    if
    :: bound_slot[u] != NO_SLOT
    :: bound_slot[u] == NO_SLOT && IS_LEASABLE(0) -> s = 0
    :: bound_slot[u] == NO_SLOT && !IS_LEASABLE(0) && IS_LEASABLE(1) -> s = 1 /* which of two free ones does not matter */
    :: bound_slot[u] == NO_SLOT && !IS_LEASABLE(0) && !IS_LEASABLE(1)
    fi;
    if
    :: s == NO_SLOT -> reply(refused, NO_SLOT, 0)
    :: else ->
        last_generation++;
        g = last_generation;
        assert(g < GENERATIONS);
#ifdef MUTANT_ANSWER_FIRST
        reply(granted, s, g);
        DEATH;
#endif
        atomic {
            if
            :: !has_device[s] -> has_device[s] = true; device_generation[s] = g
            :: else /* only a slip comes here: the device of the last lease */
            fi
        }
        DEATH;
        put_rules_in(s, u, g);
        DEATH;
        remember(s, u, g, request_serial);
#ifndef MUTANT_ANSWER_FIRST
        reply(granted, s, g)
#endif
    fi
}

#ifdef MUTANT_ANYBODY_ADOPTS
#define MAY_ADOPT (hold[s] == reserved)
#else
#define MAY_ADOPT (hold[s] == reserved && hold_owner[s] == u && hold_generation[s] == g)
#endif

inline answer_adopt()
{
    if
    :: MAY_ADOPT && bound_slot[u] == NO_SLOT ->
        atomic { rules[s] = live; rules_owner[s] = hold_owner[s]; rules_generation[s] = hold_generation[s] }
        DEATH;
        remember(s, u, hold_generation[s], request_serial);
        reply(granted, s, hold_generation[s])
    :: else -> reply(refused, NO_SLOT, 0)
    fi
}

/* Elements out; the device goes later, when the engine has time. */
inline end_lease(user)
{
    s = bound_slot[user];
    bound_slot[user] = NO_SLOT;
    bound_serial[user] = 0;
    forget(s);
    take_rules_out(s)
}

inline serve()
{
    if
    :: verb == lease -> answer_lease()
    :: verb == adopt -> answer_adopt()
    :: verb == release && bound_slot[u] != NO_SLOT && bound_serial[u] == request_serial ->
        g = hold_generation[bound_slot[u]];
#ifdef MUTANT_EARLY_RELEASE
        reply(released, NO_SLOT, g);
        DEATH;
        end_lease(u)
#else
        end_lease(u);
        DEATH;
        reply(released, NO_SLOT, g)
#endif
    :: verb == release && !(bound_slot[u] != NO_SLOT && bound_serial[u] == request_serial) ->
        reply(refused, NO_SLOT, 0)
    fi
}

/* What is live becomes reserved, all in one transaction; a device without rules is nobody's and goes. */
inline start()
{
    atomic {
        for (i : 0 .. SLOTS - 1) {
            if
            :: rules[i] != none ->
#ifndef MUTANT_LIVE_AFTER_RESTART
                rules[i] = reserved;
#endif
                hold[i] = reserved;
                hold_owner[i] = rules_owner[i];
                hold_generation[i] = rules_generation[i]
            :: else
            fi
        }
        i = 0;
#ifndef MUTANT_FORGOTTEN_GENERATION
        last_generation = high_water;
#endif
        is_up = true
    }
}

#define HAS_HUNG_UP(user) (bound_slot[user] != NO_SLOT && !(is_connected[user] && serial[user] == bound_serial[user]))
#define IS_DEAD(slot) (has_device[slot] && rules[slot] == none && hold[slot] == none)

active proctype engine()
{
    byte i, s, g, u, request_serial;
    mtype verb;
down:
    start();
    do
    :: atomic { s = 0; g = 0; u = 0; request_serial = 0; verb = none; is_idle = true };
end_idle:
    atomic {
        if
        :: nempty(ask[0]) -> u = 0; ask[0]?verb, s, g, request_serial
        :: nempty(ask[1]) -> u = 1; ask[1]?verb, s, g, request_serial
        :: HAS_HUNG_UP(0) -> u = 0
        :: HAS_HUNG_UP(1) -> u = 1
        :: hold[0] == reserved -> s = 0; verb = reserved /* its deadline passes */
        :: hold[1] == reserved -> s = 1; verb = reserved
        :: IS_DEAD(0) -> s = 0; verb = live
        :: IS_DEAD(1) -> s = 1; verb = live
        :: deaths < DEATHS -> die(); goto down
        fi;
        is_idle = false
    }
        if
        :: verb == none && HAS_HUNG_UP(u) -> end_lease(u)
        :: verb == none && !HAS_HUNG_UP(u)
        :: verb == reserved -> forget(s); take_rules_out(s)
        :: verb == live -> atomic { has_device[s] = false; device_generation[s] = 0 }
        :: verb == lease || verb == adopt || verb == release -> serve()
        fi
    od
}

proctype user(byte me)
{
    byte asked, s, g, from;
    mtype outcome;
again:
    if
    :: atomic { held_slot[me] == NO_SLOT && asked == LEASES -> goto end_done }
    :: atomic {
        is_up && !(held_slot[me] == NO_SLOT && asked == LEASES) && empty(ask[me]) ->
        is_connected[me] = true;
        s = 0; g = 0; from = 0; outcome = none; /* nothing left over that would tell states apart */
        serial[me] = 1 - serial[me];
        do
        :: nempty(answer[me]) -> answer[me]?_, _, _, _
        :: empty(answer[me]) -> break
        od;
        if
        :: held_slot[me] != NO_SLOT -> ask[me]!adopt, held_slot[me], held_generation[me], serial[me]
        :: else -> asked++; ask[me]!lease, 0, 0, serial[me]
        fi
    }
    fi;
    if
    :: atomic {
        answer[me]?outcome, s, g, from ->
        if
        :: outcome == granted ->
            held_slot[me] = s; held_generation[me] = g; is_holding[me] = true
        :: else -> held_slot[me] = NO_SLOT; held_generation[me] = 0; is_connected[me] = false
        fi
    }
    :: atomic { !is_connected[me] -> goto again } /* the engine died: whether it was granted is not known */
    :: atomic { is_connected[me] -> is_connected[me] = false; held_slot[me] = NO_SLOT; held_generation[me] = 0 } /* killed */
    fi;
    if
    :: !is_holding[me] && held_slot[me] == NO_SLOT -> goto again
    :: atomic { !is_connected[me] && held_slot[me] != NO_SLOT -> goto again }
    :: atomic {
        is_holding[me] && is_connected[me] && empty(ask[me]) ->
        is_holding[me] = false;
        ask[me]!release, 0, 0, serial[me]
    }
    :: atomic { /* killed: nobody is told anything */
        is_holding[me] && is_connected[me] ->
        is_holding[me] = false; is_connected[me] = false; held_slot[me] = NO_SLOT; held_generation[me] = 0;
        goto again
    }
    fi;
    if
    :: atomic {
        answer[me]?outcome, s, g, from ->
        is_ended[g] = is_ended[g] || outcome == released;
        is_connected[me] = false; held_slot[me] = NO_SLOT; held_generation[me] = 0
    }
    :: atomic { !is_connected[me] -> skip } /* adopted on the next connection, and released then */
    fi;
    goto again;
end_done:
    skip
}

/* ---- what must hold ---- */

/* Nobody passes packets by another's lease, or by one that ended: what a user knows and the kernel lets through is its own. */
#define IS_OWN(s) (rules[s] != live ||                                                                         \
    ((held_slot[0] != s || held_generation[0] != rules_generation[s] || rules_owner[s] == 0) &&                \
     (held_slot[1] != s || held_generation[1] != rules_generation[s] || rules_owner[s] == 1) &&                \
     !is_ended[rules_generation[s]]))
/* What a user was told is so, as long as the engine that told it lives. */
#define IS_TOLD_TRUE(u) (!(is_holding[u] && is_connected[u]) ||                                                \
    (rules[held_slot[u]] == live && rules_owner[held_slot[u]] == u &&                                          \
     rules_generation[held_slot[u]] == held_generation[u]))
/* Rules have their own device, never the one of an earlier lease. */
#define IS_ON_ITS_DEVICE(s) (rules[s] == none || (has_device[s] && device_generation[s] == rules_generation[s]))
/* At rest, memory and kernel agree, and what is live has its connection. */
#define IS_BALANCED(s) (!(is_up && is_idle) || (hold[s] == rules[s] &&                                         \
    (hold[s] == none || (hold_owner[s] == rules_owner[s] && hold_generation[s] == rules_generation[s])) &&     \
    (hold[s] != live || bound_slot[hold_owner[s]] == s)))
#define IS_CLEAN(s) (rules[s] == none && hold[s] == none && !has_device[s])

#define IS_RIGHT (IS_OWN(0) && IS_OWN(1) && IS_TOLD_TRUE(0) && IS_TOLD_TRUE(1) && IS_ON_ITS_DEVICE(0) &&       \
    IS_ON_ITS_DEVICE(1) && IS_BALANCED(0) && IS_BALANCED(1))

active proctype judge()
{
end_judge:
    do
    :: atomic { !IS_RIGHT -> assert(IS_RIGHT) }
    :: timeout -> assert(IS_CLEAN(0) && IS_CLEAN(1)); break
    od
}

init {
    atomic {
        run user(0);
        run user(1)
    }
}
