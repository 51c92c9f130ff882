/* The temporary folder of a build outside its cache folder: mmdebstrap works under other ids, to which a home
 * is closed. A link in the build's folder remembers it, so that the next builder can remove it if this one is
 * killed. */
#ifndef BERTH_IMAGES_SCRATCH_H
#define BERTH_IMAGES_SCRATCH_H

#include "lib/error.h"

/* Makes a folder in $TMPDIR or /tmp that everybody may enter and only the caller may write; ret_path holds
 * its name. */
int bt_scratch_make(const char *build_folder, char ret_path[512], struct bt_error *error);

/* Removes what build_folder remembers, and the memory of it. Nothing is done for a folder that the caller
 * does not own or that bt_scratch_make cannot have made. */
void bt_scratch_remove(const char *build_folder);

#endif
