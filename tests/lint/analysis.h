/* Tells the analysers, which see one file at a time, what lib/error.h promises (bt_fail and bt_error_prefix
 * return a negative number), and that what leaves a list changes its head, which they do not follow. Included
 * ahead of every file by tidy.sh and analyzer.sh; never by the product.
 */
#ifndef BERTH_TESTS_LINT_ANALYSIS_H
#define BERTH_TESTS_LINT_ANALYSIS_H

#include <sys/queue.h>

#include "lib/error.h"
#include "lib/yaml.h"

#define BT_ANALYSIS_NEGATIVE(call)                                                                           \
    ({                                                                                                       \
        int bt_negative_ = (call);                                                                           \
        if (bt_negative_ >= 0) {                                                                             \
            __builtin_unreachable();                                                                         \
        }                                                                                                    \
        bt_negative_;                                                                                        \
    })
#define bt_fail(...) BT_ANALYSIS_NEGATIVE((bt_fail)(__VA_ARGS__))
#define bt_error_prefix(...) BT_ANALYSIS_NEGATIVE((bt_error_prefix)(__VA_ARGS__))
#define bt_yaml_fail(...) BT_ANALYSIS_NEGATIVE((bt_yaml_fail)(__VA_ARGS__))

void bt_analysis_change(void *memory);
#undef TAILQ_REMOVE
#define TAILQ_REMOVE(head, element, field) bt_analysis_change(head)

#endif
