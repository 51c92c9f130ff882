/* Text that looks random, as keys do that have no form of their own (dlp.entropy: warn): runs of 24 or more
 * characters of base64, base64url or of letters and digits, with both cases and digits, whose characters are
 * spread as those of random text are.
 *
 * Fed by filter*.c with what goes out. Its memory is that of one struct, its time linear; a run is judged by
 * its first 64 characters. Hexadecimal text is left out: digests of commits and files are in nearly every
 * request.
 */
#ifndef BERTH_POLICY_GATEWAY_ENTROPY_H
#define BERTH_POLICY_GATEWAY_ENTROPY_H

#include "ipc/base/base.h"

#define BT_ENTROPY_SAMPLE 64

/* Zero at the start of a stream. */
struct bt_entropy {
    char sample[BT_ENTROPY_SAMPLE]; /* the first characters of the run */
    size_t length;                  /* of the run, counted as far as the sample goes */
    bool is_judged;                 /* its sample is full */
};

/* Whether a run that is found here, or that began before, looks random. A run counts when it ends or when its
 * sample is full: the end of a stream is told by a line's end. */
bool bt_entropy_scan(struct bt_entropy *entropy, const void *data, size_t length);

#endif
