/* The parser of "berth-init run" against arbitrary bytes: header and body as they would come over SSH. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "vm/init/run_request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct bt_run_request request;
    size_t length;
    if (size < BT_RUN_HEADER_LENGTH || bt_run_parse_header(data, &request, &length) < 0)
        return 0;
    data += BT_RUN_HEADER_LENGTH;
    size -= BT_RUN_HEADER_LENGTH;
    /* The program reads exactly what is announced; here it is what there is. */
    if (length > size)
        length = size;
    char *body = malloc(length > 0 ? length : 1);
    if (body == NULL)
        return 0;
    memcpy(body, data, length);
    if (bt_run_parse_body(body, length, &request) == 0) {
        size_t bytes = strlen(request.folder) + 1;
        for (char **item = bt_run_arguments(&request); *item != NULL; item++)
            bytes += strlen(*item) + 1;
        for (char **item = bt_run_environment(&request); *item != NULL; item++)
            bytes += strlen(*item) + 1;
        if (bytes != length || bt_run_arguments(&request)[request.argument_count] != NULL)
            abort();
        (void)bt_run_variable(&request, "PATH");
    }
    free(body);
    return 0;
}
