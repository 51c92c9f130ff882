/* Recipes: what an image is made of, as data (images/recipes/<name>.yaml). */
#ifndef BERTH_IMAGES_RECIPE_H
#define BERTH_IMAGES_RECIPE_H

#include "lib/error.h"
#include "lib/memory.h"
#include "lib/yaml.h"

enum bt_recipe_form {
    BT_RECIPE_KERNEL, /* a kernel and its base initrd, from a Debian package */
    BT_RECIPE_INITRD, /* berth's own static programs, to be appended to the base initrd */
    BT_RECIPE_DISK,   /* a Debian root as an ext4 image */
};

struct bt_recipe {
    char name[64];
    enum bt_recipe_form form;
    struct bt_buffer text; /* of the recipe, and before it of the one it extends: part of the digest */
    /* kernel */
    char *package;          /* for this machine's architecture; may be a metapackage */
    struct bt_list modules; /* in load order */
    char *init;             /* program that becomes /init */
    /* initrd */
    struct bt_list programs;
    /* disk */
    char *suite; /* the host's code name when the recipe says "host" */
    char *variant;
    struct bt_list packages;
    struct bt_list exclude; /* fnmatch(3) patterns, relative to the root */
    uint64_t size_bytes;    /* of the file system; sparse */
    char *user_name;        /* NULL: no account is added */
    char *user_home;
    char *user_shell;
    uint32_t user_uid, user_gid;
    struct bt_list folders; /* "/path", owned by the user */
    bool keeps_privilege;   /* set-id bits and file capabilities stay */
    /* disk on top of another one */
    char *base;              /* its recipe; nothing of the above but exclude then */
    struct bt_list commands; /* of npm packages, for this machine's architecture: name, path, name, path */
    struct bt_list files;    /* path, text, path, text: 0644, root */
};

/* Reads and checks a recipe of the installed or built tree. A name that is none: -ENOENT naming the nearest
 * one. The caller frees it. */
int bt_recipe_load(const char *name, struct bt_recipe *ret_recipe, struct bt_error *error);
void bt_recipe_free(struct bt_recipe *recipe); /* accepts a zeroed one */
#define bt_auto_recipe BT_CLEANUP(bt_recipe_free) struct bt_recipe

/* Debian's name of this machine's architecture ("amd64"), or NULL when it has none that berth supports. */
const char *bt_recipe_architecture(void);

/* The folder that holds the recipes; used to list them. What npm is to install for a recipe is pinned in the
 * folder of its name there: package.json and package-lock.json. */
int bt_recipe_folder(char ret_path[512], struct bt_error *error);

#endif
