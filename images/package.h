/* Debian packages from the host's own sources, without installing anything and without root. */
#ifndef BERTH_IMAGES_PACKAGE_H
#define BERTH_IMAGES_PACKAGE_H

#include "images/images.h"
#include "lib/memory.h"

/* The host's apt source files (sources.list(5)) that hold anything, in apt's order, and their text one after
 * the other. -ENOENT when there is none. The caller frees both. */
int bt_package_sources(struct bt_list *ret_files, struct bt_buffer *ret_text, struct bt_error *error);

/* Environment for apt and mmdebstrap: paths, proxies, the C locale; nothing else of the caller's. temporary:
 * its TMPDIR, or NULL for the caller's. */
void bt_package_environment(const char *temporary, struct bt_list *environment);

/* Downloads a package into an existing folder (apt-get(8) download: checked against the signed index). A
 * metapackage is followed along the dependency that starts with follow (e.g. "linux-image-") to the real one.
 * When the host's package lists do not know it or are out of date, fresh lists are made below the folder.
 * ret_path: the .deb. */
int bt_package_download(const char *package, const char *follow, const char *folder,
                        const struct bt_progress *progress, char ret_path[768], struct bt_error *error);

/* The package file in a folder, if there is one. */
bool bt_package_find(const char *folder, char ret_path[768]);
/* Moves a downloaded package into a folder that keeps at most one, as kept (a path in it). Returns 0 or
 * -errno. */
int bt_package_keep(const char *path, const char *folder, const char *kept);

#endif
