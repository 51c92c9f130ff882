/* Memory of the libraries that ignore, or make the gateway ignore, that there is none left.
 *
 * A buffer that takes no more bytes would lose them in the middle of a message, a record would be a part of
 * one. So running out ends the process here as in lib/memory.h, every connection is reset, and init starts
 * the gateway anew. What they hold is counted (held.h), and agents are cut before there is none (budget.h).
 */
#ifndef BERTH_POLICY_GATEWAY_ALLOCATE_H
#define BERTH_POLICY_GATEWAY_ALLOCATE_H

/* libevent's, jansson's and OpenSSL's, before anything of theirs is used; the process is still one thread. */
void bt_allocate_start(void);

#endif
