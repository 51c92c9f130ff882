/* What e2fsprogs say of an ext4 image that a test made. */
#ifndef BERTH_TESTS_LIB_IMAGE_TOOLS_H
#define BERTH_TESTS_LIB_IMAGE_TOOLS_H

/* What debugfs prints for a command; the caller frees it. */
char *debugfs(const char *image, const char *command);
void assert_debugfs(const char *image, const char *command, const char *expected);
void assert_debugfs_without(const char *image, const char *command, const char *unexpected);

/* e2fsck has nothing to say. */
void assert_image_clean(const char *image);

#endif
