/* Reporting progress to a caller that may not want it. */
#ifndef BERTH_IMAGES_PROGRESS_H
#define BERTH_IMAGES_PROGRESS_H

#include "images/images.h"

static inline void bt_progress_report(const struct bt_progress *progress, const char *step, uint64_t done,
                                      uint64_t total)
{
    if (progress != NULL && progress->report != NULL)
        progress->report(progress->context, step, done, total);
}

#endif
